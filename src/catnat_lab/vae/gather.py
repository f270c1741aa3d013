"""Sums of gathered rows: a convolution's patches, and their transpose. On a GPU one kernel, else plain tensor code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch for CUDA only
    triton = None

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
        return _on_gpu(x, there)
    padded = torch.nn.functional.pad(x, (0, 0, 0, 1))
    found = padded.index_select(-2, there.flatten())
    return found if there.shape[1] == 1 else found.unflatten(-2, tuple(there.shape)).sum(-2)


def _on_gpu(x: Tensor, there: Tensor) -> Tensor:
    (places, channels), (out, most) = x.shape[-2:], there.shape
    result = x.new_empty((*x.shape[:-2], out, channels))
    images = result.numel() // (out * channels)
    grid = (triton.cdiv(out * channels, BLOCK), images)
    # the larger number of programs goes first: the second axis of a grid ends at 65535
    _gather_kernel[grid[::-1]](x.contiguous(), there, result, places, out, channels, most, BLOCK, num_warps=4)
    return result


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
