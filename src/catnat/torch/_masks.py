"""Classes that are not allowed: a mask acts on the nodes, along the tree, and leaves a tree like any other.

A node gets the coin that it has given that an allowed class comes up: log(1-a) + log M(left) - log M(node), with M the
mass of the allowed classes below a place. So digits survive where all allowed classes are improbable.
"""

from __future__ import annotations

import torch
from torch import Tensor

from catnat.torch import _eager
from catnat.torch._node import log_branches, logit
from catnat.torch._plan import Plan


def log_classes(x: Tensor, plan: Plan, mask: Tensor | None) -> Tensor:
    """log p of every class: [..., K]."""
    if mask is None:
        return _eager.log_classes(x, plan)
    return torch.where(mask, _eager.descend(*branches(x, plan, mask), plan)[0], -torch.inf)


def branches(x: Tensor, plan: Plan, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """log(1-a) and log(a) of every node, given that an allowed class comes up: [..., K-1] each."""
    left, right = log_branches(logit(x, plan))
    if mask is None:
        return left, right
    count_left, count_right = _eager.ascend(mask.to(left.dtype), plan)
    classes = torch.zeros_like(left[..., :1]) + torch.where(mask, 0.0, -torch.inf).to(left.dtype)  # [..., K]
    on_left, on_right, totals = log_masses(left, right, classes, plan)
    # live branches without any mass (a coin above them is certain of the other side) share it by their classes
    massless, count = totals == -torch.inf, (count_left + count_right).clamp(min=1)
    left = torch.where(massless, (count_left / count).log(), on_left - totals)
    right = torch.where(massless, (count_right / count).log(), on_right - totals)
    dead_left, dead_right = count_left == 0, count_right == 0
    return (
        torch.where(dead_left, -torch.inf, torch.where(dead_right, 0.0, left)),
        torch.where(dead_right, -torch.inf, torch.where(dead_left, 0.0, right)),
    )


def log_masses(left: Tensor, right: Tensor, classes: Tensor, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    """log of the mass on the left, on the right and below of every node, from that of every class given its parent.

    ``left`` and ``right`` are the branches' log-probabilities, or 0 where the classes' masses are known as they are.
    """
    if plan.num_classes == 1:
        nothing = left + classes[..., :0]  # still part of the graph
        return nothing, nothing, nothing
    below: list[tuple[Tensor, Tensor, Tensor]] = []
    totals = classes[..., :0]  # of the level below
    for (low, high), (ids, order) in zip(reversed(plan.levels), reversed(plan.rungs), strict=True):
        here = torch.cat((totals, classes.index_select(-1, ids)), -1).index_select(-1, order)
        own, pairs = slice(low - 1, high - 1), here.unflatten(-1, (high - low, 2))
        on_left = pairs[..., 0] + left[..., own]
        on_right = pairs[..., 1] + right[..., own]
        # where one is -inf the other is the sum, and a formula's derivatives would be NaN
        both = torch.minimum(on_left, on_right) > -torch.inf
        sums = torch.logaddexp(torch.where(both, on_left, 0.0), torch.where(both, on_right, 0.0))
        totals = torch.where(both, sums, torch.maximum(on_left, on_right))
        below.append((on_left, on_right, totals))
    on_left, on_right, totals = (torch.cat(parts[::-1], -1) for parts in zip(*below, strict=True))
    return on_left, on_right, totals
