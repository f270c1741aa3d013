"""Calls made of log p of all classes, by PyTorch's own functions: on a CPU that is cheap, and few calls matter more.

Scores are [..., K-1] in float32 or float64, ordinary tensors in eager mode; masks broadcast with their batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from catnat.torch import _eager, _masks
from catnat.torch._plan import Plan

REDUCTIONS = ("none", "mean", "sum")  # as PyTorch numbers them


def log_classes(x: Tensor, plan: Plan, mask: Tensor | None = None, mask_mode: str = "renormalize") -> Tensor:
    """log p of every class: [..., K]."""
    if mask is not None and mask.dim() > 1 and mask.shape[:-1] != x.shape[:-1]:
        batch = torch.broadcast_shapes(x.shape[:-1], mask.shape[:-1])
        x, mask = x.expand((*batch, -1)), mask.expand((*batch, -1))
    return plan.cpu.log_p(x, mask, mask_mode == "renormalize")


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
