"""A step of Adam for many runs at once, each at its own rate; torch's fused one takes one rate for all."""

import torch
from torch import Tensor

DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8


@torch.no_grad()
def adam_step(p: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, rates: Tensor, step: Tensor) -> None:
    """Change parameters [R, P] and their moments in place; ``rates`` [R, 1], ``step`` counts from 1."""
    done = step.to(torch.float32)
    size = rates / (1 - DECAY**done)
    scale = torch.rsqrt(1 - SQUARE_DECAY**done)
    mean.lerp_(gradient, 1 - DECAY)
    square.mul_(SQUARE_DECAY).addcmul_(gradient, gradient, value=1 - SQUARE_DECAY)
    p.sub_(size * mean / (square.sqrt().mul_(scale).add_(EPSILON)))
