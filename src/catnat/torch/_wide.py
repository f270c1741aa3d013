"""A linear head that reads one path: of K-1 rows of weights, the log2 K that a class's nodes have.

Here in plain tensor code that gathers those rows, a few samples at a time; on a GPU kernels do it (`_gpu.wide`).
Features are [R, D], weights [K-1, D].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from catnat.torch import _eager, _node
from catnat.torch._compat import autocasts, in_forward_mode, is_plain, must_be_plain, plain_backwards
from catnat.torch._plan import Plan
from catnat.torch._walk import Generator, known, refusable

MAX_DEPTH = 64  # of a tree whose paths are shorter than its rows
AT_ONCE = 1 << 22  # numbers that are gathered at a time


class TopK(NamedTuple):
    """Classes, the likeliest first, and their log-probabilities: [..., k] each."""

    log_probs: Tensor
    classes: Tensor


class LinearWalk:
    """One path of a head with these weights; numbers are float32, or float64 where that came."""

    def __init__(self, plan: Plan, weight: Tensor, bias: Tensor | None) -> None:
        self.plan, self.weight, self.bias = plan, weight, bias

    def losses(self, x: Tensor, target: Tensor, ignored: int) -> Tensor:
        """- log p of a class per row: [R], 0 for the class id ``ignored``."""
        keep, plan = target != ignored, self.plan
        nodes, right, taken = _eager.paths(refusable(torch.where(keep, target, 0), plan), plan)
        counts = keep[:, None].expand(nodes.shape) if taken is None else taken & keep[:, None]
        z = _node.logit(self._scores_at(x, nodes), plan, nodes)
        return -torch.where(counts, F.logsigmoid(torch.where(right, z, -z)), 0.0).sum(-1)

    def loss(self, x: Tensor, target: Tensor, ignored: int, reduction: str, dtype: torch.dtype) -> Tensor:
        """Their mean over rows that are not ignored, or their sum."""
        return _eager.reduced(self.losses(x, target, ignored), target != ignored, reduction).to(dtype)

    @torch.no_grad()
    def sample(self, x: Tensor, generator: Generator) -> Tensor:
        """A class per row, a coin per node of one path."""
        plan = self.plan

        def logits_at(nodes: Tensor) -> Tensor:
            return _node.logit(self._scores_at(x, nodes), plan, nodes)

        return known(_eager.draw(logits_at, (len(x), 1), plan, plan.center, generator).squeeze(-1), plan.num_classes)

    def topk(self, x: Tensor, k: int, beam: int) -> TopK:
        """The k likeliest of the classes that a search finds which keeps ``beam`` subtrees per level."""
        plan = self.plan
        place = torch.ones((len(x), 1), dtype=torch.int64, device=x.device)
        log_p = torch.zeros((len(x), 1), dtype=plan.center.dtype, device=x.device)
        for _ in range(plan.depth):
            node = plan.node_at[place]
            splits = node > 0
            at = (node - 1).clamp(min=0)
            scores = self._scores_at(x, at)
            left, right = _node.log_branches(_node.logit(scores, plan, at))
            sides = torch.where(splits, log_p + left, log_p), torch.where(splits, log_p + right, -torch.inf)
            place = torch.cat((torch.where(splits, 2 * node, place), 2 * node + 1), 1)
            log_p, best = torch.cat(sides, 1).topk(min(beam, place.shape[1]))
            place = place.gather(1, best)
        return TopK(log_p[:, :k], plan.class_at[place[:, :k]])

    def _scores_at(self, x: Tensor, nodes: Tensor) -> Tensor:
        """Scores of the given zero-based nodes of every row: [R, M], in the plan's dtype, under autocast too."""
        if autocasts(x.device):
            with torch.autocast(x.device.type, enabled=False):
                return self._scores_at(x, nodes)
        dtype = self.plan.center.dtype
        given = x, self.weight, nodes, dtype
        eager = is_plain(x) and is_plain(self.weight) and not in_forward_mode()
        scores: Tensor = _PathScores.apply(*given) if eager else _gathered(*given)
        if self.bias is None:
            return scores
        return scores + self.bias.to(dtype).index_select(0, nodes.flatten()).view(nodes.shape)


def _gathered(x: Tensor, weight: Tensor, nodes: Tensor, dtype: torch.dtype) -> Tensor:
    return (F.embedding(nodes, weight).to(dtype) @ x.to(dtype).unsqueeze(-1)).squeeze(-1)


class _PathScores(torch.autograd.Function):
    """`_gathered`, a few rows at a time, so that the gathered weights are never kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, nodes: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        ctx.save_for_backward(x, weight, nodes)
        parts = [_gathered(x[rows], weight, nodes[rows], dtype) for rows in _slices(nodes, x)]
        return torch.cat(parts) if parts else x.new_empty(nodes.shape, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        dtype, (x, weight, nodes) = ctx.dtype, ctx.saved_tensors
        if must_be_plain(gradient):
            found = plain_backwards(lambda x, weight: _gathered(x, weight, nodes, dtype), (x, weight), gradient)
            return *found, None, None
        dx = d_weight = None
        if ctx.needs_input_grad[0]:
            parts = [
                (gradient[rows].unsqueeze(1) @ F.embedding(nodes[rows], weight).to(dtype)).squeeze(1)
                for rows in _slices(nodes, x)
            ]
            dx = (torch.cat(parts) if parts else torch.zeros_like(x)).to(x.dtype)
        if ctx.needs_input_grad[1]:
            d_weight = torch.zeros(weight.shape, dtype=dtype, device=x.device)
            for rows in _slices(nodes, x):
                each = gradient[rows].unsqueeze(-1) * x[rows].to(dtype).unsqueeze(1)
                d_weight.index_add_(0, nodes[rows].flatten(), each.flatten(0, 1))
            d_weight = d_weight.to(weight.dtype)
        return dx, d_weight, None, None


def _slices(nodes: Tensor, x: Tensor) -> Sequence[slice]:
    """Rows that are gathered together."""
    step = max(1, AT_ONCE // max(1, nodes.shape[1] * x.shape[1]))
    return [slice(first, first + step) for first in range(0, len(x), step)]


# -- all scores --------------------------------------------------------------------------------------------------


def aligned_scores(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """All scores by a few outputs more, a multiple of eight of them, which are cut off again."""
    count, more = len(weight), -len(weight) % 8
    dtype = torch.get_autocast_dtype(x.device.type) if autocasts(x.device) else weight.dtype
    padded = F.pad(weight.to(dtype), (0, 0, 0, more)), None if bias is None else F.pad(bias.to(dtype), (0, more))
    return F.linear(x, *padded)[..., :count].contiguous()
