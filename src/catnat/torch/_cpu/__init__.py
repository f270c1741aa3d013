"""The one fast walk on a CPU, in C++: log p of all classes, with its gradient, and what is made of them.

All classes are cheap there: a few calls of PyTorch's own functions matter more than the scores that they read.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from catnat.core import fits
from catnat.core.parameterization import Natural, Parameterization, Sigmoid
from catnat.torch import _eager, _masks
from catnat.torch._compat import plain_backward
from catnat.torch._cpu.build import load
from catnat.torch._plan import Plan, find_plan
from catnat.torch._walk import Generator, Walk, known

BLOCK, SHORT, LONG = 1024, 8, 11  # as in loops.h
SIGMOID, FITTED, FITTED_LONG, NATURAL = range(4)
MAX_DEPTH = 512  # a sum of more terms, one after the other, loses digits that the plain walk keeps
REDUCTIONS = ("none", "mean", "sum")  # as PyTorch numbers them


class CompiledWalk(Walk):
    """By the compiled operator, in float32 or float64, for ordinary tensors in eager mode."""

    def __init__(self, plan: Plan, operator: Any) -> None:
        super().__init__(plan)
        self.operator = operator

    def log_probs(self, x: Tensor, mask: Tensor | None = None, mask_mode: str = "renormalize") -> Tensor:
        """log p of every class: [..., K]."""
        if x.element_size() < 4:
            x = x.float()
        if mask is not None and mask.dim() > 1 and mask.shape[:-1] != x.shape[:-1]:
            batch = torch.broadcast_shapes(x.shape[:-1], mask.shape[:-1])
            x, mask = x.expand((*batch, -1)), mask.expand((*batch, -1))
        return self.operator.log_p(x, mask, mask_mode == "renormalize")

    def log_path(self, rows: Tensor, ids: Tensor) -> Tensor:
        """log p of one class per row [R], or of several [R, M]."""
        if not self.is_small(rows):
            return super().log_path(rows, ids)
        log_p = self.log_probs(rows)
        return log_p.gather(1, ids) if ids.dim() == 2 else log_p.gather(1, ids.unsqueeze(1)).squeeze(1)

    def loss(self, x: Tensor, target: Tensor, ignored: int, weight: Tensor | None, reduction: str) -> Tensor:
        """- log p of one class per row, reduced."""
        if not self.is_small(x):
            return super().loss(x, target, ignored, weight, reduction)
        rows = x.float() if x.element_size() < 4 else x
        rows, target_rows = (rows, target) if x.dim() > 1 else (rows[None], target[None])  # nll_loss wants a batch
        code = REDUCTIONS.index(reduction)
        loss = self.operator.cross_entropy(rows, target_rows.long(), weight, code, ignored)
        return loss.view(target.shape) if reduction == "none" else loss

    def entropy(self, x: Tensor, mask: Tensor | None = None, mask_mode: str = "renormalize") -> Tensor:
        """Entropy in nats: [...]."""
        return _eager.entropy_of_classes(self.log_probs(x, mask, mask_mode))

    def draw(
        self,
        x: Tensor,
        index: Tensor | None,
        generator: Generator,
        mask: Tensor | None = None,
        mask_mode: str = "renormalize",
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A class per row, drawn or given, its log p and the row's entropy."""
        if not self.races(x, 1):
            return super().draw(x, index, generator, mask, mask_mode)
        log_p = self.log_probs(x, mask, mask_mode)
        if index is None:
            index = known(_eager.exponential_race(log_p.detach(), 1, generator), self.plan.num_classes)[0]
        own = log_p.gather(-1, index.long().unsqueeze(-1)).squeeze(-1)
        return index, own, _eager.entropy_of_classes(log_p)


def walk_of(plan: Plan) -> CompiledWalk | None:
    """The compiled walk of a plan; None where only the plain walk will do."""
    of, tree, dtype = plan.activation, plan.pi.tree, plan.center.dtype
    kind, numbers, fit = SIGMOID, (1.0, 0.0, 1.0), np.zeros(LONG)
    if type(of) is Natural and of.tail > 0:  # the paper's own is left to the plain walk, which knows its ends
        kind, numbers = NATURAL, (of.gain, of.joint, of.steepest)
        if dtype == torch.float32:
            if (found := fits.natural_logit(of.tail)) is None:
                return None  # the library's functions would be no faster than the plain walk
            fit[: len(found.coefficients)] = found.coefficients
            kind = FITTED if len(found.coefficients) <= SHORT else FITTED_LONG
    elif type(of) is not Sigmoid:
        return None
    if tree is None or tree.num_classes == 1 or tree.depth > MAX_DEPTH or (module := load()) is None:
        return None
    make = module.Float32 if dtype == torch.float32 else module.Float64
    shifts = np.tile(-numbers[0] * plan.pi.centers, max(1, BLOCK // plan.num_nodes))
    places = tree.node_places.tolist(), tree.class_places.tolist()
    gradient = partial(_plain_gradient, plan.pi)
    return CompiledWalk(plan, make(kind, numbers, fit, shifts, tree.levels, *places, tree.is_heap, gradient))


def _plain_gradient(pi: Parameterization, x: Tensor, mask: Tensor | None, renormalizes: bool, given: Tensor) -> Tensor:
    """The gradient where it is to be differentiated in turn, or asked for many gradients at once."""
    plan, mode = find_plan(pi, x.dtype, x.device), "renormalize" if renormalizes else "prune"
    return plain_backward(lambda x: _masks.log_classes(x, plan, mask, mode), x, given)
