"""A `Parameterization` on a device: its numbers and index tables as tensors, built once and cached.

A plan is a constant to torch.compile and torch.export, so everything in it is made at once, outside of any tracing.
"""

from __future__ import annotations

import math
import weakref
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from catnat.core.caches import Frozen, Kept
from catnat.core.parameterization import Activation, Natural, Parameterization, ParameterizationLike, Sigmoid, resolve
from catnat.core.tree import Floats
from catnat.torch._bernoulli import Bernoulli, bernoulli_of
from catnat.torch._compat import ordinary_tensors

# Past this many entries a table of all paths is not kept: a tree that is no heap is then so deep that a path is no
# shortcut.
MAX_PATH_TABLE = 1 << 21

# The classes of activations. A compiler takes a plan as a constant, whose fields it can read but whose methods it
# cannot call; a class that it finds here, it can. One of the user's own is here under a number while a plan needs it.
FORMULAS: dict[int, type[Activation]] = {0: Natural, 1: Sigmoid}
_NUMBERS = count(2)


class Paper(NamedTuple):
    """The ends of the nodes' ranges for ``tail=0``: [K-1] vectors, or [1] where every node has the same."""

    lower: Tensor
    lower_rest: Tensor
    upper: Tensor
    upper_rest: Tensor
    angle: float  # radians per unit of score, measured from an end
    margin: float  # how far inside an end the floor is met


class Plan(Frozen):
    """Constants of one parameterization in one dtype (float32 or float64) on one device."""

    def __init__(self, pi: Parameterization, dtype: torch.dtype, device: torch.device) -> None:
        kind = np.float32 if dtype == torch.float32 else np.float64

        def numbers(values: Floats) -> Tensor:
            return torch.tensor(np.array(values, dtype=kind), device=device)

        def table(values: np.ndarray) -> Tensor:
            return torch.tensor(np.array(values, dtype=np.int64), device=device)

        def end(ends: Floats, rest: Floats) -> tuple[Tensor, Tensor]:
            """Each as a leading part in our dtype, and what that lacks."""
            return numbers(ends), numbers((ends - ends.astype(kind).astype(np.float64)) + rest)

        natural, tree, size = pi.activation, pi.tree, pi.num_classes
        assert tree is not None and isinstance(natural, Activation)
        self.pi, self.num_classes, self.num_nodes = pi, size, size - 1
        self.traced = ""  # the name of its operator on a CPU, where there is one, for compilers
        # the activation, and per-node constants: [K-1] vectors, or [1] where every node has the same
        centers = pi.centers[:1] if pi.centers.size and np.all(pi.centers == pi.centers[0]) else pi.centers
        self.activation, self.formula = natural, _formula_of(natural)  # and its class in `FORMULAS`
        self.centered = bool(np.any(centers != 0))  # whether there is a shift at all
        self.center = numbers(centers)
        self.range = math.inf  # how far from its centre a score can be and be natural
        self.paper: Paper | None = None
        if isinstance(natural, Natural) and natural.tail < 0.5:
            self.range = natural.joint / natural.gain
            if natural.tail == 0:
                lower, lower_rest, upper, upper_rest = natural.edges(centers)
                # a floor below the dtype's smallest number counts as none
                margin = natural.margin if (natural.floor or 0.0) >= torch.finfo(dtype).tiny else 0.0
                ends = *end(lower, lower_rest), *end(upper, upper_rest)
                self.paper = Paper(*ends, math.pi / (2 * natural.amplitude), margin)
        # the same as the GPU's kernels take it; None where these have no form of it
        self.bernoulli: Bernoulli | None = bernoulli_of(pi, device) if dtype == torch.float32 else None
        # its fields; PyTorch's compiler before 2.13 takes no named tuple apart
        self.nodes: tuple[Any, ...] = tuple(self.bernoulli or ())
        # the tree; one of the heap's shape is walked as the heap, only its classes stand in another order
        self.depth, self.levels, self.is_heap = tree.depth, tree.levels, tree.heap_order is not None
        self.even = self.is_heap and size == 1 << tree.depth  # all paths have the same length
        reordered = None if tree.is_heap else tree.heap_order
        # [K] where class k stands among the heap's, None where it stands there itself; and the other way round
        self.order = None if reordered is None else table(reordered)
        self.class_of = None if reordered is None else table(np.argsort(reordered))
        self.class_places, self.node_places = table(tree.class_places), table(tree.node_places)  # [K] each
        self.node_at, self.class_at = table(tree.node_at), table(tree.class_at)  # [2K] by place
        self.rungs = tuple((table(classes), table(order)) for classes, order in tree.rungs)
        self.shifts = table(np.arange(1, tree.depth + 1))  # [depth]
        # of a tree that is no heap; [K, depth] the nodes of paths, below 0 for a left turn, 0 when done
        self.jumps = () if self.is_heap else tuple(map(table, tree.jumps))
        tabulates = not self.is_heap and size * tree.depth <= MAX_PATH_TABLE
        self.paths = table(tree.paths) if tabulates else None
        self.has_paths = self.is_heap or tabulates
        if self.formula > 1:
            weakref.finalize(self, FORMULAS.pop, self.formula)
        # the size of all tables; of the tree's own, from which they came, too
        self.nbytes = 1024 + 2 * sum(t.numel() * t.element_size() for t in _tensors(tuple(vars(self).values())))
        self.made = True


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for part in value for t in _tensors(part)] if isinstance(value, tuple) else []


def _formula_of(activation: Activation) -> int:
    """The number of an activation's class; its own for every plan, since two classes may well have one name."""
    if type(activation) in (Natural, Sigmoid):
        return int(type(activation) is Sigmoid)
    number = next(_NUMBERS)
    FORMULAS[number] = type(activation)
    return number


def at_nodes(constant: Tensor, nodes: Tensor | None) -> Tensor:
    """A per-node constant of a plan, at the given zero-based nodes or at all of them."""
    # no method of Plan: compilers take a plan as a constant and look into its fields only
    return constant if nodes is None or constant.shape[0] == 1 else constant[nodes]


def find_plan(parameterization: ParameterizationLike, dtype: torch.dtype, device: torch.device) -> Plan:
    """The plan of a parameterization, or of the default one of so many classes."""
    try:
        return PLANS[type(parameterization), parameterization, dtype, device]
    except TypeError:  # what is not hashable is no parameterization, and is told so
        resolve(parameterization)
        raise


def _make(key: tuple[type, ParameterizationLike, torch.dtype, torch.device]) -> Plan:
    # Nothing but plain tensors may get into the cache: no inference tensors (they cannot be saved for a backward), no
    # fake ones of a tracer, none that belong to a running function transform.
    with ordinary_tensors():
        return Plan(resolve(key[1]), *key[2:])


PLANS = Kept(lambda plan: plan.nbytes, _make)  # by type too: True is no number of classes
