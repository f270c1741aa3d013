"""From tensors to programs: each function after `Launcher` allocates its results and starts one or two kernels."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton.runtime import driver

from catnat.torch._bernoulli import NATURAL, Bernoulli
from catnat.torch._compat import fake_mode_of
from catnat.torch._gpu import blocks
from catnat.torch._gpu import path as path_kernels
from catnat.torch._gpu import walk as walk_kernels
from catnat.torch._gpu.blocks import Block, Call, Form

LARGEST = 2**31 - 1  # of a 32-bit number
MAX_STRIDE = 1 << 21  # between rows: a program's rows are addressed by 32-bit numbers
# A class id out of range is a device assert; but not every sum shall be checked for overflow too.
OPTIONS = {"num_stages": 1, "debug": True, "sanitize_overflow": False}


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
        self.form: Form = constants.get("F")
        self.options = {"num_warps": warps, **OPTIONS, **options}
        # as the binary takes them: the constants come last in every kernel's list of arguments
        self.values = tuple(constants[name] for name in kernel.arg_names if name in constants)
        self.binaries: dict[Any, Any] = {}
        self.trusts_binaries = True

    def programs(self, rows: int) -> int:
        """How many have so many rows."""
        return -(-rows // self.form.height) << self.form.above

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
                return
            except TypeError:  # a Triton whose binaries take other arguments
                self.trusts_binaries, self.binaries = False, {}
        binary = self.kernel[(programs,)](*tensors, *integers, *self.numbers, **self.constants, **self.options)
        if binary is not None and self.trusts_binaries:
            self.binaries[kind] = binary


def starts(result: Tensor) -> bool:
    """Whether there is something to compute: not of an empty batch, nor where a compiler asks for shapes alone."""
    return fake_mode_of(result) is None and not result.is_meta and result.numel() > 0


def rows_of(x: Tensor, bernoulli: Bernoulli) -> tuple[Tensor, int, int, Call]:
    """Scores as rows, how many, one stride apart: batch axes fold into one, without a copy where strides allow it."""
    stride = x.shape[-1]
    if not x.is_contiguous() or x.is_neg():
        x = x.resolve_neg()
        axes = [(size, step) for size, step in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
        folds = all(outer == size * inner for (_, outer), (size, inner) in pairwise(axes))
        if folds and (x.shape[-1] == 1 or x.stride(-1) == 1) and (not axes or axes[-1][1] <= MAX_STRIDE):
            stride = axes[-1][1] if axes else 0
        else:
            x = x.contiguous()
    call = Call(bernoulli._replace(centers=None), x.element_size() == 4, stride == x.shape[-1])
    return x, math.prod(x.shape[:-1]), stride, call


def launcher_of(kernel: Any, call: Call, form: Form, **constants: Any) -> Launcher:
    """Of a kernel that takes the nodes' numbers.

    These are half the range, what that rounds away in radians, radians a unit of score, the least angle, the steepness.
    """
    activation, amplitude, least = call.bernoulli[3:]
    numbers = (0.0,) * 5
    if amplitude > 0:
        angle, half = math.pi / (2 * amplitude), float(np.float32(amplitude / 2))
        # of -|z| / 2 to the base 2 in the angle, past the joint
        steepness = 2 * math.log2(math.e) / math.sin(2 * least) if activation == NATURAL else 0.0
        numbers = half, (amplitude / 2 - half) * angle, angle, least, steepness
    return Launcher(kernel, constants | {"F": form}, form.warps, numbers, maxnreg=form.registers)


def _in_memory(tensor: Tensor | None) -> Tensor | None:
    """The same numbers without gaps, none of them to be negated when read."""
    return None if tensor is None else tensor.resolve_neg().contiguous()


# -- every class -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _walk_launcher(call: Call, exp: bool) -> Launcher:
    form = Form.of(call, blocks.walk_block(call.bernoulli.classes, call.exact))
    return launcher_of(walk_kernels.walk, call, form, EXP=exp)


def walk(x: Tensor, bernoulli: Bernoulli, exp: bool) -> Tensor:
    """log p of every class, or p itself: [..., K-1] to [..., K]."""
    out = x.new_empty((*x.shape[:-1], bernoulli.classes))
    if starts(out):
        scores, rows, stride, call = rows_of(x, bernoulli)
        launcher = _walk_launcher(call, exp)
        launcher(launcher.programs(rows), (scores, out, bernoulli.centers), (rows, stride))
    return out


@lru_cache(maxsize=1024)
def _pull_launcher(call: Call, exp: bool, classes: int) -> Launcher:
    is_whole = classes == call.bernoulli.classes
    form = Form.of(call, blocks.pull_block(classes, call.exact) if is_whole else blocks.TOP_BLOCK, classes)
    gather = form.above == 0 and blocks.writes_whole_rows(classes, call.exact)
    return launcher_of(walk_kernels.pull, call, replace(form, gather=gather), EXP=exp)


def pull(
    x: Tensor, bernoulli: Bernoulli, gradient: Tensor | None, exp: bool,
    index: Tensor | None = None, of_entropy: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The gradient in the scores of what has this gradient in log p or in p.

    Or, where there is one in the entropy, in that and in log p of ``index``.
    """
    dx = x.new_empty(x.shape)
    if not starts(dx):
        return dx
    below, index, of_entropy = (_in_memory(t) for t in (gradient, index, of_entropy))
    scores, rows, stride, call = rows_of(x, bernoulli)
    classes = bernoulli.classes
    while True:
        launcher = _pull_launcher(call, exp, classes)
        above = launcher.form.above
        sums = x.new_empty((rows, 1 << above), dtype=torch.float32) if above else None
        tensors = (scores, below, index, of_entropy, dx, sums, bernoulli.centers)
        launcher(launcher.programs(rows), tensors, (rows, stride))
        if sums is None:
            return dx
        classes, below, index, of_entropy, exp = 1 << above, sums, None, None, False


# -- given classes -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _path_launcher(call: Call, kernel: str, height: int, warps: int = 4, **constants: Any) -> Launcher:
    """For scores of 16 bits too they are exact: there is little to compute."""
    form = replace(Form.of(call._replace(exact=True), Block(32, 1, warps)), height=height)
    return launcher_of(getattr(path_kernels, kernel), call, form, **constants)


def log_path(
    x: Tensor, bernoulli: Bernoulli, index: Tensor,
    is_loss: bool = False, ignored: int = 0, weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """float32 log p of ``index`` [..., M], M classes a row, from scores [..., K-1]; or the losses of one."""
    out = x.new_empty(index.shape, dtype=x.dtype if is_loss else torch.float32)
    if starts(out):
        scores, rows, stride, call = rows_of(x, bernoulli)
        items, height = out.numel(), blocks.path_height(bernoulli.classes)
        launcher = _path_launcher(call, "log_path", height, ONE=items == rows, LOSS=is_loss)
        tensors = (scores, index.contiguous(), weight, out, bernoulli.centers)
        launcher(launcher.programs(items), tensors, (items, items // rows, ignored, stride))
    return out


REDUCERS = [Launcher(path_kernels.reduce, {"MEAN": mean, "WIDTH": 2048}, 8) for mean in (False, True)]


def loss(
    x: Tensor, bernoulli: Bernoulli, target: Tensor, ignored: int, weight: Tensor | None, reduction: str
) -> tuple[Tensor, Tensor]:
    """- w log p of one class a row, 0 for the class id ``ignored``: reduced, and the share of a row in that."""
    weight, mean = _in_memory(weight), reduction == "mean"
    if reduction == "none":
        return log_path(x, bernoulli, target, True, ignored, weight), x.new_empty(0, dtype=torch.float32)
    found, share = x.new_empty(()), x.new_empty((), dtype=torch.float32)
    if starts(found):
        scores, rows, stride, call = rows_of(x, bernoulli)
        height, warps, programs = blocks.loss_shape(bernoulli.classes, rows)
        sums = found if programs == 1 else x.new_empty(2 * programs, dtype=torch.float32)
        launcher = _path_launcher(call, "loss", height, warps, ALL=programs == 1, MEAN=mean)
        tensors = (scores, target.contiguous(), weight, sums, share, bernoulli.centers)
        launcher(programs, tensors, (rows, programs, ignored, stride))
        if programs > 1:
            REDUCERS[mean](1, (sums, found, share), (programs,))
    return found, share


def pull_path(
    x: Tensor, bernoulli: Bernoulli, index: Tensor, gradient: Tensor,
    is_loss: bool = False, ignored: int = 0, weight: Tensor | None = None, share: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The gradient of `log_path`, or of `loss`; with a share in it, ``gradient`` is that of a sum or a mean."""
    if not starts(x):
        return x.new_empty(x.shape)
    scores, rows, stride, call = rows_of(x, bernoulli)
    samples, (span, height) = index.numel() // rows, blocks.path_span(bernoulli.classes)
    # several gradients of a row are added up in float32
    dx = x.new_empty(x.shape, dtype=x.dtype if samples <= 1 else torch.float32)
    launcher = _path_launcher(call, "pull_path", height, ONE=samples == 1, LOSS=is_loss, SPAN=span)
    given = index.contiguous(), _in_memory(weight), _in_memory(gradient), share
    launcher(-(-dx.numel() // span), (scores, *given, dx, bernoulli.centers), (rows, samples, ignored, stride))
    return dx if dx.dtype == x.dtype else dx.to(x.dtype)


def sample(x: Tensor, bernoulli: Bernoulli, seed: Tensor, count: int) -> Tensor:
    """[count, ...] draws from scores [..., K-1]; ``seed`` is one int64 on the device."""
    out = x.new_empty((count, *x.shape[:-1]), dtype=torch.int64)
    if starts(out):
        scores, rows, stride, call = rows_of(x, bernoulli)
        launcher, items = _path_launcher(call, "sample", 128, ONE=count == 1), out.numel()
        launcher(launcher.programs(items), (scores, seed, out, bernoulli.centers), (items, rows, stride))
    return out


# -- a policy's head ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _head_launcher(call: Call) -> Launcher:
    form = Form.of(call._replace(exact=True), blocks.head_block(call.bernoulli.classes))
    assert form.above == 0
    return launcher_of(path_kernels.head, call, form)


def head(
    x: Tensor, bernoulli: Bernoulli, index: Tensor | None, seed: Tensor | None
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """float32 log p of classes, the rows' entropies, and the classes: given, drawn by a seed, or neither."""
    entropy = x.new_empty(x.shape[:-1], dtype=torch.float32)
    if seed is not None:
        index = torch.empty_like(entropy, dtype=torch.int64)
    elif index is not None:
        index = index.contiguous()
    log_prob = None if index is None else torch.empty_like(entropy)
    if starts(entropy):
        scores, rows, stride, call = rows_of(x, bernoulli)
        launcher = _head_launcher(call)
        tensors = (scores, index, seed, log_prob, entropy, bernoulli.centers)
        launcher(launcher.programs(rows), tensors, (rows, stride))
    return log_prob, entropy, index
