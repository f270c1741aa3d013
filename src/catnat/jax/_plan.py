"""A `Parameterization` in one precision: its numbers and its tree, worked out once.

A plan is a constant to every transformation: it is hashable, so `jax.jit` takes it as a static argument, and it holds
no array of JAX's, so that nothing in it belongs to a device or to a running trace.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from jax import Array

from catnat.core.caches import Frozen
from catnat.core.parameterization import Activation, Natural, Parameterization, resolve
from catnat.core.tree import Floats
from catnat.jax._compat import look_up, short

# Past this many entries a table of all paths is not written into a program. Such a tree has the heap's shape, so that
# its paths are arithmetic; or its paths are climbed step by step, which pays where the scores are not at hand.
MAX_PATH_TABLE = 1 << 20

Values = np.ndarray | np.floating | Array


class Plan(Frozen):
    """Constants of one parameterization in one dtype (float32 or float64); nothing changes after it is made."""

    angle: float  # radians a unit of score, from an end of the range
    least: float  # the angle at the joint or at the floor
    constants: tuple[Values, ...]  # what a node must know of itself: vectors [K-1], or numbers where all have the same

    def __init__(self, pi: Parameterization, dtype: np.dtype) -> None:
        of, tree, centers = pi.activation, pi.tree, pi.centers
        assert isinstance(of, Activation) and tree is not None
        if centers.size and np.all(centers == centers[0]):
            centers = centers[:1]
        self.pi, self.dtype, self.activation = pi, dtype, of
        self.paper = of if isinstance(of, Natural) and of.tail == 0 else None  # the activation where it ends
        self.uniform = centers.size <= 1  # whether all nodes have the same centre
        self.centered = bool(np.any(centers != 0))  # whether there is a shift at all
        self.center = _number(centers.astype(dtype))
        self.constants = (self.center,)
        if isinstance(of, Natural):
            least = of.tail or of.floor or 0.0  # a floor below the dtype's smallest number counts as none
            self.angle = math.pi / (2 * of.amplitude)
            self.least = math.asin(math.sqrt(least)) if least >= np.finfo(dtype).tiny else 0.0
        if self.paper is not None:
            lower, lower_rest, upper, upper_rest = self.paper.edges(centers)
            self.constants = (*self._end(lower, lower_rest), *self._end(upper, upper_rest))
        self.tree, self.num_classes, self.num_nodes = tree, tree.num_classes, tree.num_classes - 1
        self.depth, self.is_heap = tree.depth, tree.is_heap
        self.level_sizes = tuple(high - low for low, high in tree.levels)
        shaped = tree.heap_order is not None  # as the heap, or the heap itself
        self.even = shaped and tree.num_classes == 1 << tree.depth  # whether all paths have the same length
        # whether a path costs no more than the scores on it
        self.has_paths = shaped or tree.num_classes * tree.depth <= MAX_PATH_TABLE
        self.made = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and (self.pi, self.dtype) == (other.pi, other.dtype)

    def __hash__(self) -> int:
        return hash((self.pi, self.dtype))

    def __repr__(self) -> str:
        return f"Plan({self.pi}, {self.dtype})"

    def _end(self, values: Floats, rest: Floats) -> tuple[Values, Values]:
        """An end of every node's range, values + rest: a leading part in our dtype and, in radians, what that lacks.

        Were both in the unit of the scores, XLA would add them up before it takes the score off.
        """
        leading = values.astype(self.dtype)
        lacks = ((values - leading.astype(np.float64)) + rest) * self.angle
        return _number(leading), _number(lacks.astype(self.dtype))

    def constants_at(self, nodes: Array | None) -> tuple[Values, ...]:
        """The centre of the given zero-based nodes, or of all; of the paper's activation both ends of the range."""
        if nodes is None or self.uniform:
            return self.constants
        return tuple(look_up(np.asarray(part), nodes) for part in self.constants)

    @cached_property
    def runs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How the classes below every place are put together from runs of 1, 2, 4 ... classes from left to right.

        [K] the classes in that order; for every length the run that each of the places from 2 on takes, [2K-2] by where
        it begins; and [K] where the run begins that stands behind each. K is an empty one.
        """
        size, counts, places = self.num_classes, self.tree.leaf_counts, np.arange(2 * self.num_classes)
        begin = np.where(places % 2 == 1, counts[places - 1], 0)  # what a right branch has on its left
        begin[:2] = 0
        for above in self.tree.jumps:
            begin = begin + begin[above]
        in_order, lengths = np.argsort(begin[self.tree.class_places]), 1 << np.arange(size.bit_length())[:, None]
        # the shorter runs that a place takes come first
        parts = np.where(counts[2:] & lengths, begin[2:] + (counts[2:] & (lengths - 1)), size)
        shifts = np.minimum(np.arange(size) + lengths, size)
        return short(in_order), short(parts), short(shifts)

    @property
    def heap(self) -> Plan:
        """The plan of the same classes on the heap."""
        return Plan(resolve(self.num_classes), self.dtype)

    @property
    def nbytes(self) -> int:
        """What a plan and its tree may come to hold, once all their tables are built."""
        tables = 96 + 16 * self.depth.bit_length() + (4 * self.depth if self.has_paths else 0)
        return 1024 + tables * self.num_classes


def _number(part: np.ndarray) -> Values:
    return part[0] if part.size == 1 else part
