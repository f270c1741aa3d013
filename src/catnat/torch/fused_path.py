"""log p of given classes by the natural activation, on a CPU in eager mode, with a hand-written backward pass.

A branch has probability sin(u)^2, so a path has the square of a product of sines: one logarithm a class instead of one
a step, and slopes that are cotangents. The floor of the activation keeps that product from underflowing; where it could
(`Plan.path_products`), and for everything but plain eager mode, `catnat.torch.eager.log_path` is the way.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from catnat.torch import eager
from catnat.torch.compat import in_forward_mode, is_plain, must_be_plain
from catnat.torch.fused import plain_backward
from catnat.torch.plan import Plan


def applies(x: Tensor, index: Tensor, plan: Plan) -> bool:
    """Whether `log_path` here may stand in for the plain one, now and for these tensors."""
    return plan.path_products and type(index) is Tensor and is_plain(x) and not in_forward_mode()


def log_path(x: Tensor, index: Tensor, plan: Plan) -> Tensor:
    """log p of one class a row [R], or of several [R, M], from scores [R, K-1]."""
    found: Tensor = _LogPath.apply(x, index, plan)
    return found


class _LogPath(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, plan: Plan) -> Tensor:
        flat = index if index.dim() == 1 else index.reshape(-1)
        nodes, signs, picked = eager.pick_path(x, index, flat, plan)
        done = None if plan.even else signs == 0
        if done is not None:
            picked.masked_fill_(done, 0.0)
        angles = eager.path_angles(picked, signs, flat, plan)
        least = plan.margin * plan.angle
        kept = angles.clamp(least, math.pi / 2 - least)
        if not torch.equal(kept, angles):
            signs.mul_(torch.eq(kept, angles, out=angles))  # no gradient past the floor
        sines = kept.sin()
        if done is not None:
            sines.masked_fill_(done, 1.0)
        ctx.plan = plan
        if ctx.needs_input_grad[0]:
            ctx.index, ctx.nodes = index, nodes  # integers: nothing for autograd to watch
            ctx.save_for_backward(x, kept.cos_().mul_(signs).div_(sines))
        logs = sines.prod(1).log_()
        logs.add_(logs)
        return logs if index.dim() == 1 else logs.view(index.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, slopes = ctx.saved_tensors
        index, nodes = ctx.index, ctx.nodes
        if must_be_plain(gradient):
            return plain_backward(lambda x: eager.log_path(x, index, ctx.plan), x, gradient), None, None
        gradient = gradient * (2 * ctx.plan.angle)
        if index.dim() == 1:
            slopes = slopes * gradient.unsqueeze(1)
        else:
            slopes = slopes * gradient.reshape(-1, 1)
            slopes, nodes = (t.view(x.shape[0], index.shape[1] * ctx.plan.depth) for t in (slopes, nodes))
        return torch.zeros_like(x).scatter_add_(1, nodes, slopes), None, None
