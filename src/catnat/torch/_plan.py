"""A `Parameterization` on a device: its numbers and index tables as tensors, built once and cached.

A plan is a constant to torch.compile and torch.export, so everything in it is made at once, outside of any tracing.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from catnat.core.caches import Kept
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


@dataclass(frozen=True, eq=False)
class Plan:
    """Constants of one parameterization in one dtype (float32 or float64) on one device."""

    pi: Parameterization
    num_classes: int
    num_nodes: int
    # the activation, and per-node constants: [K-1] vectors, or [1] where every node has the same
    activation: Activation
    formula: int  # its class in `FORMULAS`
    centered: bool  # whether there is a shift at all
    center: Tensor
    range: float  # how far from its centre a score can be and be natural
    paper: Paper | None
    bernoulli: Bernoulli | None  # the same as the GPU's kernels take it; None where these have no form of it
    nodes: tuple[Any, ...]  # its fields; PyTorch's compiler before 2.13 takes no named tuple apart
    # the tree; one of the heap's shape is walked as the heap, only its classes stand in another order
    depth: int
    levels: tuple[tuple[int, int], ...]
    is_heap: bool
    even: bool  # all paths have the same length
    order: Tensor | None  # [K] where class k stands among the heap's; None where it stands there itself
    class_of: Tensor | None  # and the other way round
    class_places: Tensor  # [K]
    node_places: Tensor  # [K]
    node_at: Tensor  # [2K] which node is at a place
    class_at: Tensor  # [2K] and which class
    rungs: tuple[tuple[Tensor, Tensor], ...]
    shifts: Tensor  # [depth]
    jumps: tuple[Tensor, ...]  # of a tree that is no heap
    path_nodes: Tensor | None  # [K, depth] of such a tree, zero-based; the root where a path is done
    path_signs: Tensor | None  # [K, depth] 1 right, -1 left, 0 done
    has_paths: bool

    @cached_property
    def nbytes(self) -> int:
        """The size of all tables; of the tree's own, from which they came, too."""
        kept = [t for f in fields(self) for t in _tensors(getattr(self, f.name))]
        return 1024 + 2 * sum(t.numel() * t.element_size() for t in kept)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for part in value for t in _tensors(part)] if isinstance(value, tuple) else []


def make_plan(pi: Parameterization, dtype: torch.dtype, device: torch.device) -> Plan:
    """All tables of a parameterization."""
    kind = np.float32 if dtype == torch.float32 else np.float64

    def numbers(values: Floats) -> Tensor:
        return torch.tensor(np.array(values, dtype=kind), device=device)

    def table(values: np.ndarray) -> Tensor:
        return torch.tensor(np.array(values, dtype=np.int64), device=device)

    def end(ends: Floats, rest: Floats) -> tuple[Tensor, Tensor]:
        """Each as a leading part in our dtype, and what that lacks."""
        return numbers(ends), numbers((ends - ends.astype(kind).astype(np.float64)) + rest)

    assert pi.tree is not None and isinstance(pi.activation, Activation)
    centers = pi.centers[:1] if pi.centers.size and np.all(pi.centers == pi.centers[0]) else pi.centers
    natural, tree, size = pi.activation, pi.tree, pi.num_classes
    paper, reach = None, math.inf
    if isinstance(natural, Natural) and natural.tail < 0.5:
        reach = natural.joint / natural.gain
        if natural.tail == 0:
            lower, lower_rest, upper, upper_rest = natural.edges(centers)
            # a floor below the dtype's smallest number counts as none
            margin = natural.margin if (natural.floor or 0.0) >= torch.finfo(dtype).tiny else 0.0
            paper = Paper(*end(lower, lower_rest), *end(upper, upper_rest), math.pi / (2 * natural.amplitude), margin)
    bernoulli = bernoulli_of(pi, device) if dtype == torch.float32 else None
    is_heap = tree.heap_order is not None
    reordered = tree.heap_order if is_heap and not tree.is_heap else None
    steps = tree.paths if not is_heap and size * tree.depth <= MAX_PATH_TABLE else None
    plan = Plan(
        pi=pi,
        num_classes=size,
        num_nodes=size - 1,
        activation=pi.activation,
        formula=_formula_of(pi.activation),
        centered=bool(np.any(centers != 0)),
        center=numbers(centers),
        range=reach,
        paper=paper,
        bernoulli=bernoulli,
        nodes=tuple(bernoulli or ()),
        depth=tree.depth,
        levels=tree.levels,
        is_heap=is_heap,
        even=is_heap and size == 1 << tree.depth,
        order=None if reordered is None else table(reordered),
        class_of=None if reordered is None else table(np.argsort(reordered)),
        class_places=table(tree.class_places),
        node_places=table(tree.node_places),
        node_at=table(tree.node_at),
        class_at=table(tree.class_at),
        rungs=tuple((table(classes), table(order)) for classes, order in tree.rungs),
        shifts=table(np.arange(1, tree.depth + 1)),
        jumps=() if is_heap else tuple(map(table, tree.jumps)),
        path_nodes=None if steps is None else table(np.maximum(np.abs(steps), 1) - 1),
        path_signs=None if steps is None else table(np.sign(steps)),
        has_paths=is_heap or steps is not None,
    )
    if plan.formula > 1:
        weakref.finalize(plan, FORMULAS.pop, plan.formula)
    return plan


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
        plan: Plan = PLANS[type(parameterization), parameterization, dtype, device]
        return plan
    except TypeError:  # what is not hashable is no parameterization, and is told so
        resolve(parameterization)
        raise


def _make(key: tuple[type, ParameterizationLike, torch.dtype, torch.device]) -> Plan:
    # Nothing but plain tensors may get into the cache: no inference tensors (they cannot be saved for a backward), no
    # fake ones of a tracer, none that belong to a running function transform.
    with ordinary_tensors():
        return make_plan(resolve(key[1]), *key[2:])


def _size(plan: Plan) -> int:
    with ordinary_tensors():  # a tracer would write it down
        return plan.nbytes


PLANS = Kept(_size, _make)  # by type too: True is no number of classes
