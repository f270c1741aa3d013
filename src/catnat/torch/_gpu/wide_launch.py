"""From tensors to the programs of `wide`; as operators, for compilers; and as a function that autograd knows."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, library
from torch.compiler import is_compiling

from catnat.core.parameterization import Activation, Parameterization
from catnat.torch import _bernoulli
from catnat.torch._bernoulli import Bernoulli
from catnat.torch._compat import must_be_plain, plain_backwards
from catnat.torch._eager import reduced
from catnat.torch._gpu import blocks, path, wide
from catnat.torch._gpu.autograd import seed_for
from catnat.torch._gpu.blocks import Block
from catnat.torch._gpu.launch import CHECKED, numbers_of
from catnat.torch._gpu.launcher import Launcher
from catnat.torch._gpu.node import INTERPRETED
from catnat.torch._plan import Plan
from catnat.torch._walk import Generator
from catnat.torch._wide import LinearWalk

MAX_COUNTED = 1 << 14  # rows that are sorted by counting
CHUNK = 64  # rows whose sums are one matrix product
MAX_BLOCK = 2048  # columns of a program that reads a path
CHUNK_BLOCK = 128  # of one that multiplies a chunk
RUN_BLOCK, RUN_HEIGHT = 1024, 4  # of one that adds up runs, and its rows at a time
CLEAR_HEIGHT = 8  # rows of one that writes zeros


class Wide(NamedTuple):
    """A parameterization as the kernels take it: any tree, in tables of 32-bit numbers."""

    centers: Tensor | None  # [2, K-1] as in `Bernoulli`, of every node
    places: Tensor  # [K] where every class sits
    lengths: Tensor  # [K] how long its path is
    ranks: Tensor  # [K] how many classes are left of it
    above: Tensor | None  # [K] where every node sits; None where node i is at place i
    node_at: Tensor  # [2K] which node sits at a place, 0 for none
    class_at: Tensor  # [2K] and which class
    classes: int
    depth: int
    activation: int
    amplitude: float
    least: float

    @property
    def bernoulli(self) -> Bernoulli:
        """Without its tensor."""
        kind = _bernoulli.NONE if self.centers is None else _bernoulli.BY_NODE
        return Bernoulli(None, self.classes, kind, self.activation, self.amplitude, self.least)

    @property
    def levels(self) -> int:
        """A power of two that covers the depth, and that a matrix product takes."""
        return max(16, 1 << (self.depth - 1).bit_length())


def wide_of(pi: Parameterization, device: torch.device) -> Wide | None:
    """The tables of a parameterization; None where the kernels have no form of its activation."""
    assert pi.tree is not None and isinstance(pi.activation, Activation)
    formula, tree = _bernoulli.formula(pi.activation), pi.tree
    if formula is None or not 1 < pi.num_classes <= _bernoulli.MAX_CLASSES:
        return None

    def table(values: Any) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=np.int32)).to(device)

    return Wide(
        _bernoulli.table_of(pi.centers, device) if pi.centers.any() else None,
        table(tree.class_places), table(tree.path_lengths), table(tree.ranks),
        None if tree.heap_order is not None else table(tree.node_places), table(tree.node_at), table(tree.class_at),
        pi.num_classes, tree.depth, *formula,
    )  # fmt: skip


# -- launches ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _launcher(kernel: str, bernoulli: Bernoulli | None, warps: int, **constants: Any) -> Launcher:
    if bernoulli is not None:
        constants["F"] = blocks.Form.of(bernoulli, bernoulli.classes, True, True, Block(32, 1, warps))
    checked = CHECKED if kernel == "find_steps" else {}
    return Launcher(getattr(wide, kernel), constants, warps, **checked)


def _block(width: int, most: int) -> int:
    return min(most, max(16, 1 << (width - 1).bit_length()))


def _path_shape(width: int, bytes_per_column: int) -> tuple[int, int]:
    """Columns and warps of a program that reads a path: a column's weights stay in the registers of one thread."""
    registers = 2 * bytes_per_column  # of a thread that has eight columns
    if registers <= 72:
        most, columns = MAX_BLOCK, 8
    elif registers <= 190:
        most, columns = MAX_BLOCK // 2, 8
    else:
        most, columns = MAX_BLOCK // 4, 4
    block = _block(width, most)
    return block, max(1, block // (32 * columns))


def _slope_dtype(x: Tensor) -> torch.dtype:
    """Of a gradient in x that is not scaled yet: float16 would lose what a loss scale is there to save."""
    return torch.float32 if x.dtype == torch.float16 else x.dtype


def loss(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignored: int, slopes: bool, features: bool, of: Wide
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """- log p of a class per row, float32; its slopes, paths and gradient in x; and the order that sorts the rows.

    Sorted by where their targets stand from left to right, neighbours share most of their paths.
    """
    rows, width = x.shape
    found = x.new_empty(rows, dtype=torch.float32)
    steps = x.new_empty((rows, of.depth), dtype=torch.int32)
    slope = x.new_empty((rows if slopes else 0, of.depth), dtype=torch.float32)
    keys = x.new_empty(rows if slopes else 0, dtype=torch.int32)
    dx = torch.empty_like(x, dtype=_slope_dtype(x)) if features else x.new_empty(0)
    order = keys.new_empty(0)
    if rows > 0:
        tables = (target, of.places, of.lengths, of.ranks, of.above, steps, keys if slopes else None)
        finder = _launcher("find_steps", None, 4, CLASSES=of.classes, DEPTH=of.depth, HEIGHT=128)
        finder(-(-rows // 128), tables, (rows, ignored))
        if slopes:
            order = _sorted(keys)
        block, warps = _path_shape(width, of.depth * weight.element_size())
        sizes = {"WIDTH": width, "DEPTH": of.depth, "LEVELS": of.levels, "BLOCK": block}
        kept = (order, found, slope) if slopes else (None, found, None)
        tensors = (x, weight, bias, steps, *kept, dx if features else None, of.centers)
        _launcher("loss", of.bernoulli, warps, **sizes)(rows, tensors, (), numbers_of(*of.bernoulli[3:]))
    return found, slope, steps, order, dx


def _sorted(keys: Tensor) -> Tensor:
    """The rows in the order of their keys."""
    rows = len(keys)
    if rows > MAX_COUNTED:
        return torch.sort(keys, stable=True)[1].int()
    order = torch.empty_like(keys)
    launcher = _launcher("sort_rows", None, 4, HEIGHT=16, BLOCK=256)
    launcher(-(-rows // 16), (keys, order), (rows,))
    return order


def add_losses(losses: Tensor, target: Tensor, ignored: int, reduction: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The mean or the sum of the rows' losses, and the share of each: float32 on the device."""
    total, share = losses.new_empty((), dtype=dtype), losses.new_empty(())
    what = path.MEAN if reduction == "mean" else path.SUM
    launcher = _launcher("add_losses", None, 8, WHAT=what, BLOCK=4096)
    launcher(1, (losses, target, total, share), (len(losses), ignored))
    return total, share


def weight_gradient(
    x: Tensor, slopes: Tensor, steps: Tensor, order: Tensor, gradient: Tensor, like: Tensor, of: Wide,
    share: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradient of weights like these, and that of a bias; ``gradient`` is of all losses, or of their sum."""
    if len(x) == 0:
        return torch.zeros_like(like), like.new_zeros(len(like))
    out, bias_out = torch.empty_like(like), like.new_empty(len(like))
    passed = torch.zeros(len(like), dtype=torch.int8, device=x.device)
    _Runs(x, slopes, steps, order, gradient, share, passed, of).add_up(out, bias_out)
    return out, bias_out


class _Runs:
    """Rows sorted by their targets' places from left to right, and where runs of one node begin among them."""

    def __init__(
        self, x: Tensor, slopes: Tensor, steps: Tensor, order: Tensor, gradient: Tensor, share: Tensor | None,
        passed: Tensor, of: Wide,
    ) -> None:  # fmt: skip
        self.x, self.of, self.order, self.passed, rows = x, of, order, passed, len(x)
        self.chunks = -(-rows // CHUNK)
        padded = self.chunks * CHUNK
        self.leaves, self.least = steps.new_empty(padded), steps.new_empty(self.chunks)
        self.steps, self.ends = (steps.new_empty((padded, of.depth)) for _ in range(2))
        self.slopes = slopes.new_empty((padded, of.depth))
        if rows > 0:
            found = (self.steps, self.slopes, self.leaves, self.ends, self.least, passed)
            tensors = (steps, slopes, gradient.contiguous(), share, self.order, *found)
            finder = _launcher("find_runs", None, 4, DEPTH=of.depth, LEVELS=of.levels, CHUNK=CHUNK)
            finder(self.chunks, tensors, (rows,))

    def add_up(self, out: Tensor, bias_out: Tensor) -> None:
        """Write every node's sum to its row of ``out``."""
        (rows, width), of = self.x.shape, self.of
        cells = self.chunks, of.depth
        parts = [self.slopes.new_empty(shape) for shape in ((*cells, width), (*cells, width), cells, cells)]
        sizes = {"WIDTH": width, "DEPTH": of.depth}
        block = _block(width, CHUNK_BLOCK)
        precision = "ieee" if self.x.dtype == torch.float32 else "tf32"
        launcher = _launcher(
            "sum_chunks", None, 4, **sizes, LEVELS=of.levels, CHUNK=CHUNK, BLOCK=block, PRECISION=precision
        )
        programs = -(-width // block)
        launcher(self.chunks * programs, (self.x, self.slopes, self.order, self.leaves, *parts), (rows,))
        block, nodes = _block(width, RUN_BLOCK), len(out)
        sizes |= {"CHUNK": CHUNK, "BLOCK": block, "HEIGHT": RUN_HEIGHT, "CLEAR_HEIGHT": CLEAR_HEIGHT}
        launcher = _launcher("write_sums", None, max(1, block // 256), **sizes)
        programs = rows + self.chunks * of.depth + -(-nodes // CLEAR_HEIGHT)
        tensors = (
            self.x, self.steps, self.slopes, self.order, self.leaves, self.ends, self.least, *parts, self.passed,
            out, bias_out,
        )  # fmt: skip
        launcher(programs * -(-width // block), tensors, (rows, self.chunks, nodes))


def scale_rows(x: Tensor, gradient: Tensor, share: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Every row times its loss's gradient."""
    out = torch.empty_like(x, dtype=dtype)
    if len(x) > 0:
        block = _block(x.shape[1], 2048)
        launcher = _launcher("scale_rows", None, 4, WIDTH=x.shape[1], BLOCK=block)
        launcher(len(x) * -(-x.shape[1] // block), (x, gradient, share, out), ())
    return out


def sample(x: Tensor, weight: Tensor, bias: Tensor | None, seed: Tensor, of: Wide) -> Tensor:
    """A class per row; ``seed`` is one int64 on the device."""
    out = x.new_empty(len(x), dtype=torch.int64)
    if len(x) > 0:
        sizes = {"WIDTH": x.shape[1], "DEPTH": of.depth, "BLOCK": _block(x.shape[1], 2048)}
        tensors = (x, weight, bias, seed, of.node_at, of.class_at, out, of.centers)
        _launcher("sample", of.bernoulli, 4, **sizes)(len(x), tensors, (), numbers_of(*of.bernoulli[3:]))
    return out


# -- as operators ------------------------------------------------------------------------------------------------

WIDE = (
    "Tensor? centers, Tensor places, Tensor lengths, Tensor ranks, Tensor? above, Tensor node_at, Tensor class_at, "
    "int classes, int depth, int activation, float amplitude, float least"
)
N = len(Wide._fields)
_library = library.Library("catnat", "FRAGMENT")


def _call(start: Any, *given: Any) -> Any:
    return start(*given[:-N], Wide(*given[-N:]))


def _fake_loss(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignored: int, slopes: bool, features: bool, *of: Any
) -> tuple[Tensor, ...]:
    rows, depth = x.shape[0], Wide(*of).depth
    return (
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty((rows if slopes else 0, depth), dtype=torch.float32),
        x.new_empty((rows, depth), dtype=torch.int32),
        x.new_empty(rows if slopes else 0, dtype=torch.int32),
        torch.empty_like(x, dtype=_slope_dtype(x)) if features else x.new_empty(0),
    )


_library.define(
    "wide_loss(Tensor x, Tensor weight, Tensor? bias, Tensor target, int ignored, bool slopes, bool features, "
    f"{WIDE}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "wide_gradient(Tensor x, Tensor slopes, Tensor steps, Tensor order, Tensor gradient, Tensor like, "
    f"{WIDE}) -> (Tensor, Tensor)"
)
_library.define(f"wide_sample(Tensor x, Tensor weight, Tensor? bias, Tensor seed, {WIDE}) -> Tensor")
for _device in ("CUDA", "CPU") if INTERPRETED else ("CUDA",):
    for _name, _start in {"wide_loss": loss, "wide_gradient": weight_gradient, "wide_sample": sample}.items():
        _library.impl(_name, partial(_call, _start), _device)
library.register_fake("catnat::wide_loss", _fake_loss, lib=_library)
library.register_fake(
    "catnat::wide_gradient",
    lambda *given: (torch.empty_like(given[-N - 1]), given[-N - 1].new_empty(given[-N - 1].shape[0])),
    lib=_library,
)
library.register_fake("catnat::wide_sample", lambda x, *rest: x.new_empty(x.shape[0], dtype=torch.int64), lib=_library)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep inputs and results for the backward pass: tensors where autograd sees them."""
    ctx.mark_non_differentiable(*output[1:])
    ctx.numbers = tuple(None if isinstance(i, Tensor) else i for i in inputs)
    ctx.is_tensor = tuple(isinstance(i, Tensor) for i in inputs)
    ctx.save_for_backward(*(i for i in inputs if isinstance(i, Tensor)), *output[1:])


def _kept(ctx: Any) -> tuple[list[Any], list[Tensor]]:
    tensors = list(ctx.saved_tensors)
    return [tensors.pop(0) if t else n for t, n in zip(ctx.is_tensor, ctx.numbers, strict=True)], tensors


def _backward(ctx: Any, gradient: Tensor, *rest: Tensor) -> tuple[Any, ...]:
    if torch.is_grad_enabled():
        raise NotImplementedError("second derivatives of CatnatLinear.loss are not compiled: take it in eager mode")
    (x, weight, bias, _, _, _, features, *of), (slopes, steps, order, dx) = _kept(ctx)
    d_weight = d_bias = None
    if any(ctx.needs_input_grad[1:3]):
        d_weight, d_bias = torch.ops.catnat.wide_gradient(x, slopes, steps, order, gradient, weight, *of)
    # 0 stays 0, though a mean of nothing has an endless gradient
    dx = torch.where(dx == 0, 0.0, dx * gradient[:, None]).to(x.dtype) if features else None
    return dx, d_weight, None if bias is None else d_bias, *[None] * (4 + N)


library.register_autograd("catnat::wide_loss", _backward, setup_context=_keep, lib=_library)


# -- for autograd ------------------------------------------------------------------------------------------------


class KernelLinearWalk(LinearWalk):
    """By the kernels, any tree."""

    def __init__(self, plan: Plan, weight: Tensor, bias: Tensor | None, tables: Wide) -> None:
        super().__init__(plan, weight, bias)
        self.tables = tables

    def losses(self, x: Tensor, target: Tensor, ignored: int) -> Tensor:
        """- log p of a class per row: [R], 0 for the class id ``ignored``."""
        return self._loss(x, target, ignored, "none", torch.float32)

    def loss(self, x: Tensor, target: Tensor, ignored: int, reduction: str, dtype: torch.dtype) -> Tensor:
        """Their mean over rows that are not ignored, or their sum."""
        if len(x) == 0 or is_compiling():
            return super().loss(x, target, ignored, reduction, dtype)
        return self._loss(x, target, ignored, reduction, dtype)

    def _loss(self, x: Tensor, target: Tensor, ignored: int, reduction: str, dtype: torch.dtype) -> Tensor:
        x, target, weight, bias = x.contiguous(), target.contiguous(), self.weight, self.bias
        learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
        found: Tensor
        if learns and not is_compiling():

            def plain(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
                each = self.plain_losses(x, weight, bias, target, ignored)
                return reduced(each, target != ignored, reduction).to(dtype)

            found = _Loss.apply(x, weight, bias, target, ignored, self.tables, reduction, dtype, plain)
            return found
        given = x, weight, bias, target, ignored, learns, learns and x.requires_grad
        if is_compiling():
            found = torch.ops.catnat.wide_loss(*given, *self.tables)[0]
        else:
            found = loss(*given, self.tables)[0]
        return found if reduction == "none" else add_losses(found, target, ignored, reduction, dtype)[0]

    @torch.no_grad()
    def sample(self, x: Tensor, generator: Generator) -> Tensor:
        """A class per row."""
        given = x.contiguous(), self.weight, self.bias, seed_for(x, generator)
        found: Tensor
        found = torch.ops.catnat.wide_sample(*given, *self.tables) if is_compiling() else sample(*given, self.tables)
        return found


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignored: int, of: Wide,
        reduction: str, dtype: torch.dtype, plain: Any,
    ) -> Tensor:  # fmt: skip
        found, *kept = loss(x, weight, bias, target, ignored, True, ctx.needs_input_grad[0], of)
        share = None
        if reduction != "none":
            found, share = add_losses(found, target, ignored, reduction, dtype)
        ctx.settings = of, plain
        ctx.save_for_backward(x, weight, bias, share, *kept)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (of, plain), (*inputs, share, slopes, steps, order, dx) = ctx.settings, ctx.saved_tensors
        inputs = [t for t in inputs if t is not None]
        if must_be_plain(gradient):
            found = plain_backwards(plain, inputs, gradient)
        else:
            (x, weight), gradient = inputs[:2], gradient.contiguous()
            sums: tuple[Tensor | None, ...] = (None, None)
            if any(ctx.needs_input_grad[1:3]):
                sums = weight_gradient(x, slopes, steps, order, gradient, weight, of, share)
            found = [scale_rows(dx, gradient, share, x.dtype) if ctx.needs_input_grad[0] else None, *sums]
        return *found[: len(inputs)], *[None] * (9 - len(inputs))
