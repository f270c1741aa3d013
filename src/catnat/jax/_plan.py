"""A `Parameterization` in one precision: its numbers and index tables as NumPy arrays, built once and cached.

A plan is a constant to every transformation: it is hashable, so `jax.jit` takes it as a static argument, and it holds
no array of JAX's, so that nothing in it belongs to a device or to a running trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jax import Array

from catnat.core.parameterization import Activation, Natural, Parameterization, resolve
from catnat.core.tree import Floats, Tree
from catnat.jax._compat import look_up

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
    """Constants of one parameterization in one dtype (float32 or float64); what is derived is worked out when used.

    Tables are in int32: JAX misreads the same int64 array where both settings of jax_enable_x64 come by in one process.
    """

    pi: Parameterization
    dtype: np.dtype

    @property
    def num_classes(self) -> int:
        """K."""
        return self.pi.num_classes

    @property
    def num_nodes(self) -> int:
        """K-1."""
        return self.pi.num_classes - 1

    # -- the activation: vectors [K-1], or numbers where every node has the same ----------------------------------

    @property
    def activation(self) -> Activation:
        """What a node makes of its score."""
        assert isinstance(self.pi.activation, Activation)
        return self.pi.activation

    @cached_property
    def paper(self) -> Natural | None:
        """The activation where its range ends, at ``tail=0``."""
        of = self.activation
        return of if isinstance(of, Natural) and of.tail == 0 else None

    @cached_property
    def centered(self) -> bool:
        """Whether there is a shift at all."""
        return bool(np.any(self._centers != 0))

    @cached_property
    def uniform(self) -> bool:
        """Whether all nodes have the same centre."""
        return self._centers.size <= 1

    @cached_property
    def _centers(self) -> Floats:
        centers = self.pi.centers
        return centers[:1] if centers.size and np.all(centers == centers[0]) else centers

    @cached_property
    def center(self) -> Values:
        """The C of every node."""
        return _number(self._centers.astype(self.dtype))

    @cached_property
    def angle(self) -> float:
        """Radians a unit of score, measured from an end."""
        assert isinstance(self.activation, Natural)
        return math.pi / (2 * self.activation.amplitude)

    @cached_property
    def least(self) -> float:
        """The angle at the joint or at the floor; a floor below the dtype's smallest number counts as none."""
        assert isinstance(self.activation, Natural)
        least = self.activation.tail or self.activation.floor or 0.0
        return math.asin(math.sqrt(least)) if least >= np.finfo(self.dtype).tiny else 0.0

    @cached_property
    def ends(self) -> Ends:
        """The ends of the paper's range."""
        assert self.paper is not None
        lower, lower_rest, upper, upper_rest = self.paper.edges(self._centers)
        return Ends(*map(_number, (*self._split(lower, lower_rest), *self._split(upper, upper_rest))))

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

    # -- the tree ------------------------------------------------------------------------------------------------

    @property
    def tree(self) -> Tree:
        """Which class hangs where."""
        assert self.pi.tree is not None
        return self.pi.tree

    @property
    def depth(self) -> int:
        """Length of the longest path."""
        return self.tree.depth

    @property
    def is_heap(self) -> bool:
        """Whether levels are contiguous slices."""
        return self.tree.is_heap

    @cached_property
    def level_sizes(self) -> tuple[int, ...]:
        """How many nodes every level has."""
        return tuple(high - low for low, high in self.tree.levels)

    @cached_property
    def even(self) -> bool:
        """Whether all paths have the same length."""
        return self.heap_order is not None and self.num_classes == 1 << self.depth

    @cached_property
    def has_paths(self) -> bool:
        """Whether a path costs no more than the scores on it."""
        return self.heap_order is not None or self.num_classes * self.depth <= MAX_PATH_TABLE

    @cached_property
    def heap_order(self) -> np.ndarray | None:
        """[K] which class of the heap sits where class k sits; None in a tree of another shape."""
        order = self.tree.heap_order
        return None if order is None else order.astype(np.int32)

    @cached_property
    def class_places(self) -> np.ndarray:
        """[K] the place of every class."""
        return self.tree.class_places.astype(np.int32)

    @cached_property
    def node_places(self) -> np.ndarray:
        """[K] the place of every node, counted from 1; 0 for none."""
        return self.tree.node_places.astype(np.int32)

    @cached_property
    def node_at(self) -> np.ndarray:
        """[2K] which node is at every place; 0 where a class is."""
        return self.tree.node_at.astype(np.int32)

    @cached_property
    def class_at(self) -> np.ndarray:
        """[2K] which class is at every place; K where none is."""
        return self.tree.class_at.astype(np.int32)

    @cached_property
    def jumps(self) -> tuple[np.ndarray, ...]:
        """Pointer doubling: round r adds to every place what stands 2^r places above it."""
        return tuple(above.astype(np.int32) for above in self.tree.jumps)

    @cached_property
    def rungs(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """For every level, the classes right below it, and the order of its places in (nodes below, those classes)."""
        return tuple((classes.astype(np.int32), order.astype(np.int32)) for classes, order in self.tree.rungs)

    @cached_property
    def runs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """[K] the classes from left to right; [2K] where among them those below every place begin; and how many."""
        counts, places = self.tree.leaf_counts, np.arange(2 * self.num_classes)
        first = np.where(places % 2 == 1, counts[places - 1], 0)  # what a right branch has on its left
        first[:2] = 0
        for above in self.tree.jumps:
            first = first + first[above]
        order = np.argsort(first[self.tree.class_places])
        return order.astype(np.int32), first.astype(np.int32), counts.astype(np.int32)

    @property
    def heap(self) -> Plan:
        """The plan of the same classes on the heap."""
        return Plan(resolve(self.num_classes), self.dtype)

    @property
    def nbytes(self) -> int:
        """What a plan and its tree may come to hold, once all their tables are built."""
        tables = 128 + 24 * self.depth.bit_length() + (4 * self.depth if self.has_paths else 0)
        return 1024 + tables * self.num_classes


def _number(part: np.ndarray) -> Values:
    return part[0] if part.size == 1 else part
