"""From tensors to programs: each function after `Launcher` allocates its results and starts one or two kernels."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from triton.runtime import driver

from catnat.torch._bernoulli import NATURAL, Bernoulli
from catnat.torch._gpu import blocks
from catnat.torch._gpu import path as path_kernels
from catnat.torch._gpu import pull as pull_kernels
from catnat.torch._gpu import walk as walk_kernels
from catnat.torch._gpu.blocks import Block, Form

LARGEST = 2**31 - 1  # of a 32-bit number
MAX_STRIDE = 1 << 21  # between rows: a program's rows are addressed by 32-bit numbers
# what a gradient is of, what is asked of a path, and of a head besides the entropy
LOG_P, P, HEAD = (constant.value for constant in (pull_kernels.LOG_P, pull_kernels.P, pull_kernels.HEAD))
ASKED = {"none": path_kernels.LOSS.value, "sum": path_kernels.SUM.value, "mean": path_kernels.MEAN.value}
ENTROPY, GIVEN, DRAWN = (constant.value for constant in (path_kernels.ENTROPY, path_kernels.GIVEN, path_kernels.DRAWN))
# A class id out of range is a device assert; but not every sum shall be checked for overflow too.
CHECKED = {"debug": True, "sanitize_overflow": False}


class Launcher:
    """A jitted kernel with its constants and numbers; its arguments are tensors, then integers, then those.

    Triton looks at every argument of every call to find the binary that was compiled for its like, which takes several
    times as long as the start itself. A call here remembers the binary of a like call: for the same dtypes and the same
    alignment of pointers. The kernels ask Triton not to look at the values of numbers (`do_not_specialize`), so that
    another size of batch is not compiled anew.
    """

    def __init__(
        self, kernel: Any, constants: dict[str, Any], warps: int, numbers: tuple[float, ...] = (), **options: Any
    ) -> None:
        self.kernel, self.constants, self.numbers = kernel, constants, numbers
        self.options = {"num_warps": warps, "num_stages": 1, **options}
        # as the binary takes them: the constants come last in every kernel's list of arguments
        self.values = tuple(constants[name] for name in kernel.arg_names if name in constants)
        self.binaries: dict[Any, Any] = {}
        self.trusts_binaries: bool | None = None  # until one was started by itself

    def __call__(self, programs: int, tensors: tuple[Tensor | None, ...], integers: tuple[int, ...] = ()) -> None:
        """Start so many programs on the current stream of the tensors' device."""
        device = tensors[0].device  # type: ignore[union-attr]
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                self(programs, tensors, integers)
            return
        pointers = [None if t is None else t.data_ptr() for t in tensors]
        kind = (
            device.index,
            *[None if t is None else t.dtype for t in tensors],
            *[p is not None and p % 16 == 0 for p in pointers],
            *[-LARGEST <= i <= LARGEST for i in integers],
        )
        binary = self.binaries.get(kind)
        if binary is not None:
            stream = driver.active.get_current_stream(device.index)
            try:
                # as Triton does itself, but with addresses in place of tensors, which it would ask the driver about
                binary.run(
                    programs, 1, 1, stream, binary.function, binary.packed_metadata, None, None, None,
                    *pointers, *integers, *self.numbers, *self.values,
                )  # fmt: skip
                self.trusts_binaries = True
                return
            except TypeError:
                if self.trusts_binaries:
                    raise
                self.trusts_binaries, self.binaries = False, {}  # a Triton whose binaries take other arguments
        binary = self.kernel[(programs,)](*tensors, *integers, *self.numbers, **self.constants, **self.options)
        if binary is not None and self.trusts_binaries is not False:
            self.binaries[kind] = binary


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
            folds = all(outer == size * inner for (_, outer), (size, inner) in pairwise(axes))
            if folds and (x.shape[-1] == 1 or x.stride(-1) == 1) and (not axes or axes[-1][1] <= MAX_STRIDE):
                return Rows(x, math.prod(x.shape[:-1]), axes[-1][1] if axes else 0)
            x = x.contiguous()
        return Rows(x, math.prod(x.shape[:-1]), x.shape[-1])


def numbers_of(bernoulli: Bernoulli) -> tuple[float, ...]:
    """Half the range, what that rounds away in radians, radians a unit of score, the least angle, the steepness."""
    activation, amplitude, least = bernoulli[3:]
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
    """What all kernels of a call are compiled for; the nodes without their tensor, so that they can be looked up."""

    bernoulli: Bernoulli
    exact: bool
    contiguous: bool

    @staticmethod
    def of(x: Tensor, rows: Rows, bernoulli: Bernoulli) -> Call:
        """That of scores."""
        return Call(bernoulli._replace(centers=None), x.element_size() == 4, rows.stride == bernoulli.classes - 1)

    def form(self, classes: int, block: Block) -> Form:
        """For the top of the tree that has so many classes."""
        return Form.of(self.bernoulli, classes, self.exact, self.contiguous, block)


# -- every class -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _walk_launcher(call: Call, exp: bool) -> tuple[Launcher, Form]:
    block = blocks.walk_block(call.bernoulli.classes, call.exact)
    form = call.form(call.bernoulli.classes, block)
    return Launcher(
        walk_kernels.walk, {"EXP": exp, "F": form}, block.warps, numbers_of(call.bernoulli), maxnreg=block.registers
    ), form


def walk(x: Tensor, bernoulli: Bernoulli, exp: bool) -> Tensor:
    """log p of every class, or p itself: [..., K-1] to [..., K]."""
    rows = Rows.of(x)
    out = x.new_empty((*x.shape[:-1], bernoulli.classes))
    if rows.rows > 0:
        launcher, form = _walk_launcher(Call.of(x, rows, bernoulli), exp)
        launcher(_programs(rows.rows, form), (rows.tensor, out, bernoulli.centers), (rows.rows, rows.stride))
    return out


@lru_cache(maxsize=1024)
def _pull_launcher(call: Call, of: int, classes: int) -> tuple[Launcher, Form]:
    block = blocks.pull_block(classes, call.exact) if classes == call.bernoulli.classes else blocks.TOP_BLOCK
    form = call.form(classes, block)
    gather = form.above == 0 and blocks.writes_whole_rows(classes, call.exact)
    constants = {"OF": of, "GATHER": gather, "F": form}
    return Launcher(
        pull_kernels.pull, constants, block.warps, numbers_of(call.bernoulli), maxnreg=block.registers
    ), form


def pull(
    x: Tensor, gradient: Tensor | None, bernoulli: Bernoulli, of: int,
    index: Tensor | None = None, of_entropy: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The gradient in the scores of what has this gradient in log p, in p, or in a head's log p and entropy."""
    rows = Rows.of(x)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if rows.rows == 0:
        return dx
    below, index, of_entropy = (_in_memory(t) for t in (gradient, index, of_entropy))
    call, classes = Call.of(x, rows, bernoulli), bernoulli.classes
    while True:
        launcher, form = _pull_launcher(call, of, classes)
        sums = torch.empty((rows.rows, 1 << form.above), dtype=torch.float32, device=x.device) if form.above else None
        tensors = (rows.tensor, below, index, of_entropy, dx, sums, bernoulli.centers)
        launcher(_programs(rows.rows, form), tensors, (rows.rows, rows.stride))
        if sums is None:
            return dx
        classes, below, index, of_entropy, of = 1 << form.above, sums, None, None, LOG_P


# -- given classes -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _path_launcher(call: Call, kernel: str, height: int, warps: int, **constants: Any) -> Launcher:
    """For scores of 16 bits too they are exact: there is little to compute."""
    form = call._replace(exact=True).form(call.bernoulli.classes, Block(32, 1, warps))
    checked = CHECKED if kernel in ("log_path", "loss") else {}
    constants["F"] = replace(form, height=height, above=0)
    return Launcher(getattr(path_kernels, kernel), constants, warps, numbers_of(call.bernoulli), **checked)


def log_path(
    x: Tensor, index: Tensor, bernoulli: Bernoulli, what: int = LOG_P, ignored: int = 0, weight: Tensor | None = None
) -> Tensor:
    """float32 log p of ``index`` [..., M], M classes a row, from scores [..., K-1]; or the losses of one."""
    rows, items = Rows.of(x), index.numel()
    out = torch.empty(index.shape, dtype=torch.float32 if what == LOG_P else x.dtype, device=x.device)
    if items > 0:
        height = blocks.path_height(bernoulli.classes)
        launcher = _path_launcher(Call.of(x, rows, bernoulli), "log_path", height, 4, ONE=items == rows.rows, WHAT=what)
        tensors = (rows.tensor, index.contiguous(), weight, out, bernoulli.centers)
        launcher(-(-items // height), tensors, (items, items // rows.rows, ignored, rows.stride))
    return out


@lru_cache(maxsize=16)
def _reduce_launcher(what: int) -> Launcher:
    return Launcher(path_kernels.reduce, {"WHAT": what, "WIDTH": 2048}, 8)


def loss(
    x: Tensor, target: Tensor, bernoulli: Bernoulli, ignored: int, weight: Tensor | None, reduction: str
) -> tuple[Tensor, Tensor]:
    """- w log p of one class a row, 0 for the class id ``ignored``: reduced, and the share of a row in that."""
    weight, what = _in_memory(weight), ASKED[reduction]
    if reduction == "none":
        return log_path(x, target, bernoulli, what, ignored, weight), x.new_empty(0)
    rows = Rows.of(x)
    height, warps, programs = blocks.loss_shape(bernoulli.classes, rows.rows)
    found, share = x.new_empty(()), torch.empty((), dtype=torch.float32, device=x.device)
    sums = found if programs == 1 else torch.empty(2 * programs, dtype=torch.float32, device=x.device)
    launcher = _path_launcher(Call.of(x, rows, bernoulli), "loss", height, warps, ALL=programs == 1, WHAT=what)
    tensors = (rows.tensor, target.contiguous(), weight, sums, share, bernoulli.centers)
    launcher(programs, tensors, (rows.rows, programs, ignored, rows.stride))
    if programs > 1:
        _reduce_launcher(what)(1, (sums, found, share), (programs,))
    return found, share


def pull_path(
    x: Tensor, index: Tensor, gradient: Tensor, bernoulli: Bernoulli,
    what: int = LOG_P, ignored: int = 0, weight: Tensor | None = None, share: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The gradient of `log_path` or of `loss`."""
    rows = Rows.of(x)
    samples = index.numel() // max(rows.rows, 1)
    # several gradients of a row are added up in float32
    dx = torch.empty(x.shape, dtype=x.dtype if samples <= 1 else torch.float32, device=x.device)
    if dx.numel() > 0:
        span, height = blocks.path_span(bernoulli.classes)
        constants = {"ONE": samples == 1, "WHAT": what, "SPAN": span}
        launcher = _path_launcher(Call.of(x, rows, bernoulli), "pull_path", height, 4, **constants)
        given = index.contiguous(), _in_memory(weight), _in_memory(gradient), share
        tensors = (rows.tensor, *given, dx, bernoulli.centers)
        launcher(-(-dx.numel() // span), tensors, (rows.rows, samples, ignored, rows.stride))
    return dx if dx.dtype == x.dtype else dx.to(x.dtype)


def sample(x: Tensor, seed: Tensor, count: int, bernoulli: Bernoulli) -> Tensor:
    """[count, ...] draws from scores [..., K-1]; ``seed`` is one int64 on the device."""
    rows = Rows.of(x)
    out = torch.empty((count, *x.shape[:-1]), dtype=torch.int64, device=x.device)
    if out.numel() > 0:
        launcher = _path_launcher(Call.of(x, rows, bernoulli), "sample", 128, 4, ONE=count == 1)
        tensors = (rows.tensor, seed, out, bernoulli.centers)
        launcher(-(-out.numel() // 128), tensors, (out.numel(), rows.rows, rows.stride))
    return out


# -- a policy's head ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _head_launcher(call: Call, what: int) -> tuple[Launcher, Form]:
    form = call._replace(exact=True).form(call.bernoulli.classes, blocks.head_block(call.bernoulli.classes))
    assert form.above == 0
    checked = CHECKED if what == GIVEN else {}
    numbers = numbers_of(call.bernoulli)
    return Launcher(path_kernels.head, {"WHAT": what, "F": form}, form.warps, numbers, **checked), form


def head(
    x: Tensor, index: Tensor | None, seed: Tensor | None, bernoulli: Bernoulli
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
        launcher, form = _head_launcher(Call.of(x, rows, bernoulli), what)
        tensors = (rows.tensor, index, seed, log_prob, entropy, bernoulli.centers)
        launcher(_programs(rows.rows, form), tensors, (rows.rows, rows.stride))
    return log_prob, entropy, index
