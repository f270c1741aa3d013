"""From tensors to programs: each function here allocates its results and starts one or two kernels."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from catnat.torch._gpu import head as head_kernels
from catnat.torch._gpu import path as path_kernels
from catnat.torch._gpu import pull as pull_kernels
from catnat.torch._gpu import walk as walk_kernels
from catnat.torch._gpu.blocks import (
    Block,
    Form,
    head_block,
    path_height,
    path_span,
    pull_block,
    walk_block,
    writes_whole_rows,
)
from catnat.torch._gpu.coin import NATURAL, Coin
from catnat.torch._gpu.launcher import Launcher

MAX_STRIDE = 1 << 21  # between rows: a program's rows are addressed by 32-bit numbers
# what a gradient is of, what a path's kernels write, and what a head is asked for besides the entropy
LOG_P, P, HEAD = (constant.value for constant in (pull_kernels.LOG_P, pull_kernels.P, pull_kernels.HEAD))
LOSS, SUMS = (constant.value for constant in (path_kernels.LOSS, path_kernels.SUMS))
ENTROPY, GIVEN, DRAWN = (constant.value for constant in (head_kernels.ENTROPY, head_kernels.GIVEN, head_kernels.DRAWN))
# A class id out of range is a device assert; but not every sum shall be checked for overflow too.
CHECKED = {"debug": True, "sanitize_overflow": False}


class Rows(NamedTuple):
    """The scores as rows that are one stride apart."""

    tensor: Tensor
    rows: int
    stride: int

    @staticmethod
    def of(x: Tensor) -> Rows:
        """Batch axes fold into one, without a copy where strides allow it."""
        if not x.is_contiguous() or x.is_neg():
            x = x.resolve_neg()
            axes = [(size, stride) for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
            folds = all(outer == size * inner for (_, outer), (size, inner) in zip(axes, axes[1:], strict=False))
            if folds and (x.shape[-1] == 1 or x.stride(-1) == 1) and (not axes or axes[-1][1] <= MAX_STRIDE):
                return Rows(x, math.prod(x.shape[:-1]), axes[-1][1] if axes else 0)
            x = x.contiguous()
        return Rows(x, math.prod(x.shape[:-1]), x.shape[-1])


@lru_cache(maxsize=1024)
def _numbers(activation: int, amplitude: float, least: float) -> tuple[float, ...]:
    """Half the range, what that rounds away in radians, radians a unit of score, the least angle, the steepness."""
    if amplitude == 0:
        return (0.0,) * 5
    angle = math.pi / (2 * amplitude)
    half = float(np.float32(amplitude / 2))
    # of -|z| / 2 to the base 2 in the angle, past the joint
    steepness = 2 * math.log2(math.e) / math.sin(2 * least) if activation == NATURAL else 0.0
    return half, (amplitude / 2 - half) * angle, angle, least, steepness


def _in_memory(tensor: Tensor | None) -> Tensor | None:
    """The same numbers without gaps, none of them to be negated when read."""
    return None if tensor is None else tensor.resolve_neg().contiguous()


def _programs(rows: int, form: Form) -> int:
    return -(-rows // form.height) << form.above


class Call(NamedTuple):
    """What all kernels of a call are compiled for; a coin without its tensor, so that it can be looked up."""

    coin: Coin
    exact: bool
    contiguous: bool

    @staticmethod
    def of(x: Tensor, rows: Rows, coin: Coin) -> Call:
        """That of scores."""
        return Call(coin._replace(centers=None), x.element_size() == 4, rows.stride == coin.classes - 1)

    def form(self, classes: int, block: Block) -> Form:
        """For the top of the tree that has so many classes."""
        return Form.of(self.coin, classes, self.exact, self.contiguous, block)


# -- every class -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _walk_launcher(call: Call, exp: bool) -> tuple[Launcher, Form]:
    form = call.form(call.coin.classes, walk_block(call.coin.classes, call.exact))
    return Launcher(walk_kernels.walk, {"EXP": exp, "F": form}, form.warps), form


def walk(x: Tensor, coin: Coin, exp: bool) -> Tensor:
    """log p of every class, or p itself: [..., K-1] to [..., K]."""
    rows = Rows.of(x)
    out = x.new_empty((*x.shape[:-1], coin.classes))
    if rows.rows > 0:
        launcher, form = _walk_launcher(Call.of(x, rows, coin), exp)
        launcher(
            x.device, _programs(rows.rows, form),
            rows.tensor, out, coin.centers, rows.rows, rows.stride, *_numbers(*coin[3:]),
        )  # fmt: skip
    return out


@lru_cache(maxsize=1024)
def _pull_launcher(call: Call, of: int, classes: int) -> tuple[Launcher, Form]:
    form = call.form(classes, pull_block(classes, call.exact))
    gather = form.above == 0 and writes_whole_rows(classes, call.exact)
    return Launcher(pull_kernels.pull, {"OF": of, "GATHER": gather, "F": form}, form.warps), form


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
    call, classes = Call.of(x, rows, coin), coin.classes
    while True:
        launcher, form = _pull_launcher(call, of, classes)
        sums = torch.empty((rows.rows, 1 << form.above), dtype=torch.float32, device=x.device) if form.above else None
        launcher(
            x.device, _programs(rows.rows, form),
            rows.tensor, below, index, of_entropy, dx, sums, coin.centers, rows.rows, rows.stride, *_numbers(*coin[3:]),
        )  # fmt: skip
        if sums is None:
            return dx
        classes, below, index, of_entropy, of = 1 << form.above, sums, None, None, LOG_P


# -- given classes -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _path_launcher(call: Call, kernel: str, one: bool, what: int | None) -> tuple[Launcher, Form]:
    """For scores of 16 bits too they are exact: there is little to compute."""
    form = call._replace(exact=True).form(call.coin.classes, Block(32, 1, 4))
    constants: dict[str, Any] = {"ONE": one} if what is None else {"ONE": one, "WHAT": what}
    if kernel == "pull_path":
        constants["SPAN"], height = path_span(form.nodes)
    else:
        height = path_height(form.levels) if kernel == "log_path" else 128
    form = replace(form, height=height, above=0)
    checked = CHECKED if kernel == "log_path" else {}
    return Launcher(getattr(path_kernels, kernel), {**constants, "F": form}, form.warps, **checked), form


def _log_path(
    x: Tensor, index: Tensor, out: Tensor | None, coin: Coin, what: int, ignored: int, weight: Tensor | None
) -> Tensor:
    rows, items = Rows.of(x), index.numel()
    launcher, form = _path_launcher(Call.of(x, rows, coin), "log_path", items == rows.rows, what)
    programs = _programs(items, form)
    if out is None:
        out = torch.empty(2 * programs, dtype=torch.float32, device=x.device)
    if items > 0:
        launcher(
            x.device, programs, rows.tensor, index.contiguous(), weight, out, coin.centers,
            items, items // max(rows.rows, 1), ignored, rows.stride, *_numbers(*coin[3:]),
        )  # fmt: skip
    return out


def log_path(x: Tensor, index: Tensor, coin: Coin) -> Tensor:
    """float32 log p of ``index`` [..., M], M classes a row, from scores [..., K-1]."""
    return _log_path(x, index, torch.empty(index.shape, dtype=torch.float32, device=x.device), coin, LOG_P, 0, None)


REDUCE = {mean: Launcher(path_kernels.reduce, {"MEAN": mean, "WIDTH": 2048}, 8) for mean in (False, True)}


def loss(
    x: Tensor, target: Tensor, coin: Coin, ignored: int, weight: Tensor | None, reduction: str
) -> tuple[Tensor, Tensor | None]:
    """- w log p of one class a row, 0 for the class id ``ignored``: of every row, or the sum or mean and a row's share."""
    weight = _in_memory(weight)
    if reduction == "none":
        return _log_path(x, target, x.new_empty(target.shape), coin, LOSS, ignored, weight), None
    sums = _log_path(x, target, None, coin, SUMS, ignored, weight)
    found, share = x.new_empty(()), torch.empty((), dtype=torch.float32, device=x.device)
    REDUCE[reduction == "mean"](x.device, 1, sums, found, share, sums.numel() // 2)
    return found, share


def pull_path(
    x: Tensor,
    index: Tensor,
    gradient: Tensor,
    coin: Coin,
    what: int = LOG_P,
    ignored: int = 0,
    weight: Tensor | None = None,
    share: Tensor | None = None,
) -> Tensor:
    """The gradient of `log_path` or of `loss`."""
    rows = Rows.of(x)
    samples = index.numel() // max(rows.rows, 1)
    # several gradients of a row are added up in float32
    dx = torch.empty(x.shape, dtype=x.dtype if samples <= 1 else torch.float32, device=x.device)
    if dx.numel() > 0:
        launcher, form = _path_launcher(Call.of(x, rows, coin), "pull_path", samples == 1, what)
        launcher(
            x.device, -(-dx.numel() // launcher.constants["SPAN"]),
            rows.tensor, index.contiguous(), _in_memory(weight), _in_memory(gradient), share, dx, coin.centers,
            rows.rows, samples, ignored, rows.stride, *_numbers(*coin[3:]),
        )  # fmt: skip
    return dx if dx.dtype == x.dtype else dx.to(x.dtype)


def sample(x: Tensor, seed: Tensor, count: int, coin: Coin) -> Tensor:
    """[count, ...] draws from scores [..., K-1]; ``seed`` is one int64 on the device."""
    rows = Rows.of(x)
    out = torch.empty((count, *x.shape[:-1]), dtype=torch.int64, device=x.device)
    if out.numel() > 0:
        launcher, form = _path_launcher(Call.of(x, rows, coin), "sample", count == 1, None)
        launcher(
            x.device, _programs(out.numel(), form),
            rows.tensor, seed, out, coin.centers, out.numel(), rows.rows, rows.stride, *_numbers(*coin[3:]),
        )  # fmt: skip
    return out


# -- a policy's head ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _head_launcher(call: Call, what: int) -> tuple[Launcher, Form]:
    form = call._replace(exact=True).form(call.coin.classes, head_block(call.coin.classes))
    assert form.above == 0
    checked = CHECKED if what == GIVEN else {}
    return Launcher(head_kernels.head, {"WHAT": what, "F": form}, form.warps, **checked), form


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
        launcher, form = _head_launcher(Call.of(x, rows, coin), what)
        launcher(
            x.device, _programs(rows.rows, form),
            rows.tensor, index, seed, log_prob, entropy, coin.centers, rows.rows, rows.stride, *_numbers(*coin[3:]),
        )  # fmt: skip
    return log_prob, entropy, index
