"""A linear head that reads one path: of K-1 rows of weights, the log2 K that a class's nodes have.

On a GPU kernels do it (`_gpu.wide`); everywhere else, and for derivatives of higher order, plain tensor code that
gathers those rows, a few samples at a time. Features are [R, D], weights [K-1, D].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling

from catnat.torch import _eager, _node
from catnat.torch._compat import (
    autocasts,
    in_forward_mode,
    in_function_transform,
    is_plain,
    must_be_plain,
    plain_backwards,
)
from catnat.torch._dispatch import WALKS
from catnat.torch._plan import UNASKED, Plan

MAX_DEPTH = 64  # of a tree whose paths are shorter than its rows
AT_ONCE = 1 << 22  # numbers that are gathered at a time


class Head(NamedTuple):
    """The weights of K-1 scores."""

    weight: Tensor
    bias: Tensor | None


class TopK(NamedTuple):
    """Classes, the likeliest first, and their log-probabilities: [..., k] each."""

    log_probs: Tensor
    classes: Tensor


def has_short_paths(plan: Plan) -> bool:
    """Whether a path tells the loss: its tree is not deep."""
    return plan.num_classes > 1 and plan.depth <= MAX_DEPTH


def losses(x: Tensor, head: Head, target: Tensor, ignored: int, plan: Plan) -> Tensor:
    """- log p of a class per row: [R], 0 for the class id ``ignored``; float32, or float64 where that came."""
    if _has_kernels(x, head, plan):
        return _by_kernels(x, head, target, ignored, plan, "none", torch.float32)
    return _plain_losses(x, head.weight, head.bias, target, ignored, plan)


def loss(
    x: Tensor, head: Head, target: Tensor, ignored: int, plan: Plan, reduction: str, dtype: torch.dtype
) -> Tensor:  # fmt: skip
    """- log p of the targets: the mean over rows that are not ignored, or the sum."""
    if len(x) > 0 and not is_compiling() and _has_kernels(x, head, plan):
        return _by_kernels(x, head, target, ignored, plan, reduction, dtype)
    return _eager.reduced(losses(x, head, target, ignored, plan), target != ignored, reduction, dtype)


def _by_kernels(
    x: Tensor, head: Head, target: Tensor, ignored: int, plan: Plan, reduction: str, dtype: torch.dtype
) -> Tensor:  # fmt: skip
    def plain(target: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        found = _plain_losses(x, weight, bias, target, ignored, plan)
        return _eager.reduced(found, target != ignored, reduction, dtype)

    given = x.contiguous(), head.weight, head.bias, target.contiguous(), ignored
    found: Tensor = WALKS["wide"].path_loss(*given, plan.wide, reduction, dtype, plain)
    return found


def sample(x: Tensor, head: Head, plan: Plan, generator: torch.Generator | None) -> Tensor:
    """A class per row, a coin per node of one path."""

    def logits_at(nodes: Tensor | None) -> Tensor:
        assert nodes is not None  # the tree is not deep
        return _node.logit(_scores_at(x, head, nodes, plan), plan, nodes)

    with torch.no_grad():
        if _has_kernels(x, head, plan):
            found: Tensor = WALKS["wide"].draw(x.contiguous(), head.weight, head.bias, plan.wide, generator)
            return found
        return _eager.draw(logits_at, (len(x), 1), plan, plan.center, generator).squeeze(-1)


def topk(x: Tensor, head: Head, k: int, beam: int, plan: Plan) -> TopK:
    """The k likeliest of the classes that a search finds which keeps ``beam`` subtrees per level."""
    place = torch.ones((len(x), 1), dtype=torch.int64, device=x.device)
    log_p = torch.zeros((len(x), 1), dtype=plan.center.dtype, device=x.device)
    for _ in range(plan.depth):
        node = plan.node_at[place]
        splits = node > 0
        at = (node - 1).clamp(min=0)
        left, right = _node.log_branches(_node.logit(_scores_at(x, head, at, plan), plan, at))
        log_p = torch.cat((torch.where(splits, log_p + left, log_p), torch.where(splits, log_p + right, -torch.inf)), 1)
        place = torch.cat((torch.where(splits, 2 * node, place), 2 * node + 1), 1)
        log_p, best = log_p.topk(min(beam, log_p.shape[1]))
        place = place.gather(1, best)
    return TopK(log_p[:, :k], plan.class_at[place[:, :k]])


def _has_kernels(x: Tensor, head: Head, plan: Plan) -> bool:
    """Whether the GPU's kernels may serve this call."""
    if x.device.type != "cuda" or plan.wide in (None, UNASKED) or in_forward_mode() or in_function_transform():
        return False
    tensors = [t for t in (x, head.weight, head.bias) if t is not None]
    if any(t.dtype == torch.float64 for t in tensors) or not all(t.is_contiguous() for t in tensors[1:]):
        return False
    if len(x) * plan.depth >= 1 << 31:  # places in the kernels' tables
        return False
    return is_compiling() or all(map(is_plain, tensors))


# -- plain tensor code -------------------------------------------------------------------------------------------


def _plain_losses(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignored: int, plan: Plan
) -> Tensor:
    keep = target != ignored
    nodes, right, taken = _eager.paths(torch.where(keep, target, 0), plan)
    counts = keep[:, None].expand(nodes.shape) if taken is None else taken & keep[:, None]
    z = _node.logit(_scores_at(x, Head(weight, bias), nodes, plan), plan, nodes)
    terms = F.logsigmoid(torch.where(right, z, -z))
    return -torch.where(counts, terms, 0.0).sum(-1)


def _scores_at(x: Tensor, head: Head, nodes: Tensor, plan: Plan) -> Tensor:
    """Scores of the given zero-based nodes of every row: [R, M], in the plan's dtype, under autocast too."""
    if autocasts(x.device):
        with torch.autocast(x.device.type, enabled=False):
            return _scores_at(x, head, nodes, plan)
    dtype = plan.center.dtype
    if is_compiling() or not all(is_plain(t) for t in (x, head.weight)) or in_forward_mode():
        return _gathered(x, head.weight, nodes, dtype) + (0.0 if head.bias is None else head.bias[nodes].to(dtype))
    found: Tensor = _PathScores.apply(x, head.weight, head.bias, nodes, dtype)
    return found


def _gathered(x: Tensor, weight: Tensor, nodes: Tensor, dtype: torch.dtype) -> Tensor:
    return (F.embedding(nodes, weight).to(dtype) @ x.to(dtype).unsqueeze(-1)).squeeze(-1)


class _PathScores(torch.autograd.Function):
    """`_gathered` and a bias, a few rows at a time, so that the gathered weights are never kept."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, nodes: Tensor, dtype: torch.dtype
    ) -> Tensor:
        ctx.settings = dtype, bias is not None
        ctx.save_for_backward(x, weight, nodes, *(() if bias is None else (bias,)))
        parts = [_gathered(x[rows], weight, nodes[rows], dtype) for rows in _slices(nodes, x)]
        scores = torch.cat(parts) if parts else x.new_empty(nodes.shape, dtype=dtype)
        return scores if bias is None else scores + bias[nodes].to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (dtype, has_bias), (x, weight, nodes, *bias) = ctx.settings, ctx.saved_tensors
        if must_be_plain(gradient):

            def again(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
                return _gathered(x, weight, nodes, dtype) + sum(b[nodes].to(dtype) for b in bias)

            found = plain_backwards(again, (x, weight, *bias), gradient)
            return *found[:2], found[2] if has_bias else None, None, None
        dx = d_weight = d_bias = None
        if ctx.needs_input_grad[0]:
            parts = [
                (gradient[rows].unsqueeze(1) @ F.embedding(nodes[rows], weight).to(dtype)).squeeze(1)
                for rows in _slices(nodes, x)
            ]
            dx = (torch.cat(parts) if parts else torch.zeros_like(x)).to(x.dtype)
        if any(ctx.needs_input_grad[1:3]):
            sums = torch.zeros((len(weight), x.shape[1]), dtype=dtype, device=x.device)
            for rows in _slices(nodes, x):
                each = gradient[rows].unsqueeze(-1) * x[rows].to(dtype).unsqueeze(1)
                sums.index_add_(0, nodes[rows].flatten(), each.flatten(0, 1))
            bias_sums = torch.zeros(len(weight), dtype=dtype, device=x.device)
            bias_sums.index_add_(0, nodes.flatten(), gradient.flatten())
            d_weight, d_bias = sums.to(weight.dtype), bias_sums.to(weight.dtype)
        return dx, d_weight, d_bias if has_bias else None, None, None


def _slices(nodes: Tensor, x: Tensor) -> Sequence[slice]:
    """Rows that are gathered together."""
    step = max(1, AT_ONCE // max(1, nodes.shape[1] * x.shape[1]))
    return [slice(first, first + step) for first in range(0, len(x), step)]
