"""What a catnat is: a tree, an activation and a centre, as one frozen value that all backends and functions share."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from inspect import isabstract
from itertools import count
from numbers import Real
from reprlib import repr as brief  # of a million numbers the first few
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from catnat.core.caches import Kept
from catnat.core.errors import check_between, check_choice, check_nonnegative, check_num_classes
from catnat.core.tree import Floats, Tree

DEFAULT_TAIL = 0.1  # the one place where the default stands
DEFAULT_FLOOR = 1e-8
LEAST_TAIL = 1e-6  # nearer to 0, float32 cannot tell the joint from the end of the range
AMPLITUDES = (1e-30, 1e30)  # beyond these a float32 has no slope left


class Activation(ABC):
    """What a node makes of its score x: the log-odds z of its right branch, as a function of x - C.

    z must grow with x, on all reals. Everything else follows from it: a = sigmoid(z), log a, log(1-a), gradients, the
    Fisher information a (1-a) (dz/dx)^2, samples. An activation of your own is a frozen dataclass with these three
    methods, in functions that NumPy, `torch` and `jax.numpy` have under one name: ``xp`` is one of the three.
    """

    @abstractmethod
    def logit(self, offset: Any, xp: Any) -> Any:
        """z at x - C = ``offset``."""

    @abstractmethod
    def slope(self, offset: Any, xp: Any) -> Any:
        """dz/dx there."""

    @abstractmethod
    def inverse(self, logit: Any, xp: Any) -> Any:
        """The x - C at which z is ``logit``."""


@dataclass(frozen=True)
class Sigmoid(Activation):
    """z = x - C, so a(x) = 1 / (1 + exp(-(x - C)))."""

    def logit(self, offset: Any, xp: Any) -> Any:
        """The offset itself."""
        return offset

    def slope(self, offset: Any, xp: Any) -> Any:
        """1."""
        return xp.ones_like(offset)

    def inverse(self, logit: Any, xp: Any) -> Any:
        """The logit itself."""
        return logit


@dataclass(frozen=True)
class Natural(Activation):
    """The family between the sigmoid and the paper's natural activation.

    The natural activation is a(x) = (1 + sin(pi (x - C) / A)) / 2. Its Fisher information is (pi/A)^2 at every score.
    Its log-odds are z = 2 asinh(tan(y/2)) with y = 2 pi (x - C) / A. They end at y = -pi and y = pi, and their slope
    grows without bound on the way there. Here the slope stops growing where a reaches ``tail`` or 1 - ``tail``; beyond,
    z goes on in a straight line. So a is smooth and strictly increasing on all reals, and no score is dead.
    ``tail=0.5`` is the sigmoid, ``tail=0`` the paper's formula.

    Args:
        tail: the probability at which the slope stops growing, 0 or from 1e-6 to 0.5.
        amplitude: A. The default 2 pi gives the slope of the sigmoid at the centre; half of it gives twice the slope.
        floor: for ``tail=0`` only: the least probability that either branch may take, 0 <= floor < 1/2 (default 1e-8).
            It bounds log a from below and its gradient by (pi/A) / sqrt(floor). 0 is the paper's formula to the letter,
            with log a = -inf at the ends; a floor below the smallest number of a dtype counts as 0 there. Outside the
            range, C - A/2 to C + A/2, a stays at its end value and the gradient is 0.
    """

    tail: float = DEFAULT_TAIL  # first: Natural(0.5) is read as a tail
    amplitude: float = 2 * math.pi
    floor: float | None = None
    # Worked out once. Plain fields, because compilers can read the fields of a constant but not call its methods.
    gain: float = field(init=False, repr=False, compare=False)  # dz/dx at the centre: y = gain (x - C)
    joint: float = field(init=False, repr=False, compare=False)  # y where the straight line begins; pi for tail=0
    joint_logit: float = field(init=False, repr=False, compare=False)  # and z there; infinite for tail=0
    steepest: float = field(init=False, repr=False, compare=False)  # dz/dy on the line; infinite for tail=0

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen; this is its one moment of making
        set_field(self, "amplitude", check_between("amplitude", self.amplitude, *AMPLITUDES))
        set_field(self, "tail", check_between("tail", self.tail, LEAST_TAIL, 0.5, also=0.0))
        set_field(self, "gain", 2 * math.pi / self.amplitude)
        set_field(self, "joint_logit", math.log1p(-self.tail) - math.log(self.tail) if self.tail else math.inf)
        set_field(self, "joint", 4 * math.atan(math.tanh(self.joint_logit / 4)))
        set_field(self, "steepest", 0.5 / math.sqrt(self.tail * (1 - self.tail)) if self.tail else math.inf)
        if self.tail > 0 and self.floor is not None:
            said = f"with tail={self.tail:g} no branch has probability 0"
            raise ValueError(f"floor goes with tail=0 only: {said}; got floor={self.floor!r}")
        if self.tail == 0:
            set_field(self, "floor", DEFAULT_FLOOR if self.floor is None else check_nonnegative("floor", self.floor))
            if self.floor >= 0.5:  # type: ignore[operator]
                expected = "lie in [0, 0.5): it is the least probability of a branch"
                raise ValueError(f"floor must {expected}; got {self.floor!r}")

    def __repr__(self) -> str:
        given = {"amplitude": 2 * math.pi, "tail": None, "floor": DEFAULT_FLOOR}
        shown = [(name, getattr(self, name)) for name, default in given.items() if getattr(self, name) != default]
        return f"Natural({', '.join(f'{name}={value!r}' for name, value in shown if value is not None)})"

    def logit(self, offset: Any, xp: Any) -> Any:
        """2 asinh(tan(y/2)), and straight lines beyond the joints. Of the ends for ``tail=0`` backends know more."""
        y = offset * self.gain
        inside = xp.clip(y, -self.joint, self.joint)
        z = 2 * xp.arcsinh(xp.tan(inside / 2))
        return z if self.tail == 0 else z + xp.where(y == inside, 0.0, self.steepest * (y - inside))

    def slope(self, offset: Any, xp: Any) -> Any:
        """gain / cos(y/2), which no longer grows beyond the joints."""
        return self.gain / xp.cos(xp.clip(offset * self.gain, -self.joint, self.joint) / 2)

    def inverse(self, logit: Any, xp: Any) -> Any:
        """4 atan(tanh(z/4)) / gain, and straight lines beyond the joints."""
        inside = xp.clip(logit, -self.joint_logit, self.joint_logit)
        y = 4 * xp.arctan(xp.tanh(inside / 4))
        return (y if self.tail == 0 else y + (logit - inside) / self.steepest) / self.gain

    # -- tail = 0: the ends of the range -------------------------------------------------------------------------

    @property
    def margin(self) -> float:
        """How far inside the ends of the range the floor is met, in units of the score."""
        # a = sin(u)^2 at the angle u = (pi / 2A) * distance
        return math.asin(math.sqrt(self.floor or 0.0)) * 2 * self.amplitude / math.pi

    def edges(self, centers: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Both ends of every node's range, C - A/2 and C + A/2, each as a float64 and what it rounded away.

        Near an end the distance to it is all that matters, so the end must be known to more digits than the score.
        """
        found = []
        for half in (-self.amplitude / 2, self.amplitude / 2):
            total = centers + half
            shift = total - centers
            found += [total, (centers - (total - shift)) + (half - shift)]  # Knuth's exact rounding error of a sum
        return tuple(found)  # type: ignore[return-value]


ACTIVATIONS: dict[str, Activation] = {
    "natural": Natural(),
    "sigmoid": Sigmoid(),
    "paper": Natural(tail=0.0, floor=0.0),
}
_NAMES = ", ".join(map(repr, ACTIVATIONS))
_NUMBERS = count()
_FIRST: WeakValueDictionary[tuple[object, ...], Parameterization] = WeakValueDictionary()  # by what they are made of
_ALIVE: WeakValueDictionary[str, Parameterization] = WeakValueDictionary()  # the same by their numbers


@dataclass(frozen=True)
class Parameterization:
    """K classes on a tree: which tree, which activation, which centre.

    Args:
        num_classes: K >= 1. The scores have K-1 entries.
        activation: ``"natural"`` (our default tail), ``"sigmoid"``, ``"paper"`` (the paper's natural activation to the
            letter), or an `Activation` such as ``Natural(tail=0.01)``.
        tree: a `Tree` of K classes; None is the balanced heap.
        center: the C of every node. ``"uniform"`` shifts each node so that zero scores give every class 1/K; a number
            is the paper's C, the same everywhere; a sequence of K-1 numbers sets it node by node.

    Example:
        >>> import catnat
        >>> catnat.Parameterization(18, "sigmoid").num_nodes
        17
    """

    num_classes: int
    activation: Activation | str = "natural"
    tree: Tree | None = None
    center: str | float | tuple[float, ...] = "uniform"
    _hash: int = field(init=False, repr=False, compare=False)
    number: str = field(init=False, repr=False, compare=False)  # of all that are equal, for `numbered`
    _first: Parameterization | None = field(init=False, repr=False, compare=False)  # of these, so that it lives on

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen; this is its one moment of making
        set_field(self, "num_classes", check_num_classes(self.num_classes))
        if isinstance(self.activation, str):
            check_choice("activation", self.activation, tuple(ACTIVATIONS))
            set_field(self, "activation", ACTIVATIONS[self.activation])
        elif not isinstance(self.activation, Activation):
            meant = _meant(self.activation)
            hint = "" if meant is None else f": write {meant}"
            raise TypeError(f"activation must be {_NAMES}, or a catnat.Activation; got {brief(self.activation)}{hint}")
        if self.tree is None:
            set_field(self, "tree", Tree.balanced(self.num_classes))
        elif not isinstance(self.tree, Tree):
            hint = ": write Tree.from_nested(...)" if isinstance(self.tree, (list, tuple)) else ""
            raise TypeError(f"tree must be a catnat.Tree or None; got {brief(self.tree)}{hint}")
        elif self.tree.num_classes != self.num_classes:
            raise ValueError(f"tree must have num_classes = {self.num_classes} classes; it has {self.tree.num_classes}")
        if type(self.activation) not in (Natural, Sigmoid):
            check_activation(self.activation)
        set_field(self, "center", self._checked_center())
        # it is looked up at every call, so hash it once
        set_field(self, "_hash", hash((self.num_classes, self.activation, self.tree, self.center)))
        first = _FIRST.setdefault((self.num_classes, self.activation, self.tree, self.center), self)
        set_field(self, "_first", None if first is self else first)
        set_field(self, "number", f"#{next(_NUMBERS)}" if first is self else first.number)
        _ALIVE.setdefault(self.number, first)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Parameterization({repr_arguments(self)})"

    def __reduce__(self) -> tuple[object, ...]:
        # made anew: hashes differ between processes, and copied arrays could be written to
        tree = None if self.tree == Tree.balanced(self.num_classes) else self.tree
        return (Parameterization, (self.num_classes, self.activation, tree, self.center))

    @cached_property
    def definition(self) -> dict[str, float]:
        """Which function this is, in numbers, which are equal for two that are made alike or of equal activations.

        So `"sigmoid"` and ``Natural(tail=0.5)`` are equal. What is no number stands as 52 bits of a hash; of an
        activation of the user's own that is what its logit gives, to digits on which machines agree.
        """
        assert self.tree is not None and isinstance(self.activation, Activation)
        of = Natural(tail=0.5) if type(self.activation) is Sigmoid else self.activation
        family = type(of) is Natural
        known = self.tree == Tree.balanced(self.num_classes)
        first = float(self.centers[0]) if self.num_nodes else 0.0
        everywhere = bool(np.all(self.centers == first))
        return {
            "num_classes": float(self.num_classes),
            "activation": 0.0 if family else _digest(" ".join(f"{z:.6g}" for z in of.logit(_PROBES, np)).encode()),
            "tail": of.tail if isinstance(of, Natural) else 0.0,
            "amplitude": of.amplitude if isinstance(of, Natural) else 0.0,
            "floor": (of.floor or 0.0) if isinstance(of, Natural) else 0.0,
            "tree": 0.0 if known else _digest(self.tree.class_places.tobytes()),
            "center": first if everywhere else 0.0,
            # the name where there is one: the numbers' last digits are the machine's
            "centers": 0.0 if everywhere else _digest(repr(self.center).encode()),
        }

    @property
    def num_nodes(self) -> int:
        """K-1, the number of scores."""
        return self.num_classes - 1

    @cached_property
    def centers(self) -> Floats:
        """[K-1] the C of every node, in float64."""
        if self.center == "uniform":
            assert self.tree is not None and isinstance(self.activation, Activation)
            left, right = self.tree.leaf_counts[2::2], self.tree.leaf_counts[3::2]
            centers = -self.activation.inverse(np.log(right) - np.log(left), np)
            centers[left == right] = 0.0  # exactly, so that backends can skip the shift
            _check_finite(centers, "uniform")
        else:  # one number for all nodes, or one for each
            centers = np.full(self.num_nodes, self.center, dtype=np.float64)
        centers.flags.writeable = False
        return centers

    def _checked_center(self) -> str | float | tuple[float, ...]:
        """The centre as a name, a float or a tuple of floats; or raise."""
        center: Any = self.center
        if isinstance(center, str):
            check_choice("center", center, ("uniform",))
            return center
        if isinstance(center, Real) and not isinstance(center, bool):
            center = float(center) + 0.0  # -0.0 is 0.0
            _check_finite(np.float64(center), center)
            return center
        try:
            values = None if np.ndim(center) != 1 else tuple(float(c) + 0.0 for c in center)
        except (TypeError, ValueError):  # no numbers
            values = None
        if values is None:
            raise TypeError(f"center must be 'uniform', a number or a sequence of numbers; got {brief(center)}")
        if len(values) != self.num_nodes:
            raise ValueError(f"center must hold num_classes - 1 = {self.num_nodes} values; got {len(values)}")
        _check_finite(np.array(values), center)
        return values


def _check_finite(centers: Any, given: object) -> None:
    if not np.isfinite(centers).all():
        raise ValueError(f"center must be finite; got {brief(given)}")


def _digest(given: bytes) -> float:
    """52 bits of a hash, as a whole number that a float64 holds exactly."""
    return float(int.from_bytes(sha256(given).digest()[:8], "big") >> 12)


# Where a user's own activation is looked at: near its centre, at no round number, where kinks may be; and far out.
_OFFSETS, _STEP = np.linspace(-7.9, 8.1, 41) / np.e, 1e-6
_PROBES = np.append(_OFFSETS, np.outer((-1, 1), (1e-3, 10.0, 100.0)))


@lru_cache(maxsize=256)
def check_activation(of: Activation) -> None:
    """Raise unless slope and inverse are those of the logit: backends trust them where they do not differentiate."""
    with np.errstate(all="ignore"):
        rise = of.logit(_OFFSETS + _STEP, np) - of.logit(_OFFSETS - _STEP, np)
        offsets = _OFFSETS[np.isfinite(rise)]  # the others are beyond the ends of its range
        expected = {"slope": rise[np.isfinite(rise)] / (2 * _STEP), "inverse": offsets}
        found = {"slope": of.slope(offsets, np), "inverse": of.inverse(of.logit(offsets, np), np)}
    for name, values in found.items():
        size = np.abs(expected[name])
        close = np.abs(values - expected[name]) <= 1e-4 * np.maximum(size, size.mean())
        close |= (name == "inverse") & ~np.isfinite(values)  # so far up that log-odds have no more digits
        if not close.all():
            i = close.argmin()
            said = f"at an offset of {offsets[i]:.4g} the logit says {expected[name][i]:.6g}"
            came = f"got {np.broadcast_to(values, close.shape)[i]:.6g}"
            raise ValueError(f"{type(of).__name__}.{name} must be that of its logit: {said}; {came}")


def repr_arguments(parameterization: object, arrays: dict[str, Any] | None = None, **settings: Any) -> str:
    """What a `repr` lists: arrays by their shapes, then the parameterization, then settings; None is left out."""
    shown = {name: list(a.shape) if hasattr(a, "shape") else a for name, a in (arrays or {}).items()}
    pi = resolve(parameterization) if isinstance(parameterization, int) else parameterization
    if isinstance(pi, Parameterization):
        size, known = pi.num_classes, {Tree.chain(pi.num_classes): "chain", Tree.balanced(pi.num_classes): "balanced"}
        numbers = f"<{size - 1} numbers>" if isinstance(pi.center, tuple) and size > 9 else pi.center
        shown |= {"num_classes": size, "activation": pi.activation, "tree": known.get(pi.tree, pi.tree)}  # type: ignore[arg-type]
        shown["center"] = None if pi.center == "uniform" else numbers
    else:
        shown["parameterization"] = pi  # one per part, or what JAX has put in its place
    shown |= {name: value if value is None else repr(value) for name, value in settings.items()}
    return ", ".join(f"{name}={value}" for name, value in shown.items() if value is not None)


ParameterizationLike = Parameterization | int


def numbered(given: Any) -> Any:
    """What has this number, or as it came: compilers take words for constants, and equal words for the same one."""
    return _ALIVE.get(given, given) if isinstance(given, str) else given


def resolve(parameterization: ParameterizationLike) -> Parameterization:
    """A `Parameterization` from one, or from the number of classes: the default activation on the balanced tree."""
    if isinstance(parameterization, Parameterization):
        return parameterization
    if not isinstance(parameterization, (bool, np.bool_)):
        with suppress(TypeError):  # tensors and arrays of several numbers have an __index__ too
            number = operator.index(parameterization)
            found: Parameterization = _DEFAULTS[number]
            return found
    if isinstance(parameterization, str):
        check_choice("activation", parameterization, tuple(ACTIVATIONS))
    meant = "activation" if parameterization is None else _meant(parameterization)
    size = parameterization.num_classes if isinstance(parameterization, Tree) else "num_classes"
    hint = "" if meant is None else f": write catnat.Parameterization({size}, {meant})"
    if hint and isinstance(parameterization, float):
        hint += ", or the number of classes before a temperature"
    came = f"{brief(parameterization)}{hint}"
    raise TypeError(f"parameterization must be the number of classes or a catnat.Parameterization; got {came}")


# of so many classes; with its tree and its centres
_DEFAULTS = Kept(lambda pi: 136 * pi.num_classes, Parameterization)


def parts_of(nvec: Iterable[ParameterizationLike]) -> tuple[Parameterization, ...]:
    """The parameterizations of several variables side by side, from one or a number of classes each."""
    if not isinstance(nvec, Iterable) or isinstance(nvec, str):
        raise TypeError(f"nvec must be a sequence of numbers of classes; got {nvec!r}")
    parts = tuple(map(resolve, nvec))
    if not parts:
        raise ValueError("nvec must name at least one part; got none")
    return parts


def _meant(given: object) -> str | None:
    """How to write what was probably meant."""
    if isinstance(given, Tree):
        return "tree=..."
    if isinstance(given, (str, Activation)):
        return repr(given)
    if isinstance(given, type) and issubclass(given, Activation) and not isabstract(given):
        return f"{given.__name__}()"
    return f"Natural(tail={given:g})" if isinstance(given, (float, np.floating)) and 0 <= given <= 0.5 else None
