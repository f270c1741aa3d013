"""From tensors to programs: each function here allocates its results and starts one or two kernels."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from catnat.torch._gpu.coin import Coin
from catnat.torch._gpu import head as head_kernels
from catnat.torch._gpu import path as path_kernels
from catnat.torch._gpu import pull as pull_kernels
from catnat.torch._gpu import walk as walk_kernels
from catnat.torch._gpu.blocks import Block, head_block, path_height, pull_block, walk_block, writes_whole_rows
from catnat.torch._gpu.launcher import Launcher

MAX_STRIDE = 1 << 21  # between rows: a program's rows are addressed by 32-bit numbers
# what a gradient is of, and what a head is asked for besides the entropy
LOG_P, P, HEAD = (constant.value for constant in (pull_kernels.LOG_P, pull_kernels.P, pull_kernels.HEAD))
ENTROPY, GIVEN, DRAWN = (constant.value for constant in (head_kernels.ENTROPY, head_kernels.GIVEN, head_kernels.DRAWN))


class Switches(NamedTuple):
    """What all kernels are compiled for."""

    classes: int
    kind: int
    natural: bool
    saturation: int
    strides: int  # that tell where a row begins; none where rows follow one another

    @staticmethod
    def of(coin: Coin, rows: Rows) -> Switches:
        """Those of a call."""
        strides = 2 if rows.inner else 0 if rows.stride == coin.classes - 1 else 1
        return Switches(coin.classes, coin.kind, coin.amplitude > 0, coin.saturation, strides)

    @property
    def constants(self) -> dict[str, Any]:
        """By the kernels' names."""
        return {
            "STRIDES": self.strides,
            "NATURAL": self.natural,
            "ENDS": self.kind,
            "SATURATION": self.saturation,
        }


class Rows(NamedTuple):
    """The scores as rows: row r begins at (r // inner) * outer_stride + (r % inner) * stride."""

    tensor: Tensor
    rows: int
    stride: int
    outer_stride: int
    inner: int  # 0 where all rows are one stride apart

    @staticmethod
    def of(x: Tensor) -> Rows:
        """Batch axes fold into two at most, without a copy where strides allow it."""
        x = x.resolve_neg()
        if x.is_contiguous():
            width = x.shape[-1]
            return Rows(x, x.numel() // width if width else 0, width, 0, 0)
        axes: list[tuple[int, int]] = []  # (size, stride), outermost first
        for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
            if size == 1:
                continue
            if axes and axes[-1][1] == size * stride:
                axes[-1] = (axes[-1][0] * size, stride)
            else:
                axes.append((size, stride))
        far = any(stride > MAX_STRIDE for _, stride in axes[-1:])
        if len(axes) > 2 or far or (x.shape[-1] > 1 and x.stride(-1) != 1):
            return Rows.of(x.contiguous())
        rows = math.prod(size for size, _ in axes)
        if len(axes) == 2:
            return Rows(x, rows, axes[1][1], axes[0][1], axes[1][0])
        return Rows(x, rows, axes[0][1] if axes else 0, 0, 0)

    @property
    def strides(self) -> tuple[int, int, int]:
        """As the kernels take them."""
        return self.stride, self.outer_stride, self.inner


@lru_cache(maxsize=1024)
def _numbers(amplitude: float, least: float) -> tuple[float, ...]:
    """Half the range and its rest in radians, radians a unit of score, the least angle, the period and its rest."""
    if amplitude == 0:
        return (0.0,) * 6
    angle = math.pi / (2 * amplitude)
    half, period = (float(np.float32(value)) for value in (amplitude / 2, 2 * amplitude))
    return half, (amplitude / 2 - half) * angle, angle, least, period, 2 * amplitude - period


def _tree(block: Block) -> dict[str, Any]:
    return {
        "CLASSES": block.classes,
        "DEPTH": block.depth,
        "ABOVE": block.above,
        "HEIGHT": block.height,
        "EVEN": block.even,
        "PART": block.part,
    }


def _in_memory(tensor: Tensor | None) -> Tensor | None:
    """The same numbers without gaps, none of them to be negated when read."""
    return None if tensor is None else tensor.resolve_neg().contiguous()


def _programs(rows: int, height: int) -> int:
    return -(-rows // height)


# -- every class -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _walk_launcher(switches: Switches, small: bool, exp: bool) -> tuple[Launcher, Block]:
    block = walk_block(switches.classes, small)
    constants = {**_tree(block), **switches.constants, "EXACT": not small, "EXP": exp}
    return Launcher(walk_kernels.walk, constants, num_warps=block.warps, num_stages=1), block


def walk(x: Tensor, coin: Coin, exp: bool) -> Tensor:
    """log p of every class, or p itself: [..., K-1] to [..., K]."""
    rows = Rows.of(x)
    out = x.new_empty((*x.shape[:-1], coin.classes))
    if rows.rows == 0:
        return out
    launcher, block = _walk_launcher(Switches.of(coin, rows), x.element_size() == 2, exp)
    launcher(
        x.device, _programs(rows.rows, block.height) << block.above,
        rows.tensor, out, coin.ends, rows.rows, *rows.strides, *_numbers(coin.amplitude, coin.least),
    )  # fmt: skip
    return out


@lru_cache(maxsize=1024)
def _pull_launcher(switches: Switches, small: bool, of: int, classes: int) -> tuple[Launcher, Block]:
    block = pull_block(classes, small)
    constants = {
        **_tree(block),
        **switches.constants,
        "EXACT": not small,
        "OF": of,
        "NODES": switches.classes - 1,
        "THREADS": block.threads,
        "GATHER": block.above == 0 and writes_whole_rows(classes, small),
    }
    return Launcher(pull_kernels.pull, constants, num_warps=block.warps, num_stages=1), block


def pull(
    x: Tensor,
    gradient: Tensor | None,
    coin: Coin,
    of: int,
    index: Tensor | None = None,
    of_entropy: Tensor | None = None,
) -> Tensor:
    """The gradient in the scores of what has this gradient in log p, in p, or in a head's log p and entropy."""
    rows = Rows.of(x)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if rows.rows == 0:
        return dx
    below, index, of_entropy = (_in_memory(t) for t in (gradient, index, of_entropy))
    switches, classes = Switches.of(coin, rows), coin.classes
    while True:
        launcher, block = _pull_launcher(switches, x.element_size() == 2, of, classes)
        sums = torch.empty((rows.rows, 1 << block.above), dtype=torch.float32, device=x.device) if block.above else None
        launcher(
            x.device, _programs(rows.rows, block.height) << block.above,
            rows.tensor, below, index, of_entropy, dx, sums, coin.ends, rows.rows, *rows.strides,
            *_numbers(coin.amplitude, coin.least),
        )  # fmt: skip
        if sums is None:
            return dx
        classes, below, index, of_entropy, of = 1 << block.above, sums, None, None, LOG_P


# -- one class a row ---------------------------------------------------------------------------------------------

# A class id out of range is a device assert; but not every sum shall be checked for overflow too.
CHECKED = {"debug": True, "sanitize_overflow": False}


@lru_cache(maxsize=1024)
def _path_launcher(switches: Switches, kernel: str, one: bool, loss: bool = False) -> tuple[Launcher, int]:
    depth = (switches.classes - 1).bit_length()
    height, warps = path_height(depth) if kernel != "sample" else (128, 4)
    constants = {"CLASSES": switches.classes, "DEPTH": depth, "HEIGHT": height, "ONE": one, **switches.constants}
    if kernel != "sample":
        constants |= {"STEPS": 1 << (depth - 1).bit_length(), "LOSS": loss}
    checked = CHECKED if kernel == "log_path" else {}
    return Launcher(getattr(path_kernels, kernel), constants, num_warps=warps, num_stages=1, **checked), height


def log_path(x: Tensor, index: Tensor, coin: Coin, ignored: int | None = None) -> Tensor:
    """float32 log p of ``index`` [..., M], M classes a row, from scores [..., K-1].

    With ``ignored``, - log p instead: the loss against targets, 0 for that one.
    """
    rows, index = Rows.of(x), index.contiguous()
    out = torch.empty(index.shape, dtype=torch.float32, device=x.device)
    if index.numel() == 0:
        return out
    launcher, height = _path_launcher(Switches.of(coin, rows), "log_path", index.shape[-1] == 1, ignored is not None)
    launcher(
        x.device, _programs(index.numel(), height),
        rows.tensor, index, out, coin.ends, index.numel(), index.shape[-1], ignored or 0, *rows.strides,
        *_numbers(coin.amplitude, coin.least),
    )  # fmt: skip
    return out


def pull_path(x: Tensor, index: Tensor, gradient: Tensor, coin: Coin, ignored: int | None = None) -> Tensor:
    """Its gradient."""
    rows, index, samples = Rows.of(x), index.contiguous(), index.shape[-1]
    # several gradients of a row are added up in float32
    dx = torch.zeros(x.shape, dtype=x.dtype if samples == 1 else torch.float32, device=x.device)
    if index.numel() > 0:
        launcher, height = _path_launcher(Switches.of(coin, rows), "pull_path", samples == 1, ignored is not None)
        launcher(
            x.device, _programs(rows.rows, height),
            rows.tensor, index, _in_memory(gradient), dx, coin.ends, rows.rows, samples, ignored or 0,
            *rows.strides, *_numbers(coin.amplitude, coin.least),
        )  # fmt: skip
    return dx if dx.dtype == x.dtype else dx.to(x.dtype)


def sample(x: Tensor, seed: Tensor, count: int, coin: Coin) -> Tensor:
    """[count, ...] draws from scores [..., K-1]; ``seed`` is one int64 on the device."""
    rows = Rows.of(x)
    out = torch.empty((count, *x.shape[:-1]), dtype=torch.int64, device=x.device)
    if out.numel() == 0:
        return out
    launcher, height = _path_launcher(Switches.of(coin, rows), "sample", count == 1)
    launcher(
        x.device, _programs(out.numel(), height),
        rows.tensor, seed, out, coin.ends, out.numel(), rows.rows, *rows.strides,
        *_numbers(coin.amplitude, coin.least),
    )  # fmt: skip
    return out


# -- a policy's head ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _head_launcher(switches: Switches, small: bool, what: int) -> tuple[Launcher, Block]:
    block = head_block(switches.classes)
    assert block.above == 0
    constants = {
        **_tree(block),
        **switches.constants,
        "EXACT": not small,
        "WHAT": what,
        "STEPS": 1 << (block.depth - 1).bit_length(),
    }
    checked = CHECKED if what == GIVEN else {}
    return Launcher(head_kernels.head, constants, num_warps=block.warps, num_stages=1, **checked), block


def head(
    x: Tensor, index: Tensor | None, seed: Tensor | None, coin: Coin
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """float32 log p of classes, the rows' entropies, and the classes: drawn by a seed, given, or neither."""
    rows, batch = Rows.of(x), x.shape[:-1]
    what = GIVEN if index is not None else DRAWN if seed is not None else ENTROPY
    entropy = torch.empty(batch, dtype=torch.float32, device=x.device)
    log_prob = None if what == ENTROPY else torch.empty_like(entropy)
    if what == DRAWN:
        index = torch.empty(batch, dtype=torch.int64, device=x.device)
    elif index is not None:
        index = index.contiguous()
    if rows.rows > 0:
        launcher, block = _head_launcher(Switches.of(coin, rows), x.element_size() == 2, what)
        launcher(
            x.device, _programs(rows.rows, block.height),
            rows.tensor, index, seed, log_prob, entropy, coin.ends, rows.rows, *rows.strides,
            *_numbers(coin.amplitude, coin.least),
        )  # fmt: skip
    return log_prob, entropy, index
