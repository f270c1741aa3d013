"""Sums of gathered rows (a convolution's patches, and their transpose), and a step of Adam at every run's own rate.

On a GPU one kernel each, else plain tensor code.
"""

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch for CUDA only
    triton = None

DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8
BLOCK = 1024


class Gather(torch.autograd.Function):
    """y[t] = sum over j of x[there[t, j]], for x [..., P, C]; an index of P, one past the end, stands for zero.

    ``back`` is the table of the transpose, so that the gradient is such a sum too: no atomics, the same result always.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(there, back)
        return gather_sum(x, there)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        _, back = ctx.saved_tensors
        return gather_sum(gradient, back), None, None


def gather_sum(x: Tensor, there: Tensor) -> Tensor:
    """[..., P, C] and [T, m] to [..., T, C]."""
    if triton is not None and x.is_cuda:
        return _gather_on_gpu(x, there)
    padded = torch.nn.functional.pad(x, (0, 0, 0, 1))
    found = padded.index_select(-2, there.flatten())
    return found if there.shape[1] == 1 else found.unflatten(-2, tuple(there.shape)).sum(-2)


def _gather_on_gpu(x: Tensor, there: Tensor) -> Tensor:
    (places, channels), (out, most) = x.shape[-2:], there.shape
    result = x.new_empty((*x.shape[:-2], out, channels))
    images = result.numel() // (out * channels)
    grid = (triton.cdiv(out * channels, BLOCK), images)
    # the larger number of programs goes first: the second axis of a grid ends at 65535
    _gather_kernel[grid[::-1]](x.contiguous(), there, result, places, out, channels, most, BLOCK, num_warps=4)
    return result


@torch.no_grad()
def adam_step(p: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, rates: Tensor, step: Tensor) -> None:
    """Change parameters [R, P] and their moments in place; ``rates`` [R, 1], ``step`` counts from 1.

    The VAE trains 5% faster with torch's fused Adam, but that takes one rate for all rows.
    """
    done = step.to(torch.float32)
    size = rates / (1 - DECAY**done)
    scale = torch.rsqrt(1 - SQUARE_DECAY**done)
    if triton is not None and p.is_cuda:
        _adam_on_gpu(p, gradient, mean, square, size, scale)
        return
    mean.lerp_(gradient, 1 - DECAY)
    square.mul_(SQUARE_DECAY).addcmul_(gradient, gradient, value=1 - SQUARE_DECAY)
    p.sub_(size * mean / (square.sqrt().mul_(scale).add_(EPSILON)))


def _adam_on_gpu(p: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, size: Tensor, scale: Tensor) -> None:
    runs, count = p.shape
    grid = (triton.cdiv(count, BLOCK), runs)
    arguments = (p, gradient.contiguous(), mean, square, size, scale)
    _adam_kernel[grid](*arguments, count, 1 - DECAY, 1 - SQUARE_DECAY, EPSILON, BLOCK, num_warps=4)


if triton is not None:

    @triton.jit
    def _gather_kernel(  # type: ignore[no-untyped-def]
        x_ptr, there_ptr, out_ptr, P: tl.constexpr, T: tl.constexpr, C: tl.constexpr, M: tl.constexpr,
        BLOCK: tl.constexpr,
    ):  # fmt: skip
        image = tl.program_id(0).to(tl.int64)
        cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = cell < T * C
        place, channel = cell // C, cell % C
        total = tl.zeros((BLOCK,), tl.float32)
        for j in tl.static_range(M):
            source = tl.load(there_ptr + place * M + j, inside, other=P).to(tl.int32)
            total += tl.load(x_ptr + image * (P * C) + source * C + channel, source < P, other=0.0)
        tl.store(out_ptr + image * (T * C) + cell, total, inside)

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
