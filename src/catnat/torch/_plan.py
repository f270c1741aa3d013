"""A `Parameterization` on a device: its numbers and index tables as tensors, built once and cached.

A plan is a constant to torch.compile and torch.export, so everything in it is made at once, outside of any tracing.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from catnat.core.parameterization import Activation, Natural, Parameterization, ParameterizationLike, resolve
from catnat.core.tree import Floats, Tree
from catnat.torch._compat import plainly

# Past this many entries a table of all paths is not kept: a tree that is no heap is then so deep that a path is no
# shortcut.
MAX_PATH_TABLE = 1 << 21


UNASKED = "unasked"
# The classes of all activations that have a plan, by name. To a compiler a plan is a constant, whose fields it can read
# but whose methods it cannot call; a class that it finds here, it can.
KINDS: dict[str, type[Activation]] = {}


class Paper(NamedTuple):
    """The ends of the nodes' ranges for ``tail=0``: [K-1] vectors, or [1] where every node has the same."""

    lower: Tensor
    lower_rest: Tensor
    upper: Tensor
    upper_rest: Tensor
    angle: float  # radians per unit of score, measured from an end
    margin: float  # how far inside an end the floor is met


class Plan:
    """Constants of one parameterization in one dtype (float32 or float64) on one device."""

    def __init__(self, pi: Parameterization, dtype: torch.dtype, device: torch.device) -> None:
        assert pi.tree is not None and isinstance(pi.activation, Activation)
        self.pi, self.activation = pi, pi.activation
        self.kind = f"{type(pi.activation).__module__}.{type(pi.activation).__qualname__}"
        KINDS[self.kind] = type(pi.activation)
        self.num_classes, self.num_nodes = pi.num_classes, pi.num_nodes
        self._dtype, self._device = dtype, device
        self._plan_activation(pi)
        self._plan_tree(pi.tree)
        # the fast walk for it and that walk's own settings: `_dispatch` asks for them once
        self.fast: Any = UNASKED
        self.cpu: Any = None
        self.gpu: Any = None
        self.wide: Any = UNASKED  # and the tables of a head that reads one path

    def _number(self, values: Floats) -> Tensor:
        kind = np.float32 if self._dtype == torch.float32 else np.float64
        return torch.tensor(np.array(values, dtype=kind), device=self._device)

    def _table(self, values: np.ndarray) -> Tensor:
        return torch.tensor(np.array(values, dtype=np.int64), device=self._device)

    def _plan_activation(self, pi: Parameterization) -> None:
        """Per-node constants: [K-1] vectors, or [1] where every node has the same."""
        centers = pi.centers
        if centers.size and np.all(centers == centers[0]):
            centers = centers[:1]
        self.centered = bool(np.any(centers != 0))  # whether there is a shift at all
        self.center = self._number(centers)
        natural = pi.activation if isinstance(pi.activation, Natural) else None
        self.range = natural.joint / natural.gain if natural is not None and natural.tail < 0.5 else math.inf
        self.paper = self._paper(natural, centers) if natural is not None and natural.tail == 0 else None

    def _paper(self, natural: Natural, centers: Floats) -> Paper:
        kind = np.float32 if self._dtype == torch.float32 else np.float64
        lower, lower_rest, upper, upper_rest = natural.edges(centers)

        def split(values: Floats, rest: Floats) -> tuple[Tensor, Tensor]:
            """values + rest as a leading part in our dtype and what that lacks."""
            return self._number(values), self._number((values - values.astype(kind).astype(np.float64)) + rest)

        return Paper(
            *split(lower, lower_rest),
            *split(upper, upper_rest),
            angle=math.pi / (2 * natural.amplitude),
            # a floor below the dtype's smallest number counts as none
            margin=natural.margin if (natural.floor or 0.0) >= torch.finfo(self._dtype).tiny else 0.0,
        )

    def _plan_tree(self, tree: Tree) -> None:
        size = tree.num_classes
        self.depth, self.levels = tree.depth, tree.levels
        # A tree of the heap's shape is walked as the heap; only its classes stand in another order.
        self.is_heap = tree.heap_order is not None
        self.even = self.is_heap and size == 1 << tree.depth  # all paths have the same length
        self.order: Tensor | None = None  # [K] where class k stands among the heap's
        self.class_of: Tensor | None = None  # and the other way round
        if tree.heap_order is not None and not tree.is_heap:
            self.order, self.class_of = self._table(tree.heap_order), self._table(np.argsort(tree.heap_order))
        self.class_places, self.node_places = self._table(tree.class_places), self._table(tree.node_places)
        node_at, class_at = np.zeros(2 * size), np.zeros(2 * size)
        node_at[tree.node_places] = np.arange(size)
        class_at[tree.class_places] = np.arange(size)
        self.node_at, self.class_at = self._table(node_at), self._table(class_at)  # which node or class is at a place
        # where a place's value stands in a row of all classes and, behind them, of the nodes of the next level
        first = np.zeros(size, dtype=np.int64)
        for low, high in tree.levels:
            first[low:high] = low
        sources = size + np.arange(size) - first
        by_place = np.zeros(2 * size, dtype=np.int64)
        by_place[tree.node_places] = sources
        by_place[tree.class_places] = np.arange(size)
        self.sources = tuple(self._table(by_place[2 * low : 2 * high]) for low, high in tree.levels)
        self.shifts = self._table(np.arange(1, tree.depth + 1))
        jumps = []
        self.path_nodes: Tensor | None = None
        self.path_signs: Tensor | None = None
        if not self.is_heap:
            # pointer doubling: round r adds to every place what stands 2^r places above it
            above = tree.parents
            for _ in range(max(tree.depth - 1, 0).bit_length()):
                jumps.append(self._table(above))
                above = above[above]
            if size * tree.depth <= MAX_PATH_TABLE:
                steps = tree.paths
                self.path_nodes = self._table(np.maximum(np.abs(steps), 1) - 1)  # [K, depth]; the root where it is done
                self.path_signs = self._table(np.sign(steps))  # [K, depth] 1 right, -1 left, 0 done
        self.jumps = tuple(jumps)
        self.has_paths = self.is_heap or self.path_nodes is not None


def at_nodes(constant: Tensor, nodes: Tensor | None) -> Tensor:
    """A per-node constant of a plan, at the given zero-based nodes or at all of them."""
    # no method of Plan: compilers take a plan as a constant and look into its fields only
    return constant if nodes is None or constant.shape[0] == 1 else constant[nodes]


def find_plan(parameterization: ParameterizationLike, dtype: torch.dtype, device: torch.device) -> Plan:
    """The plan of a parameterization, or of the default one of so many classes."""
    try:
        return _cached(parameterization, dtype, device)
    except TypeError:  # not hashable, so not a parameterization
        resolve(parameterization)
        raise


@lru_cache(maxsize=1024, typed=True)
def _cached(parameterization: ParameterizationLike, dtype: torch.dtype, device: torch.device) -> Plan:
    pi = resolve(parameterization)
    # Nothing but plain tensors may get into the cache: no inference tensors (they cannot be saved for a backward), no
    # fake ones of a tracer, none that belong to a running function transform.
    with plainly():
        return Plan(pi, dtype, device)
