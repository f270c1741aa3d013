"""A `Parameterization` in one precision: its numbers and its tree, worked out once.

A plan is a constant to every transformation: it is hashable, so `jax.jit` takes it as a static argument, and it holds
no array of JAX's, so that nothing in it belongs to a device or to a running trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jax import Array

from catnat.core.parameterization import Activation, Natural, Parameterization, resolve
from catnat.core.tree import Floats, Tree
from catnat.jax._compat import look_up, short

# Past this many entries a table of all paths is not written into a program. Such a tree has the heap's shape, so that
# its paths are arithmetic; or its paths are climbed step by step, which pays where the scores are not at hand.
MAX_PATH_TABLE = 1 << 20

Values = np.ndarray | np.floating | Array


class Ends(NamedTuple):
    """Where every node's range has its ends: vectors [K-1], or numbers where all nodes have the same.

    An end is the sum of a leading number and of what that lacks, which is kept in radians: were both in the unit of the
    scores, XLA would add them up before it takes the score off.
    """

    lower: Values
    lower_rest: Values
    upper: Values
    upper_rest: Values


@dataclass(frozen=True)
class Plan:
    """Constants of one parameterization in one dtype (float32 or float64)."""

    pi: Parameterization
    dtype: np.dtype
    num_classes: int = field(init=False, repr=False, compare=False)
    num_nodes: int = field(init=False, repr=False, compare=False)
    # the activation: vectors [K-1], or numbers where every node has the same
    activation: Activation = field(init=False, repr=False, compare=False)
    uniform: bool = field(init=False, repr=False, compare=False)  # whether all nodes have the same centre
    centered: bool = field(init=False, repr=False, compare=False)  # whether there is a shift at all
    center: Values = field(init=False, repr=False, compare=False)
    angle: float = field(init=False, repr=False, compare=False)  # radians a unit of score, from an end of the range
    least: float = field(init=False, repr=False, compare=False)  # the angle at the joint or at the floor
    paper: Natural | None = field(init=False, repr=False, compare=False)  # the activation where it ends
    ends: Ends = field(init=False, repr=False, compare=False)
    # the tree
    tree: Tree = field(init=False, repr=False, compare=False)
    depth: int = field(init=False, repr=False, compare=False)
    is_heap: bool = field(init=False, repr=False, compare=False)
    level_sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    even: bool = field(init=False, repr=False, compare=False)  # whether all paths have the same length
    has_paths: bool = field(init=False, repr=False, compare=False)  # whether a path costs no more than the scores on it

    def __post_init__(self) -> None:
        of, tree = self.pi.activation, self.pi.tree
        assert isinstance(of, Activation) and tree is not None
        centers = self.pi.centers
        if centers.size and np.all(centers == centers[0]):
            centers = centers[:1]
        found = vars(self)  # the dataclass is frozen; this is its one moment of making
        found |= {"num_classes": tree.num_classes, "num_nodes": tree.num_nodes, "activation": of, "paper": None}
        found |= {"uniform": centers.size <= 1, "centered": bool(np.any(centers != 0))}
        found |= {"center": _number(centers.astype(self.dtype))}
        if isinstance(of, Natural):
            least = of.tail or of.floor or 0.0  # a floor below the dtype's smallest number counts as none
            found["angle"] = math.pi / (2 * of.amplitude)
            found["least"] = math.asin(math.sqrt(least)) if least >= np.finfo(self.dtype).tiny else 0.0
            if of.tail == 0:
                lower, lower_rest, upper, upper_rest = of.edges(centers)
                parts = *self._split(lower, lower_rest), *self._split(upper, upper_rest)
                found |= {"paper": of, "ends": Ends(*map(_number, parts))}
        is_heap = tree.heap_order is not None  # or of its shape
        found |= {"tree": tree, "depth": tree.depth, "is_heap": tree.is_heap}
        found |= {"level_sizes": tuple(high - low for low, high in tree.levels)}
        found |= {"even": is_heap and tree.num_classes == 1 << tree.depth}
        found |= {"has_paths": is_heap or tree.num_classes * tree.depth <= MAX_PATH_TABLE}

    def _split(self, values: Floats, rest: Floats) -> tuple[np.ndarray, np.ndarray]:
        """values + rest as a leading part in our dtype and, in radians, what that lacks."""
        leading = values.astype(self.dtype)
        return leading, (((values - leading.astype(np.float64)) + rest) * self.angle).astype(self.dtype)

    def center_at(self, nodes: Array | None) -> Values:
        """The centres of the given zero-based nodes, or of all."""
        return self.center if nodes is None or self.uniform else look_up(np.asarray(self.center), nodes)

    def ends_at(self, nodes: Array | None) -> Ends:
        """The ends of the given zero-based nodes, or of all."""
        if nodes is None or self.uniform:
            return self.ends
        return Ends(*(look_up(np.asarray(part), nodes) for part in self.ends))

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
