"""A `Parameterization` on a device: its numbers and index tables as tensors, built once and cached.

A plan is a constant to torch.compile and torch.export, so everything in it is made at once, outside of any tracing.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from catnat.core.parameterization import Natural, Parameterization, Sigmoid, resolve
from catnat.core.tree import Floats, Tree
from catnat.torch._gpu.coin import coin_of
from catnat.torch._compat import in_forward_mode, in_function_transform, is_plain, kernels_for, plainly

# Past this many entries a table of all paths is not kept: such a tree is a heap, whose paths are arithmetic, or so
# deep that a path is no shortcut.
MAX_PATH_TABLE = 1 << 21
# Up to here the sum along every path may be had by a product with the path incidence matrix.
MAX_INCIDENCE_CLASSES = 64
# The short form of a path's terms is right to one rounding of 1 a step; so many steps keep within 2e-6 in float32.
MAX_SHORT_DEPTH = 16
# A product of probabilities no smaller than this is right to its last digits.
LEAST_PRODUCT = {torch.float32: 1e-30, torch.float64: 1e-290}


class Plan:
    """Constants of one parameterization in one dtype (float32 or float64) on one device."""

    def __init__(self, pi: Parameterization, dtype: torch.dtype, device: torch.device) -> None:
        assert pi.tree is not None
        self.num_classes, self.num_nodes = pi.num_classes, pi.num_nodes
        self._dtype, self._device = dtype, device
        self._plan_activation(pi)
        self._plan_tree(pi.tree)
        self._plan_paths(pi.tree, pi.centers)
        self._plan_incidence(pi.tree)
        # whether `catnat.torch.fused` has a form of it; kept here, so that a call finds it at once
        self.fusable = (
            device.type == "cpu"
            and self.num_classes > 1
            and (self.is_heap or self.has_incidence)
            and (self.natural is None or (self.natural.saturation != "reflect" and self.margin > 0))
        )
        # what `catnat.torch._gpu` take, and their launches; None where they have no form of it
        self.launch = kernels_for(device) if dtype == torch.float32 else None
        self.coin = coin_of(pi, device) if self.launch is not None else None
        self.coin_arguments = None if self.coin is None else self.coin.arguments  # as operators take it

    # -- making it -----------------------------------------------------------------------------------------------

    def _number(self, values: Floats) -> Tensor:
        kind = np.float32 if self._dtype == torch.float32 else np.float64
        return torch.from_numpy(np.array(values, dtype=kind, order="C")).to(self._device)

    def _table(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=np.int64)).to(self._device)

    def _split(self, values: Floats, rest: Floats) -> tuple[Tensor, Tensor]:
        """values + rest as a leading part in our dtype and what that lacks."""
        kind = np.float32 if self._dtype == torch.float32 else np.float64
        return self._number(values), self._number((values - values.astype(kind).astype(np.float64)) + rest)

    def _plan_activation(self, pi: Parameterization) -> None:
        """Per-node constants: [K-1] vectors, or [1] where every node has the same."""
        centers = pi.centers
        if centers.size and np.all(centers == centers[0]):
            centers = centers[:1]
        self.centered = bool(np.any(centers != 0))  # whether there is a shift at all
        self.center = self._number(centers)
        self.natural = pi.activation if isinstance(pi.activation, Natural) else None
        self.revives = self.natural is not None and self.natural.saturation == "revive"
        if self.natural is not None:
            lower, lower_rest, upper, upper_rest = self.natural.edges(centers)
            self.lower, self.lower_rest = self._split(lower, lower_rest)
            self.upper, self.upper_rest = self._split(upper, upper_rest)
            self.angle = math.pi / (2 * self.natural.amplitude)  # radians a unit of score, measured from an end
            # a floor below the dtype's smallest number counts as none
            self.margin = self.natural.margin if self.natural.floor >= torch.finfo(self._dtype).tiny else 0.0
            kind = np.float32 if self._dtype == torch.float32 else np.float64
            self.period = float(kind(2 * self.natural.amplitude))
            self.period_rest = 2 * self.natural.amplitude - self.period
            self.near_center = self._number(self.natural.near_zero(centers))

    def _plan_tree(self, tree: Tree) -> None:
        self.depth, self.levels, self.is_heap = tree.depth, tree.levels, tree.is_heap
        self.level_sizes = [high - low for low, high in tree.levels]
        self.even = tree.is_heap and tree.num_classes == 1 << tree.depth  # all paths have the same length
        self.class_places, self.node_places = self._table(tree.class_places), self._table(tree.node_places)
        node_at, class_at = np.zeros(2 * tree.num_classes), np.zeros(2 * tree.num_classes)
        node_at[tree.node_places] = np.arange(tree.num_classes)
        class_at[tree.class_places] = np.arange(tree.num_classes)
        self.node_at, self.class_at = self._table(node_at), self._table(class_at)  # which node or class is at a place
        self.shifts = self._table(np.arange(1, tree.depth + 1))
        jumps = []
        if not tree.is_heap:
            # pointer doubling: round r adds to every place what stands 2^r places above it
            above = tree.parents
            for _ in range(max(tree.depth - 1, 0).bit_length()):
                jumps.append(self._table(above))
                above = above[above]
        self.jumps = tuple(jumps)

    def _plan_paths(self, tree: Tree, centers: Floats) -> None:
        """For every step of every path: its node, its turn, and the offset of its term.

        sign * score + offset is all that a term depends on. For the sigmoid it is the logit of the branch taken; for
        the natural activation the distance to the end at which that branch has probability 0.
        """
        self.path_nodes: Tensor | None = None
        self.path_signs: Tensor | None = None
        self.path_offsets: Tensor | None = None
        self.path_rests: Tensor | None = None
        tabled = tree.num_classes > 1 and tree.num_classes * tree.depth <= MAX_PATH_TABLE
        clipped = self.natural is None or (self.natural.saturation == "clip" and self.margin > 0)
        self.short_paths = tabled and clipped and tree.depth <= MAX_SHORT_DEPTH
        least = LEAST_PRODUCT[self._dtype]
        # whether a product of sines along a path stays in range (`catnat.torch.fused_path`)
        self.path_products = (
            self.short_paths
            and self._device.type == "cpu"
            and self.natural is not None
            and self.natural.floor ** (tree.depth / 2) > least
        )
        if not tabled:
            return
        steps = tree.paths
        signs, nodes = np.sign(steps), np.maximum(np.abs(steps), 1) - 1
        self.path_nodes = self._table(nodes)  # [K, depth] zero-based; the root where the path is done
        self.path_signs = self._number(signs)  # [K, depth] 1 right, -1 left, 0 done
        if self.natural is not None:
            lower, lower_rest, upper, upper_rest = self.natural.edges(centers[nodes] if self.centered else np.zeros(1))
            if self.centered:
                upper = np.where(signs > 0, -lower, upper)
                upper_rest = np.where(signs > 0, -lower_rest, upper_rest)
            self.path_offsets, rests = self._split(upper, upper_rest)
            self.path_rests = rests * self.angle  # in radians
        elif self.centered:
            self.path_offsets = self._number(-signs * centers[nodes])

    def _plan_incidence(self, tree: Tree) -> None:
        """The tree as matrices, for few classes: whether class k's path turns left, or right, at node i."""
        self.has_incidence = 1 < tree.num_classes <= MAX_INCIDENCE_CLASSES
        if not self.has_incidence:
            return
        left, right = np.zeros((2, tree.num_nodes, tree.num_classes))
        for k in range(tree.num_classes):
            for node, bit in tree.path(k):
                (right if bit else left)[node - 1, k] = 1
        self.incidence_left, self.incidence_right = self._number(left), self._number(right)  # [K-1, K]
        self.left_incidence, self.right_incidence = self._number(left.T), self._number(right.T)  # [K, K-1]
        # x @ both_signs + both_offsets is (C - x, x - C), or the distances to both ends, side by side
        identity = np.eye(tree.num_nodes)
        self.both_signs = self._number(np.concatenate((-identity, identity), 1))
        self.both_incidence = self._number(np.concatenate((left, right)) * (1 if self.natural is None else 2))
        if self.natural is None:
            self.both_offsets = torch.cat([c.expand(tree.num_nodes) for c in (self.center, -self.center)])
        else:
            self.both_offsets = torch.cat([c.expand(tree.num_nodes) for c in (self.upper, -self.lower)])
            self.both_rests = torch.cat([c.expand(tree.num_nodes) for c in (self.upper_rest, -self.lower_rest)])


def at_nodes(constant: Tensor, nodes: Tensor | None) -> Tensor:
    """A per-node constant of a plan, at the given zero-based nodes or at all of them."""
    # no method of Plan: compilers take a plan as a constant and look into its fields only
    return constant if nodes is None or constant.shape[0] == 1 else constant[nodes]


def takes_kernels(x: Tensor, plan: Plan) -> bool:
    """Whether the GPU kernels may stand in for the plain walks, now and for this tensor."""
    if plan.coin is None or in_forward_mode():
        return False
    return not in_function_transform() if is_compiling() else is_plain(x)


@torch.compiler.assume_constant_result
def plan_for(
    parameterization: Parameterization | Natural | Sigmoid | str,
    num_classes: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Plan:
    """The plan of a parameterization, or of that activation on the balanced tree of ``num_classes`` classes."""
    try:
        return _cached(parameterization, num_classes, dtype, device)
    except TypeError:  # not hashable, so not a parameterization
        resolve(parameterization, num_classes)
        raise


@lru_cache(maxsize=1024)
def _cached(
    parameterization: Parameterization | Natural | Sigmoid | str,
    num_classes: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Plan:
    pi = resolve(parameterization, num_classes)
    # Nothing but plain tensors may get into the cache: no inference tensors (they cannot be saved for a backward), no
    # fake ones of a tracer, none that belong to a running function transform.
    with plainly():
        return Plan(pi, dtype, device)
