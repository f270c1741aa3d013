"""log a, log(1-a) and their slopes for a tensor of scores, exact to the last digits at both ends of the range.

Everything here is plain differentiable tensor code. With z the logit of a, log a = min(z, 0) - log(1 + e^-|z|) and
log(1-a) = min(-z, 0) - log(1 + e^-|z|). For the natural activation, with u the angle between the score and the nearer
end of its range, e^-|z| is tan(u)^2; and since only the distance to that end matters, the end is kept as the sum of two
numbers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from catnat.torch._plan import Plan, at_nodes


def log_branches(x: Tensor, plan: Plan, nodes: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """log(1-a) and log(a) of scores ``x``: all of them along the last axis, or those of the given zero-based nodes."""
    if plan.natural is None:
        z = _centered(x, plan, nodes)
        return F.logsigmoid(-z), F.logsigmoid(z)
    tangent, is_upper = _natural_tangent(x, plan, nodes)
    log_big, log_small = _natural_logs(tangent)
    return torch.where(is_upper, log_small, log_big), torch.where(is_upper, log_big, log_small)


def log_branch(x: Tensor, turns_right: Tensor, plan: Plan, nodes: Tensor | None = None) -> Tensor:
    """log(a) where ``turns_right``, else log(1-a)."""
    if plan.natural is None:
        z = _centered(x, plan, nodes)
        return F.logsigmoid(torch.where(turns_right, z, -z))
    tangent, is_upper = _natural_tangent(x, plan, nodes)
    log_big, log_small = _natural_logs(tangent)
    return torch.where(is_upper == turns_right, log_big, log_small)


def probability(x: Tensor, plan: Plan, nodes: Tensor | None = None) -> Tensor:
    """a: the probability of the right turn."""
    if plan.natural is None:
        return torch.sigmoid(_centered(x, plan, nodes))
    tangent, is_upper = _natural_tangent(x, plan, nodes)
    square = tangent * tangent
    return torch.where(is_upper, 1.0, square) / (1 + square)


def node_fisher(x: Tensor, plan: Plan) -> Tensor:
    """a'^2 / (a (1-a)): the Fisher information of every node's own coin."""
    if plan.natural is None:
        z = _centered(x, plan, None)
        return torch.sigmoid(z) * torch.sigmoid(-z)
    distance, _ = _natural_distance(x, plan, None)
    alive = (distance > plan.margin) | distance.isnan()
    return torch.where(alive, (2 * plan.angle) ** 2 + 0 * distance, 0.0)


def score_of(left: Tensor, right: Tensor, plan: Plan) -> Tensor:
    """The score at which a : 1-a is ``right : left``, two masses that need not sum to one; 0 where both are 0."""
    empty = (left == 0) & (right == 0)
    left, right = torch.where(empty, 1.0, left), torch.where(empty, 1.0, right)
    if plan.natural is None:
        x = torch.log(right) - torch.log(left)
    else:
        x = (torch.atan2(right.sqrt(), left.sqrt()) - torch.pi / 4) / plan.angle
    return torch.where(empty, 0.0, x + plan.center)


def _centered(x: Tensor, plan: Plan, nodes: Tensor | None) -> Tensor:
    return x - at_nodes(plan.center, nodes) if plan.centered else x


# -- natural -----------------------------------------------------------------------------------------------------


def _natural_distance(x: Tensor, plan: Plan, nodes: Tensor | None) -> tuple[Tensor, Tensor]:
    """How far every score is from the nearer end of its range, and whether that is the upper end.

    Outside the range the distance is negative, or, where the activation reflects, that of the mirrored score.
    """
    assert plan.natural is not None
    reflects = plan.natural.saturation == "reflect"
    turned: Tensor | float = 0.0
    if reflects:
        # Take whole periods off. The remainder is exact; what the last step rounds away, and what the rounded period
        # lacks, is paid back below.
        remainder = torch.fmod(x, plan.period)
        step = plan.period * torch.round((remainder - at_nodes(plan.near_center, nodes)) / plan.period)
        y = remainder - step
        rounded = (remainder - y) - step
        turned = torch.round((x - y) / plan.period) * plan.period_rest - rounded
        x = y
    to_upper = (at_nodes(plan.upper, nodes) - x) + (at_nodes(plan.upper_rest, nodes) + turned)
    to_lower = (x - at_nodes(plan.lower, nodes)) - (at_nodes(plan.lower_rest, nodes) + turned)
    is_upper = to_upper < to_lower
    distance = torch.where(is_upper, to_upper, to_lower)
    if reflects:
        distance = torch.where(distance < 0, -distance, distance)
    return distance, is_upper


def _natural_tangent(x: Tensor, plan: Plan, nodes: Tensor | None) -> tuple[Tensor, Tensor]:
    """tan(u), u in [0, pi/4] the angle to the nearer end, and whether that is the upper end, where a = 1."""
    assert plan.natural is not None
    distance, is_upper = _natural_distance(x, plan, nodes)
    if plan.revives:
        distance = _StraightThroughClamp.apply(distance, plan.margin)
    else:
        distance = distance.clamp(min=plan.margin)
    return torch.tan(distance * plan.angle), is_upper


def _natural_logs(tangent: Tensor) -> tuple[Tensor, Tensor]:
    """log cos(u)^2 and log sin(u)^2 from tan(u)."""
    log_big = -torch.log1p(tangent * tangent)
    inside = tangent != 0  # also NaN
    log_tangent = torch.where(inside, torch.log(torch.where(inside, tangent, 1.0)), -torch.inf)
    return log_big, log_big + 2 * log_tangent


# -- revival -----------------------------------------------------------------------------------------------------


def gate_revival(x: Tensor, plan: Plan) -> Tensor:
    """The scores themselves; on the way back, outside the range, only a gradient whose descent step leads back inside.

    The gate looks at the whole gradient of a score, so it stands where the scores come in; behind it, the clamp passes
    everything.
    """
    distance, is_upper = _natural_distance(x.detach(), plan, None)
    side = torch.where(is_upper, 1.0, -1.0).to(x.dtype)
    outside = torch.where(distance < plan.margin, side, 0.0)
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
