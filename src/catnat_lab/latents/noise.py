"""Random numbers that depend on a key and a count alone: the same in every stack, on every device, after every stop.

SplitMix64's finalizer over a counter. A captured graph can draw them, and a run draws the same alone as among others.
"""

import torch
from torch import Tensor

GOLDEN, FIRST, SECOND = (
    each - (1 << 64) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # as signed numbers, whose products wrap around


def gumbels(keys: Tensor, step: Tensor, shape: tuple[int, ...]) -> Tensor:
    """float32 Gumbel noise [S, *shape] from int64 keys [S] and a step, a scalar or [S, ...] of further counts."""
    count = torch.Size(shape).numel()
    start = _mixed(keys * GOLDEN + _mixed(step + 1)).unsqueeze(-1)
    bits = _mixed(start + torch.arange(1, count + 1, device=keys.device) * GOLDEN)
    # 52 bits and a half: neither 0 nor 1 in float64
    uniform = (_shifted(bits, 12).double() + 0.5) * 2.0**-52
    return (-(-uniform.log()).log()).float().unflatten(-1, shape)


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (x >> by) & ((1 << (64 - by)) - 1)
