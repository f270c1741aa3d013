"""The checks every backend makes, once, of plain values. A message says the argument, what came and what should."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from numbers import Real
from typing import ParamSpec, TypeVar

import numpy as np

Given = ParamSpec("Given")
Result = TypeVar("Result")


class CatnatWarning(UserWarning):
    """Something that trains, but perhaps not as it could."""


def advised(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The function or class, which says how it is called where arguments are missing or not its own."""
    if isinstance(function, type):
        function.__init__ = advised(function.__init__)  # type: ignore[misc]
        return function

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            asked = signature(function)
            try:
                asked.bind(*args, **kwargs)
            except TypeError:
                advice = f"{error}. It takes {', '.join(n for n in asked.parameters if n not in ('self', 'cls'))}"
                for name, meaning in MEANINGS.items():
                    advice += f"; {name} is {meaning}" if name in asked.parameters else ""
                raise TypeError(advice) from None
            raise

    # a code object of its own: torch.compile counts by it how often a function was compiled anew
    call.__code__ = call.__code__.replace(co_name=function.__name__)  # type: ignore[attr-defined]
    return call


_NAMED = "catnat.Parameterization(num_classes, activation, tree=tree, center=center)"
MEANINGS = {
    "key": "one random key, as jax.random.key(0) makes it",
    "classes": "the number of classes of every variable",
    "nvec": f"for every part the number of classes, or {_NAMED}",
    "parameterization": f"the number of classes, or {_NAMED}",
}
REDUCTIONS = ("none", "mean", "sum")
GONE = dict.fromkeys(  # names of 0.2
    ("condition_number", "monte_carlo_fisher", "network_fisher"), "`fisher_matrix` and linalg do it in a line or two"
) | {"relaxed_sample": "it is gumbel_softmax", "gumbel_straight_through": "it is gumbel_softmax(..., hard=True)"}


def gone(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have, or no longer."""
    return AttributeError(f"module {module!r} has no {name!r}{': ' + GONE[name] if name in GONE else ''}")


def check_choice(
    argument: str, value: object, choices: Sequence[str], known_as: Mapping[str, str] | None = None
) -> None:
    """Raise unless ``value`` is one of ``choices``; ``known_as`` has what others call them."""
    if isinstance(value, str) and value in choices:
        return
    names = ", ".join(repr(choice) for choice in choices)
    near = get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    near = [known_as[value]] if known_as and isinstance(value, str) and value in known_as else near
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"{argument} must be one of {names}; got {value!r}{hint}")


def check_num_classes(value: object) -> int:
    """Return ``value`` as an int, or raise unless it is a whole number of at least one."""
    hint = "; a tree goes by its name: tree=" if type(value).__name__ == "Tree" else ""
    if (number := _whole("num_classes", value, hint)) < 1:
        raise ValueError(f"num_classes must be at least 1; got {number}")
    return number


def check_width(num_classes: int, width: int, shape: Sequence[int], dim: int = -1, *, called: str = "dim") -> None:
    """Raise unless an axis of ``width`` scores fits ``num_classes`` classes."""
    if width != num_classes - 1:
        advice = f". Make the last layer {num_classes - 1} wide; logits or log-probabilities need no catnat"
        hint = advice if width == num_classes else ""
        wanted = f"num_classes - 1 = {num_classes - 1} values along {called} {dim} for {num_classes} classes"
        raise ValueError(f"scores must hold {wanted}; got {width} (scores have shape {tuple(shape)}){hint}")


def check_classes(argument: str, num_classes: int, width: int, shape: Sequence[int]) -> None:
    """Raise unless a K-wide argument (a mask, probabilities, weights) is K wide."""
    if width != num_classes:
        came = f"{width} ({argument} has shape {tuple(shape)})"
        raise ValueError(f"{argument} must hold one value a class: {num_classes} along the class dimension; got {came}")


def check_batch(argument: str, came: Sequence[int], expected: Sequence[int]) -> None:
    """Raise unless a shape is the scores' batch shape."""
    if came != expected:
        raise ValueError(f"{argument} must have the scores' batch shape {tuple(expected)}; got {tuple(came)}")


def check_axis(called: str, axis: int, ndim: int, argument: str) -> None:
    """Raise unless what has so many dimensions has this axis."""
    if ndim == 0:
        raise ValueError(f"{argument} must have at least one dimension; got a scalar")
    if not -ndim <= axis < ndim:
        raise IndexError(f"{called} must lie in [{-ndim}, {ndim - 1}] for {argument}; got {axis}")


def check_index_range(num_classes: int, low: int, high: int, argument: str = "index") -> None:
    """Raise unless every class id, given the least and the greatest, lies in [0, num_classes)."""
    if low < 0 or high >= num_classes:
        came = low if low < 0 else high
        raise IndexError(f"{argument} must lie in [0, {num_classes - 1}] for {num_classes} classes; got {came}")


def check_num_samples(value: object, num_classes: int) -> int:
    """Return ``value`` as an int, or raise unless so many different classes can be drawn."""
    if not 1 <= (number := _whole("num_samples", value)) <= num_classes:
        raise ValueError(f"num_samples must lie in [1, {num_classes}] for {num_classes} classes; got {number}")
    return number


def check_positive(argument: str, value: float) -> float:
    """Return ``value`` as a float, or raise unless it is finite and above zero."""
    if not 0 < (number := _number(argument, value)) < math.inf:  # no isfinite: a compiler may have a symbol here
        raise ValueError(f"{argument} must be a finite number above 0; got {value!r}")
    return number


def check_nonnegative(argument: str, value: float) -> float:
    """Return ``value`` as a float, or raise unless it is finite and not below zero."""
    if not 0 <= (number := _number(argument, value)) < math.inf:
        raise ValueError(f"{argument} must be a finite number of at least 0; got {value!r}")
    return number


def check_between(argument: str, value: float, least: float, most: float, *, also: float | None = None) -> float:
    """Return ``value`` as a float, or raise unless it lies in [least, most], or is the one other value allowed."""
    number = _number(argument, value)
    if not least <= number <= most and number != also:
        other = "" if also is None else f"be {also:g} or "
        raise ValueError(f"{argument} must {other}lie in [{least:g}, {most:g}]; got {value!r}")
    return number


def check_share(argument: str, value: float) -> float:
    """Return ``value`` as a float, or raise unless it lies in [0, 1]."""
    return check_between(argument, value, 0, 1)


def empty_mask_row(position: Sequence[int]) -> ValueError:
    """The error for a mask row that allows no class."""
    return ValueError(f"mask must allow at least one class in every row; {_row(position)} allows none")


def nan_scores(position: Sequence[int]) -> ValueError:
    """The error for a class to be drawn from scores that are NaN."""
    return ValueError(f"scores must not be NaN where a class is drawn from them; draw {tuple(position)} met one")


def check_masses(argument: str, masses: np.ndarray) -> None:
    """Raise unless every row of probabilities, or of their logarithms, says what its distribution is."""
    are_probs = argument == "probs"
    wrong = ~((masses >= (0 if are_probs else -np.inf)) & (masses < np.inf))  # NaN, too
    if wrong.any():
        *row, _ = position = np.argwhere(wrong)[0].tolist()
        wanted = "finite and at least 0" if are_probs else "below infinity, and no NaN"
        raise ValueError(f"{argument} must be {wanted}; {_row(row)} holds {masses[tuple(position)]:g}")
    empty = (masses == (0 if are_probs else -np.inf)).all(-1)
    if empty.any():
        came = f"{_row(np.argwhere(empty)[0].tolist())} has none"
        raise ValueError(f"{argument} must give some class a mass in every row; {came}")


def too_few_allowed(num_samples: int, fewest: int) -> ValueError:
    """The error for a mask row that allows fewer classes than are to be drawn."""
    return ValueError(f"num_samples must not exceed the classes that a row allows, {fewest}; got {num_samples}")


def _row(position: Sequence[int]) -> str:
    return f"row {tuple(position)}" if position else "it"


def _number(argument: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{argument} must be a number; got {value!r}")
    return float(value) + 0.0  # -0.0 is 0.0


def _whole(argument: str, value: object, hint: str = "") -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument} must be a whole number of at least 1; got {value!r}{hint}")
    return int(value.__index__())
