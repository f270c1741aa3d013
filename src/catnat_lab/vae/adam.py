"""One step of Adam for many runs, each at its own rate. On a GPU one kernel, else plain tensor code."""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch for CUDA only
    triton = None

DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8
BLOCK = 1024


@torch.no_grad()
def adam_step(p: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, rates: Tensor, step: Tensor) -> None:
    """Change parameters [R, P] and their moments in place; ``rates`` [R, 1], ``step`` counts from 1."""
    done = step.to(torch.float32)
    size = rates / (1 - DECAY**done)
    scale = torch.rsqrt(1 - SQUARE_DECAY**done)
    if triton is not None and p.is_cuda:
        _on_gpu(p, gradient, mean, square, size, scale)
        return
    mean.lerp_(gradient, 1 - DECAY)
    square.mul_(SQUARE_DECAY).addcmul_(gradient, gradient, value=1 - SQUARE_DECAY)
    p.sub_(size * mean / (square.sqrt().mul_(scale).add_(EPSILON)))


def _on_gpu(p: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, size: Tensor, scale: Tensor) -> None:
    runs, count = p.shape
    grid = (triton.cdiv(count, BLOCK), runs)
    arguments = (p, gradient.contiguous(), mean, square, size, scale)
    _adam_kernel[grid](*arguments, count, 1 - DECAY, 1 - SQUARE_DECAY, EPSILON, BLOCK, num_warps=4)


if triton is not None:

    @triton.jit
    def _adam_kernel(  # type: ignore[no-untyped-def]
        p_ptr, gradient_ptr, mean_ptr, square_ptr, size_ptr, scale_ptr, count, new, new_square, epsilon,
        BLOCK: tl.constexpr,
    ):  # fmt: skip
        run = tl.program_id(1).to(tl.int64)
        cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside, at = cell < count, run * count + cell
        gradient = tl.load(gradient_ptr + at, inside, other=0.0)
        mean = tl.load(mean_ptr + at, inside, other=0.0)
        square = tl.load(square_ptr + at, inside, other=0.0)
        mean += new * (gradient - mean)
        square += new_square * (gradient * gradient - square)
        change = tl.load(size_ptr + run) * mean / (tl.sqrt(square) * tl.load(scale_ptr) + epsilon)
        tl.store(mean_ptr + at, mean, inside)
        tl.store(square_ptr + at, square, inside)
        tl.store(p_ptr + at, tl.load(p_ptr + at, inside, other=0.0) - change, inside)
