"""From tensors to the programs of `wide`; as operators, for compilers; and as a function that autograd knows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from catnat.core.parameterization import Activation, Parameterization
from catnat.torch import _bernoulli
from catnat.torch._bernoulli import Bernoulli
from catnat.torch._compat import must_be_plain, plain_backwards
from catnat.torch._eager import reduced
from catnat.torch._gpu import blocks, operators, path, wide
from catnat.torch._gpu.autograd import seed_for
from catnat.torch._gpu.blocks import Block
from catnat.torch._gpu.launch import CHECKED, Launcher, numbers_of
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
def _launcher(kernel: str, warps: int = 4, bernoulli: Bernoulli | None = None, **constants: Any) -> Launcher:
    numbers: tuple[float, ...] = ()
    if bernoulli is not None:
        constants["F"] = blocks.Form.of(bernoulli, bernoulli.classes, True, True, Block(32, 1, warps))
        numbers = numbers_of(bernoulli)
    return Launcher(getattr(wide, kernel), constants, warps, numbers, **CHECKED if kernel == "find_steps" else {})


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


def _results(x: Tensor, slopes: bool, features: bool, of: Wide) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of `loss`, to be filled."""
    rows, learning = x.shape[0], x.shape[0] if slopes else 0
    # the gradient in x is not scaled yet: float16 would lose what a loss scale is there to save
    dtype = torch.float32 if x.dtype == torch.float16 else x.dtype
    return (
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty((learning, of.depth), dtype=torch.float32),
        x.new_empty((rows, of.depth), dtype=torch.int32),
        x.new_empty(learning, dtype=torch.int32),
        torch.empty_like(x, dtype=dtype) if features else x.new_empty(0),
    )


def loss(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignored: int, slopes: bool, features: bool, of: Wide
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """- log p of a class per row, float32; its slopes, paths and gradient in x; and the order that sorts the rows.

    Sorted by where their targets stand from left to right, neighbours share most of their paths.
    """
    rows, width = x.shape
    found, slope, steps, order, dx = _results(x, slopes, features, of)
    if rows > 0:
        tables = (target, of.places, of.lengths, of.ranks, of.above, steps, order if slopes else None)
        finder = _launcher("find_steps", CLASSES=of.classes, DEPTH=of.depth, HEIGHT=128)
        finder(-(-rows // 128), tables, (rows, ignored))
        if slopes:
            order = _sorted(order)  # it held the keys
        block, warps = _path_shape(width, of.depth * weight.element_size())
        sizes = {"WIDTH": width, "DEPTH": of.depth, "LEVELS": of.levels, "BLOCK": block}
        kept = (order, found, slope) if slopes else (None, found, None)
        tensors = (x, weight, bias, steps, *kept, dx if features else None, of.centers)
        _launcher("loss", warps, of.bernoulli, **sizes)(rows, tensors)
    return found, slope, steps, order, dx


def _sorted(keys: Tensor) -> Tensor:
    """The rows in the order of their keys."""
    rows = len(keys)
    if rows > MAX_COUNTED:
        return torch.sort(keys, stable=True)[1].int()
    order = torch.empty_like(keys)
    _launcher("sort_rows", HEIGHT=16, BLOCK=256)(-(-rows // 16), (keys, order), (rows,))
    return order


def add_losses(losses: Tensor, target: Tensor, ignored: int, reduction: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The mean or the sum of the rows' losses, and the share of each: float32 on the device."""
    total, share = losses.new_empty((), dtype=dtype), losses.new_empty(())
    what = path.MEAN if reduction == "mean" else path.SUM
    _launcher("add_losses", 8, WHAT=what, BLOCK=4096)(1, (losses, target, total, share), (len(losses), ignored))
    return total, share


def weight_gradient(
    x: Tensor, slopes: Tensor, steps: Tensor, order: Tensor, gradient: Tensor, like: Tensor, of: Wide,
    share: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradient of weights like these, and that of a bias; ``gradient`` is of all losses, or of their sum."""
    (rows, width), nodes, chunks = x.shape, len(like), -(-len(x) // CHUNK)
    if rows == 0:
        return torch.zeros_like(like), like.new_zeros(nodes)
    out, bias_out = torch.empty_like(like), like.new_empty(nodes)
    passed = torch.zeros(nodes, dtype=torch.int8, device=x.device)
    cells, padded = (chunks, of.depth), (chunks * CHUNK, of.depth)
    runs = (steps.new_empty(padded), slopes.new_empty(padded), order)
    leaves, ends, least = steps.new_empty(padded[0]), steps.new_empty(padded), steps.new_empty(chunks)
    tensors = (steps, slopes, gradient.contiguous(), share, order, *runs[:2], leaves, ends, least, passed)
    launcher = _launcher("find_runs", DEPTH=of.depth, LEVELS=of.levels, CHUNK=CHUNK)
    launcher(chunks, tensors, (rows,))
    parts = [slopes.new_empty(shape) for shape in ((*cells, width), (*cells, width), cells, cells)]
    sizes: dict[str, Any] = {"WIDTH": width, "DEPTH": of.depth, "CHUNK": CHUNK, "BLOCK": _block(width, CHUNK_BLOCK)}
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    launcher = _launcher("sum_chunks", **sizes, LEVELS=of.levels, PRECISION=precision)
    launcher(chunks * -(-width // sizes["BLOCK"]), (x, *runs[1:], leaves, *parts), (rows,))
    sizes |= {"BLOCK": _block(width, RUN_BLOCK), "HEIGHT": RUN_HEIGHT, "CLEAR_HEIGHT": CLEAR_HEIGHT}
    launcher = _launcher("write_sums", max(1, sizes["BLOCK"] // 256), **sizes)
    programs = rows + chunks * of.depth + -(-nodes // CLEAR_HEIGHT)
    tensors = (x, *runs, leaves, ends, least, *parts, passed, out, bias_out)
    launcher(programs * -(-width // sizes["BLOCK"]), tensors, (rows, chunks, nodes))
    return out, bias_out


def scale_rows(x: Tensor, gradient: Tensor, share: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Every row times its loss's gradient."""
    out = torch.empty_like(x, dtype=dtype)
    if len(x) > 0:
        block = _block(x.shape[1], 2048)
        launcher = _launcher("scale_rows", WIDTH=x.shape[1], BLOCK=block)
        launcher(len(x) * -(-x.shape[1] // block), (x, gradient, share, out))
    return out


def sample(x: Tensor, weight: Tensor, bias: Tensor | None, seed: Tensor, of: Wide) -> Tensor:
    """A class per row; ``seed`` is one int64 on the device."""
    out = x.new_empty(len(x), dtype=torch.int64)
    if len(x) > 0:
        sizes = {"WIDTH": x.shape[1], "DEPTH": of.depth, "BLOCK": _block(x.shape[1], 2048)}
        tensors = (x, weight, bias, seed, of.node_at, of.class_at, out, of.centers)
        _launcher("sample", 4, of.bernoulli, **sizes)(len(x), tensors)
    return out


# -- as operators ------------------------------------------------------------------------------------------------

WIDE = (
    "Tensor? centers, Tensor places, Tensor lengths, Tensor ranks, Tensor? above, Tensor node_at, Tensor class_at, "
    "int classes, int depth, int activation, float amplitude, float least"
)
N = len(Wide._fields)


def _with_tables(function: Any) -> Any:
    return lambda *given: function(*given[:-N], Wide(*given[-N:]))


operators.define(
    "wide_loss",
    f"Tensor x, Tensor weight, Tensor? bias, Tensor target, int ignored, bool slopes, bool features, {WIDE}"
    ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _with_tables(loss),
    _with_tables(lambda x, weight, bias, target, ignored, slopes, features, of: _results(x, slopes, features, of)),
)
operators.define(
    "wide_gradient",
    f"Tensor x, Tensor slopes, Tensor steps, Tensor order, Tensor gradient, Tensor like, {WIDE}) -> (Tensor, Tensor)",
    _with_tables(weight_gradient),
    lambda *given: (torch.empty_like(given[-N - 1]), given[-N - 1].new_empty(given[-N - 1].shape[0])),
)
operators.define(
    "wide_sample",
    f"Tensor x, Tensor weight, Tensor? bias, Tensor seed, {WIDE}) -> Tensor",
    _with_tables(sample),
    lambda x, *rest: x.new_empty(x.shape[0], dtype=torch.int64),
)


def _backward(ctx: Any, gradient: Tensor, *rest: Tensor) -> tuple[Any, ...]:
    if torch.is_grad_enabled():
        raise NotImplementedError("second derivatives of CatnatLinear.loss are not compiled: take it in eager mode")
    (x, weight, bias, _, _, _, features, *of), (slopes, steps, order, dx) = operators.kept(ctx)
    d_weight = d_bias = None
    if any(ctx.needs_input_grad[1:3]):
        d_weight, d_bias = torch.ops.catnat.wide_gradient(x, slopes, steps, order, gradient, weight, *of)
    # 0 stays 0, though a mean of nothing has an endless gradient
    dx = torch.where(dx == 0, 0.0, dx * gradient[:, None]).to(x.dtype) if features else None
    return dx, d_weight, None if bias is None else d_bias, *[None] * (4 + N)


operators.differentiate("wide_loss", _backward, operators.keep)


# -- for autograd ------------------------------------------------------------------------------------------------


class KernelLinearWalk(LinearWalk):
    """By the kernels, any tree; what the methods do, `LinearWalk` says."""

    def __init__(self, plan: Plan, weight: Tensor, bias: Tensor | None, tables: Wide) -> None:
        super().__init__(plan, weight, bias)
        self.tables = tables

    def losses(self, x: Tensor, target: Tensor, ignored: int) -> Tensor:
        return self._loss(x, target, ignored, "none", torch.float32)

    def loss(self, x: Tensor, target: Tensor, ignored: int, reduction: str, dtype: torch.dtype) -> Tensor:
        if len(x) == 0 or is_compiling():
            return super().loss(x, target, ignored, reduction, dtype)
        return self._loss(x, target, ignored, reduction, dtype)

    def _loss(self, x: Tensor, target: Tensor, ignored: int, reduction: str, dtype: torch.dtype) -> Tensor:
        x, target, weight, bias = x.contiguous(), target.contiguous(), self.weight, self.bias
        learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
        given = x, weight, bias, target, ignored
        found: Tensor
        if is_compiling():  # which never asks for another reduction
            found = torch.ops.catnat.wide_loss(*given, learns, learns and x.requires_grad, *self.tables)[0]
            return found
        if learns:

            def plain(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
                each = LinearWalk(self.plan, weight, bias).losses(x, target, ignored)
                return reduced(each, target != ignored, reduction).to(dtype)

            found = _Loss.apply(*given, self.tables, reduction, dtype, plain)
            return found
        found = loss(*given, False, False, self.tables)[0]
        return found if reduction == "none" else add_losses(found, target, ignored, reduction, dtype)[0]

    @torch.no_grad()
    def sample(self, x: Tensor, generator: Generator) -> Tensor:
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
