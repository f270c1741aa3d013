"""A node in plain differentiable tensor code: the log-odds of its right branch, and what follows from them.

An activation gives the logit z of a score and its slope. Everything else is derived here, for all activations alike:
log a = log sigmoid(z), log(1-a) = log sigmoid(-z), the Fisher information a (1-a) (dz/dx)^2, and the way back from two
masses to a score. Only the paper's natural activation (``tail=0``) needs more than its formula: near the ends of its
range the distance to the end is all that matters, so the ends are kept as sums of two numbers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from catnat.torch._plan import KINDS, Paper, Plan, at_nodes


def logit(x: Tensor, plan: Plan, nodes: Tensor | None = None) -> Tensor:
    """z of scores ``x``: all of them along the last axis, or those of the given zero-based nodes."""
    if plan.paper is None:
        return KINDS[plan.kind].logit(plan.activation, _offset(x, plan, nodes), torch)
    distance, is_upper = _distance(x, plan.paper, nodes)
    if plan.revives:
        distance = _StraightThroughClamp.apply(distance, plan.paper.margin)
    else:
        distance = distance.clamp(min=plan.paper.margin)
    inside = distance != 0  # also NaN
    tangent = torch.tan(torch.where(inside, distance, 1.0) * plan.paper.angle)
    z = torch.where(inside, -2 * torch.log(tangent), torch.inf)
    return torch.where(is_upper, z, -z)


def slope(x: Tensor, plan: Plan) -> Tensor:
    """dz/dx; 0 where the paper's activation sits on its floor."""
    if plan.paper is None:
        return KINDS[plan.kind].slope(plan.activation, _offset(x, plan, None), torch)
    distance, _ = _distance(x, plan.paper, None)
    alive = (distance > plan.paper.margin) | distance.isnan()
    u = torch.where(alive, distance, 1.0) * plan.paper.angle
    return torch.where(alive, 4 * plan.paper.angle / torch.sin(2 * u), 0.0)


def log_branches(z: Tensor) -> tuple[Tensor, Tensor]:
    """log(1-a) and log(a)."""
    return F.logsigmoid(-z), F.logsigmoid(z)


def information(x: Tensor, plan: Plan) -> Tensor:
    """a'^2 / (a (1-a)) = a (1-a) (dz/dx)^2: the Fisher information of every node's own coin."""
    z = logit(x, plan)
    return torch.sigmoid(z) * torch.sigmoid(-z) * slope(x, plan) ** 2


def score_of(left: Tensor, right: Tensor, plan: Plan) -> Tensor:
    """The score at which a : 1-a is ``right : left``, two masses that need not sum to one; 0 where both are 0."""
    return score_of_log_masses(left.log(), right.log(), plan)


def score_of_log_masses(left: Tensor, right: Tensor, plan: Plan) -> Tensor:
    """The same from the logarithms of both masses: 0 where both are -inf."""
    empty = (left == -torch.inf) & (right == -torch.inf)
    left, right = torch.where(empty, 0.0, left), torch.where(empty, 0.0, right)
    offset = KINDS[plan.kind].inverse(plan.activation, right - left, torch)
    return torch.where(empty, 0.0, offset + plan.center)


def beyond(x: Tensor, plan: Plan) -> Tensor:
    """Which scores lie beyond the natural range: on the straight lines or, for the paper's activation, on the floor."""
    if plan.paper is not None:
        return _distance(x, plan.paper, None)[0] <= plan.paper.margin
    return _offset(x, plan, None).abs() > plan.range


def _offset(x: Tensor, plan: Plan, nodes: Tensor | None) -> Tensor:
    return x - at_nodes(plan.center, nodes) if plan.centered else x


# -- the paper's natural activation ------------------------------------------------------------------------------


def _distance(x: Tensor, paper: Paper, nodes: Tensor | None) -> tuple[Tensor, Tensor]:
    """How far every score is from the nearer end of its range, and whether that is the upper end.

    Outside the range the distance is negative, or, where the activation reflects, that of the mirrored score.
    """
    turned: Tensor | float = 0.0
    if paper.reflects:
        # Take whole periods off. The remainder is exact; what the last step rounds away, and what the rounded period
        # lacks, is paid back below.
        remainder = torch.fmod(x, paper.period)
        step = paper.period * torch.round((remainder - at_nodes(paper.near_center, nodes)) / paper.period)
        y = remainder - step
        rounded = (remainder - y) - step
        turned = torch.round((x - y) / paper.period) * paper.period_rest - rounded
        x = y
    to_upper = (at_nodes(paper.upper, nodes) - x) + (at_nodes(paper.upper_rest, nodes) + turned)
    to_lower = (x - at_nodes(paper.lower, nodes)) - (at_nodes(paper.lower_rest, nodes) + turned)
    is_upper = to_upper < to_lower
    distance = torch.where(is_upper, to_upper, to_lower)
    if paper.reflects:
        distance = torch.where(distance < 0, -distance, distance)
    return distance, is_upper


def gate_revival(x: Tensor, plan: Plan) -> Tensor:
    """The scores themselves; on the way back, outside the range, only a gradient whose descent step leads back inside.

    The gate looks at the whole gradient of a score, so it stands where the scores come in; behind it, the clamp passes
    everything.
    """
    assert plan.paper is not None
    distance, is_upper = _distance(x.detach(), plan.paper, None)
    side = torch.where(is_upper, 1.0, -1.0).to(x.dtype)
    outside = torch.where(distance < plan.paper.margin, side, 0.0)
    return _Gate.apply(x, outside)


class _Gate(torch.autograd.Function):
    """Identity; the gradient passes inside, and outside where it has the sign of the side."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, outside: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (outside,) = ctx.saved_tensors
        return torch.where((outside == 0) | (outside * gradient > 0), gradient, 0.0), None


class _StraightThroughClamp(torch.autograd.Function):
    """max(distance, margin) with the gradient of the identity."""

    generate_vmap_rule = True

    @staticmethod
    def forward(distance: Tensor, margin: float) -> Tensor:
        return distance.clamp(min=margin)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
