"""The one fast walk on a CPU, in C++: log p of all classes, with its gradient. What else there is, is made of it.

Scores are [..., K-1] in float32 or float64, ordinary tensors in eager mode; masks broadcast with their batch.
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

BLOCK, FIT = 1024, 9  # as in walk.cpp
SIGMOID, FITTED, NATURAL = range(3)
MAX_DEPTH = 512  # a sum of more terms, one after the other, loses digits that the plain walk keeps
REDUCTIONS = ("none", "mean", "sum")  # as PyTorch numbers them


def settings_for(pi: Parameterization, dtype: torch.dtype) -> Any:
    """The compiled walk of a parameterization; None where only the plain walk will do."""
    of, tree = pi.activation, pi.tree
    kind, numbers, fit = SIGMOID, (1.0, 0.0, 1.0), np.zeros(FIT)
    if type(of) is Natural and of.tail > 0:  # the paper's own is left to the plain walk, which knows its ends
        kind, numbers = NATURAL, (of.gain, of.joint, of.steepest)
        found = fits.natural_logit(of.tail)
        if dtype == torch.float32 and found is not None and len(found.coefficients) <= FIT:
            kind, fit[: len(found.coefficients)] = FITTED, found.coefficients
    elif type(of) is not Sigmoid:
        return None
    if tree is None or tree.num_classes == 1 or tree.depth > MAX_DEPTH or (module := load()) is None:
        return None
    make = module.make_float32 if dtype == torch.float32 else module.make_float64
    shifts = np.tile(-numbers[0] * pi.centers, max(1, BLOCK // pi.num_nodes))
    places = tree.node_places.tolist(), tree.class_places.tolist()
    return make(kind, numbers, fit, shifts, tree.levels, *places, tree.is_heap, partial(_plain_gradient, pi))


def _plain_gradient(pi: Parameterization, x: Tensor, mask: Tensor | None, renormalizes: bool, given: Tensor) -> Tensor:
    """The gradient where it is to be differentiated in turn, or asked for many gradients at once."""
    plan = find_plan(pi, pi.num_classes, x.dtype, x.device)

    def log_p(x: Tensor) -> Tensor:
        branches = _masks.branches(x, plan, mask, "renormalize" if renormalizes else "prune")
        found = _eager.descend(*branches, plan)[0]
        return found if mask is None else torch.where(mask, found, -torch.inf)

    return plain_backward(log_p, x, given)


def log_classes(x: Tensor, plan: Plan, mask: Tensor | None = None, mask_mode: str = "renormalize") -> Tensor:
    """log p of every class: [..., K]."""
    if mask is not None and mask.dim() > 1:
        if mask.shape[:-1] != x.shape[:-1]:
            batch = torch.broadcast_shapes(x.shape[:-1], mask.shape[:-1])
            x, mask = x.expand((*batch, -1)), mask.expand((*batch, -1))
        mask = mask.contiguous()
    return plan.cpu.log_p(x, mask, mask_mode == "renormalize")


# -- made of log p of all classes by PyTorch's own functions -----------------------------------------------------


def wants_all(x: Tensor, plan: Plan) -> bool:
    """Whether all classes cost no more than a path in plain tensor code."""
    return plan.num_classes <= 64 or x.numel() <= 4096


def cross_entropy(
    x: Tensor, target: Tensor, plan: Plan, ignore_index: int, weight: Tensor | None, reduction: str
) -> Tensor | None:
    """- log p of a class per row, reduced; None where a path is shorter."""
    if not wants_all(x, plan):
        return None
    if x.dim() == 1:  # a row without a batch
        return cross_entropy(x[None], target[None], plan, ignore_index, weight, reduction).reshape(target.shape)  # type: ignore[union-attr]
    loss = plan.cpu.cross_entropy(x, target.long(), weight, REDUCTIONS.index(reduction), ignore_index)
    return loss.view(target.shape) if reduction == "none" else loss


def log_path(rows: Tensor, index: Tensor, plan: Plan) -> Tensor:
    """log p of one class per row [R], or of several [R, M]."""
    if not wants_all(rows, plan):
        return _eager.log_path(rows, index, plan)
    log_p = log_classes(rows, plan)
    return log_p.gather(1, index) if index.dim() == 2 else log_p.gather(1, index.unsqueeze(1)).squeeze(1)


def entropy(x: Tensor, plan: Plan, *masking: Any) -> Tensor:
    """Entropy in nats: [...]."""
    return _eager.entropy_of_classes(log_classes(x, plan, *masking))


def sample(x: Tensor, count: int, plan: Plan, generator: torch.Generator | None, *masking: Any) -> Tensor:
    """[count, ...] draws."""
    if wants_all(x, plan) and count * x.numel() <= 1 << 18:
        return _eager.race(log_classes(x.detach(), plan, *masking), count, generator)
    if masking:
        logits_at = _eager.logits_of_branches(*_masks.branches(x, plan, *masking))
    else:
        logits_at = _eager.logits_of_scores(x, plan)
    return _eager.draw(logits_at, (*x.shape[:-1], count), plan, x, generator).movedim(-1, 0)


def draw(x: Tensor, plan: Plan, generator: torch.Generator | None, *masking: Any) -> tuple[Tensor, Tensor, Tensor]:
    """log p of a drawn class per row, the entropy, and the class."""
    log_p = log_classes(x, plan, *masking)
    index = _eager.race(log_p.detach(), 1, generator)[0]
    return *_head(log_p, index), index


def judge(x: Tensor, index: Tensor, plan: Plan, *masking: Any) -> tuple[Tensor, Tensor]:
    """log p of a given class per row, and the entropy."""
    return _head(log_classes(x, plan, *masking), index)


def _head(log_p: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    return log_p.gather(-1, index.unsqueeze(-1)).squeeze(-1), _eager.entropy_of_classes(log_p)
