"""A node in plain differentiable tensor code: the log-odds of its right branch, and what follows from them.

An activation gives the logit z of a score and its slope. Everything else is derived here, for all activations alike:
log a = log sigmoid(z), log(1-a) = log sigmoid(-z), the Fisher information a (1-a) (dz/dx)^2, and the way back from two
masses to a score. Only the paper's natural activation (``tail=0``) needs more than its formula: near the ends of its
range the distance to the end is all that matters, so the ends are kept as sums of two numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from catnat.torch._plan import FORMULAS, Paper, Plan, at_nodes


def logit(x: Tensor, plan: Plan, nodes: Tensor | None = None) -> Tensor:
    """z of scores ``x``: all of them along the last axis, or those of the given zero-based nodes."""
    if plan.paper is None:
        return FORMULAS[plan.formula].logit(plan.activation, _offset(x, plan, nodes), torch)
    distance, is_upper = _distance(x, plan.paper, nodes)
    distance = distance.clamp(min=plan.paper.margin)
    inside = distance != 0  # also NaN
    tangent = torch.tan(torch.where(inside, distance, 1.0) * plan.paper.angle)
    z = torch.where(inside, -2 * torch.log(tangent), torch.inf)
    return torch.where(is_upper, z, -z)


def slope(x: Tensor, plan: Plan) -> Tensor:
    """dz/dx; 0 where the paper's activation sits on its floor."""
    if plan.paper is None:
        return FORMULAS[plan.formula].slope(plan.activation, _offset(x, plan, None), torch)
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
    """The score at which a : 1-a is ``right : left``, from the logarithms of two masses; 0 where both are -inf."""
    empty = (left == -torch.inf) & (right == -torch.inf)
    left, right = torch.where(empty, 0.0, left), torch.where(empty, 0.0, right)
    offset = FORMULAS[plan.formula].inverse(plan.activation, right - left, torch)
    return torch.where(empty, 0.0, offset + plan.center)


def log_mass(mass: Tensor) -> Tensor:
    """The logarithm, at which nothing pulls where a mass underflows: a gradient of 1/0 would make those of all NaN."""
    lost = mass < torch.finfo(mass.dtype).tiny
    return torch.where(lost, mass.detach().log(), torch.where(lost, 1.0, mass).log())


def is_saturated(x: Tensor, plan: Plan) -> Tensor:
    """Which scores lie beyond the natural range: on the straight lines or, for the paper's activation, on the floor."""
    if plan.paper is not None:
        return _distance(x, plan.paper, None)[0] <= plan.paper.margin
    return _offset(x, plan, None).abs() > plan.range


def _offset(x: Tensor, plan: Plan, nodes: Tensor | None) -> Tensor:
    return x - at_nodes(plan.center, nodes) if plan.centered else x


def _distance(x: Tensor, paper: Paper, nodes: Tensor | None) -> tuple[Tensor, Tensor]:
    """How far inside its range every score is from the nearer end, and whether that is the upper end."""
    to_upper = (at_nodes(paper.upper, nodes) - x) + at_nodes(paper.upper_rest, nodes)
    to_lower = (x - at_nodes(paper.lower, nodes)) - at_nodes(paper.lower_rest, nodes)
    is_upper = to_upper < to_lower
    return torch.where(is_upper, to_upper, to_lower), is_upper
