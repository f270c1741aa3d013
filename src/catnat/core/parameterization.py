"""What a catnat is: a tree, an activation and a centre, as one frozen value.

A `Parameterization` is the one argument that every function, module and distribution shares, in every backend. It is
hashable, so compilers may treat it as a constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from catnat.core.errors import SATURATIONS, check_choice, check_nonnegative, check_num_classes, check_positive
from catnat.core.tree import Floats, Tree

DEFAULT_FLOOR = 1e-8


@dataclass(frozen=True)
class Sigmoid:
    """a(x) = 1 / (1 + exp(-(x - C)))."""

    def inverse(self, probability: Floats) -> Floats:
        """The x - C at which a is ``probability``."""
        return np.asarray(np.log(probability) - np.log1p(-probability))


@dataclass(frozen=True)
class Natural:
    """a(x) = (1 + sin(pi (x - C) / A)) / 2 between C - A/2 and C + A/2: its Fisher information is (pi/A)^2, constant.

    Args:
        amplitude: A, the width of the range. The default 2 pi gives the slope of the sigmoid at the centre.
        saturation: what happens outside the range.

            - ``"clip"``: a stays at its end value and the gradient is 0 (the paper).
            - ``"revive"``: as clip, but a score's gradient is let through where a descent step would lead back inside.
              That gradient is as steep as at the floor, (pi/A) / sqrt(floor), so give it a floor of 1e-6 or so; and it
              is a rule, not a derivative: an estimator that is unbiased elsewhere is not so outside the range.
            - ``"reflect"``: the sine goes on. The Fisher information is then constant everywhere but on the floor, and
              nothing dies, but a is no longer monotone.
        floor: the least probability that either branch may take, 0 <= floor < 1/2. It bounds log a from below and
            its gradient by (pi/A) / sqrt(floor). 0 is the paper's formula to the letter, with log a = -inf at the ends;
            a floor below the smallest number of a dtype counts as 0 there.
    """

    amplitude: float = 2 * math.pi
    saturation: str = "clip"
    floor: float = DEFAULT_FLOOR

    def __post_init__(self) -> None:
        object.__setattr__(self, "amplitude", check_positive("amplitude", self.amplitude))
        check_choice("saturation", self.saturation, SATURATIONS)
        object.__setattr__(self, "floor", check_nonnegative("floor", self.floor))
        if self.floor >= 0.5:
            raise ValueError(f"floor must lie in [0, 0.5): it is the least probability of a branch; got {self.floor!r}")

    @property
    def margin(self) -> float:
        """How far inside the ends of the range the floor is met, in units of the score."""
        # a = sin(u)^2 at the angle u = (pi / 2A) * distance
        return math.asin(math.sqrt(self.floor)) * 2 * self.amplitude / math.pi

    def edges(self, centers: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Both ends of every node's range, C - A/2 and C + A/2, each as a float64 and what it rounded away.

        Near an end the distance to it is all that matters, so the end must be known to more digits than the score.
        Where the activation reflects, the range is the one nearest to 0 of all that are whole periods away.
        """
        centers = self.near_zero(centers)
        half = np.full_like(centers, self.amplitude / 2)
        return (*two_sum(centers, -half), *two_sum(centers, half))

    def near_zero(self, centers: Floats) -> Floats:
        """The centres less whole periods, where the activation has a period; exact."""
        if self.saturation != "reflect":
            return centers
        period = 2 * self.amplitude
        left = np.fmod(centers, period)
        return np.where(np.abs(left) > self.amplitude, left - np.copysign(period, left), left)

    def inverse(self, probability: Floats) -> Floats:
        """The x - C at which a is ``probability``."""
        # atan2 keeps every digit near both ends, where asin(2p - 1) loses half of them
        angle = np.arctan2(np.sqrt(probability), np.sqrt(1 - probability)) - math.pi / 4
        return angle * 2 * self.amplitude / math.pi


Activation = Sigmoid | Natural
ACTIVATIONS: dict[str, Activation] = {"natural": Natural(), "sigmoid": Sigmoid()}


@dataclass(frozen=True)
class Parameterization:
    """K classes on a tree: which tree, which activation, which centre.

    Args:
        num_classes: K >= 1. The scores have K-1 entries.
        activation: ``"natural"``, ``"sigmoid"``, or a `Natural` / `Sigmoid` value.
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
    _centers: Floats = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen; this is its one moment of making
        set_field(self, "num_classes", check_num_classes(self.num_classes))
        if isinstance(self.activation, str):
            check_choice("activation", self.activation, tuple(ACTIVATIONS))
            set_field(self, "activation", ACTIVATIONS[self.activation])
        elif not isinstance(self.activation, Activation):
            raise TypeError(
                f"activation must be 'natural', 'sigmoid', or a Natural or Sigmoid value; got {self.activation!r}"
            )
        if self.tree is None:
            set_field(self, "tree", Tree.balanced(self.num_classes))
        elif not isinstance(self.tree, Tree):
            raise TypeError(f"tree must be a catnat.Tree or None; got {self.tree!r}")
        elif self.tree.num_classes != self.num_classes:
            raise ValueError(f"tree must have num_classes = {self.num_classes} classes; it has {self.tree.num_classes}")
        if not isinstance(self.center, str) and isinstance(self.center, (Sequence, np.ndarray)):
            with suppress(TypeError, ValueError):  # no numbers: refused below
                set_field(self, "center", tuple(float(c) for c in self.center))
        set_field(self, "_centers", self._compute_centers())
        # it is looked up at every call, so hash it once
        set_field(self, "_hash", hash((self.num_classes, self.activation, self.tree, self.center)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        # made anew: hashes differ between processes, and copied arrays could be written to
        return (Parameterization, (self.num_classes, self.activation, self.tree, self.center))

    @property
    def num_nodes(self) -> int:
        """K-1, the number of scores."""
        return self.num_classes - 1

    @property
    def centers(self) -> Floats:
        """[K-1] the C of every node, in float64."""
        return self._centers

    def _compute_centers(self) -> Floats:
        if isinstance(self.center, str):
            check_choice("center", self.center, ("uniform",))
            assert self.tree is not None and not isinstance(self.activation, str)
            counts = self.tree.leaf_counts
            nodes = np.arange(1, self.num_classes)
            right = counts[2 * nodes + 1] / counts[self.tree.node_places[nodes]]
            centers = -self.activation.inverse(right)
            centers[right == 0.5] = 0.0  # exactly, so that backends can skip the shift
        elif isinstance(self.center, tuple) and all(isinstance(c, float) for c in self.center):
            if len(self.center) != self.num_nodes:
                raise ValueError(f"center must hold num_classes - 1 = {self.num_nodes} values; got {len(self.center)}")
            centers = np.array(self.center, dtype=np.float64)
        elif isinstance(self.center, (int, float)) and not isinstance(self.center, bool):
            centers = np.full(self.num_nodes, float(self.center))
        else:
            raise TypeError(f"center must be 'uniform', a number or a sequence of numbers; got {self.center!r}")
        if not np.isfinite(centers).all():
            raise ValueError(f"center must be finite; got {self.center!r}")
        centers.flags.writeable = False
        return centers


def two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """a + b as the rounded sum and its exact rounding error."""
    total = a + b
    shift = total - a
    return total, (a - (total - shift)) + (b - shift)


def resolve(parameterization: Parameterization | Activation | str, num_classes: int) -> Parameterization:
    """A `Parameterization` for ``num_classes`` classes from one, or from the name of an activation."""
    if isinstance(parameterization, Parameterization):
        return parameterization
    if isinstance(parameterization, (Sigmoid, Natural)):
        return Parameterization(num_classes, parameterization)
    if isinstance(parameterization, str):
        check_choice("parameterization", parameterization, tuple(ACTIVATIONS))
        return Parameterization(num_classes, parameterization)
    raise TypeError(
        "parameterization must be 'natural', 'sigmoid', a Natural or Sigmoid value, or a catnat.Parameterization; "
        f"got {parameterization!r}"
    )
