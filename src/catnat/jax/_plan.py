"""A `Parameterization` in one precision: its numbers and index tables as NumPy arrays, built once and cached.

A plan is a constant to every transformation: it is hashable, so `jax.jit` takes it as a static argument, and it holds
no array of JAX's, so that nothing in it belongs to a device or to a running trace.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from jax import Array

from catnat.core.parameterization import Activation, Natural, Parameterization, resolve
from catnat.core.tree import Floats
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
    near_center: Values  # the centre minus whole periods, where the activation has a period


class Plan:
    """Constants of one parameterization in one dtype (float32 or float64)."""

    def __init__(self, pi: Parameterization, dtype: np.dtype) -> None:
        assert pi.tree is not None
        self.pi, self.dtype = pi, dtype
        self._key = (pi, dtype)
        self.num_classes, self.num_nodes = pi.num_classes, pi.num_nodes
        self._plan_activation(pi)
        tree = pi.tree
        self.tree, self.depth, self.is_heap = tree, tree.depth, tree.is_heap
        self.level_sizes = tuple(high - low for low, high in tree.levels)
        # all paths have the same length
        self.even = tree.heap_order is not None and tree.num_classes == 1 << tree.depth
        self.has_paths = tree.heap_order is not None or tree.num_classes * tree.depth <= MAX_PATH_TABLE

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Plan) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def _split(self, values: Floats, rest: Floats) -> tuple[np.ndarray, np.ndarray]:
        """values + rest as a leading part in our dtype and, in radians, what that lacks."""
        leading = values.astype(self.dtype)
        return leading, (((values - leading.astype(np.float64)) + rest) * self.angle).astype(self.dtype)

    def _plan_activation(self, pi: Parameterization) -> None:
        """Per-node constants: [K-1] vectors, or numbers where every node has the same."""
        assert isinstance(pi.activation, Activation)
        self.activation = of = pi.activation
        centers = pi.centers
        if centers.size and np.all(centers == centers[0]):
            centers = centers[:1]
        self.centered = bool(np.any(centers != 0))  # whether there is a shift at all
        self.uniform = centers.size <= 1  # whether all nodes have the same
        self.center = _plain(centers.astype(self.dtype))
        self.paper = of if isinstance(of, Natural) and of.tail == 0 else None
        self.reflects = self.paper is not None and self.paper.saturation == "reflect"
        self.revives = self.paper is not None and self.paper.saturation == "revive"
        if isinstance(of, Natural):
            self.angle = math.pi / (2 * of.amplitude)  # radians a unit of score, measured from an end
            # the angle at the joint or at the floor; a floor below the dtype's smallest number counts as none
            least = of.tail or of.floor or 0.0
            self.least = math.asin(math.sqrt(least)) if least >= np.finfo(self.dtype).tiny else 0.0
        if self.paper is not None:
            lower, lower_rest, upper, upper_rest = self.paper.edges(centers)
            parts = (*self._split(lower, lower_rest), *self._split(upper, upper_rest))
            self.ends = Ends(*map(_plain, (*parts, self.paper.near_zero(centers).astype(self.dtype))))
            self.period = float(self.dtype.type(2 * self.paper.amplitude))
            self.period_rest = 2 * self.paper.amplitude - self.period

    def center_at(self, nodes: Array | None) -> Values:
        """The centres of the given zero-based nodes, or of all."""
        return self.center if nodes is None or self.uniform else look_up(np.asarray(self.center), nodes)

    def ends_at(self, nodes: Array | None) -> Ends:
        """The ends of the given zero-based nodes, or of all."""
        if nodes is None or self.uniform:
            return self.ends
        return Ends(*(look_up(np.asarray(part), nodes) for part in self.ends))

    # -- tables of trees that are no heap ------------------------------------------------------------------------

    @cached_property
    def node_at(self) -> np.ndarray:
        """[2K] which node is at every place; 0 where a class is."""
        found = np.zeros(2 * self.num_classes, dtype=np.int32)
        found[self.tree.node_places] = np.arange(self.num_classes)
        return found

    # In int32: JAX misreads the same int64 array where both settings of jax_enable_x64 come by in one process.

    @cached_property
    def class_places(self) -> np.ndarray:
        """[K] the place of every class."""
        return self.tree.class_places.astype(np.int32)

    @cached_property
    def place_of_node(self) -> np.ndarray:
        """[K] the place of every node, counted from 1; 0 for none."""
        return self.tree.node_places.astype(np.int32)

    @cached_property
    def heap_order(self) -> np.ndarray | None:
        """[K] which class of the heap sits where class k sits; None in a tree of another shape."""
        order = self.tree.heap_order
        return None if order is None else order.astype(np.int32)

    @cached_property
    def class_at(self) -> np.ndarray:
        """[2K] which class is at every place; K where none is."""
        found = np.full(2 * self.num_classes, self.num_classes, dtype=np.int32)
        found[self.class_places] = np.arange(self.num_classes)
        return found

    @cached_property
    def node_places(self) -> np.ndarray:
        """[K-1] the place of every node."""
        return self.tree.node_places[1:].astype(np.int32)

    @cached_property
    def jumps(self) -> tuple[np.ndarray, ...]:
        """Pointer doubling: round r adds to every place what stands 2^r places above it."""
        rounds, above = [], self.tree.parents.astype(np.int32)
        for _ in range(max(self.depth - 1, 0).bit_length()):
            rounds.append(above)
            above = above[above]
        return tuple(rounds)

    @cached_property
    def rungs(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """For every level, the classes right below it, and the order of its places in (nodes below, those classes)."""
        found = []
        for low, high in self.tree.levels:
            nodes = self.node_at[2 * low : 2 * high]
            order = np.argsort(nodes == 0, kind="stable")  # the places of nodes first
            found.append((self.class_at[2 * low : 2 * high][nodes == 0], np.argsort(order).astype(np.int32)))
        return tuple(found)


def _plain(part: np.ndarray) -> Values:
    return part[0] if part.size == 1 else part


def plan_for(parameterization: Parameterization | Activation | str, num_classes: int, dtype: np.dtype) -> Plan:
    """The plan of a parameterization, or of that activation on the balanced tree of ``num_classes`` classes."""
    try:
        return _cached(parameterization, num_classes, dtype)
    except TypeError:  # not hashable, so not a parameterization
        resolve(parameterization, num_classes)
        raise


@lru_cache(maxsize=1024)
def _cached(parameterization: Parameterization | Activation | str, num_classes: int, dtype: np.dtype) -> Plan:
    return Plan(resolve(parameterization, num_classes), dtype)
