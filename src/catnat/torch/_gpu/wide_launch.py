"""From tensors to the programs of `wide`: each function allocates its results and starts some kernels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from catnat.core.parameterization import Activation, Parameterization
from catnat.torch import _bernoulli
from catnat.torch._bernoulli import Bernoulli
from catnat.torch._gpu import wide
from catnat.torch._gpu.blocks import Block, Call, Form
from catnat.torch._gpu.launch import Launcher, launcher_of, starts

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
    def call(self) -> Call:
        """What the kernels that take a node's numbers are compiled for."""
        kind = _bernoulli.NONE if self.centers is None else _bernoulli.BY_NODE
        return Call(Bernoulli(None, self.classes, kind, *self[-3:]), exact=True, contiguous=True)

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


@lru_cache(maxsize=256)
def _launcher(name: str, warps: int = 4, call: Call | None = None, **constants: Any) -> Launcher:
    kernel = getattr(wide, name)
    if call is None:
        return Launcher(kernel, constants, warps)
    return launcher_of(kernel, call, Form.of(call, Block(32, 1, warps)), **constants)


def _block(width: int, most: int) -> int:
    return min(most, max(16, 1 << (width - 1).bit_length()))


def _path_shape(width: int, bytes_per_column: int) -> tuple[int, int]:
    """Columns and warps of a program that reads a path: a column's weights stay in the registers of one thread."""
    registers = 2 * bytes_per_column  # of a thread that has eight columns
    parts, columns = (1, 8) if registers <= 72 else (2, 8) if registers <= 190 else (4, 4)
    block = _block(width, MAX_BLOCK // parts)
    return block, max(1, block // (32 * columns))


def loss(
    x: Tensor, of: Wide, weight: Tensor, bias: Tensor | None, target: Tensor, ignored: int,
    reduction: str, dtype: torch.dtype, learns_x: bool, learns_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """- log p of a class per row, reduced, and the share of a row in that; slopes, paths, order and gradient in x.

    The order is that of the targets from left to right: neighbours share most of their paths.
    """
    (rows, width), is_each, learns = x.shape, reduction == "none", learns_x or learns_weight
    each = x.new_empty(rows, dtype=torch.float32)
    found, share = each if is_each else x.new_empty((), dtype=dtype), each.new_empty((0,) if is_each else ())
    steps, learning = x.new_empty((rows, of.depth), dtype=torch.int32), rows if learns else 0
    slopes, order = each.new_empty((learning, of.depth)), steps.new_empty(learning)
    # the gradient in x is not scaled yet: float16 would lose what a loss scale is there to save
    scalable = torch.float32 if x.dtype == torch.float16 else x.dtype
    dx = torch.empty_like(x, dtype=scalable) if learns_x else x.new_empty(0)
    if starts(each):
        tables = (target, of.places, of.lengths, of.ranks, of.above, steps, order if learns else None)
        finder = _launcher("find_steps", CLASSES=of.classes, DEPTH=of.depth, HEIGHT=128)
        finder(-(-rows // 128), tables, (rows, ignored))
        if learns:
            order = _sorted(order)  # it held the keys
        block, warps = _path_shape(width, of.depth * weight.element_size())
        sizes = {"WIDTH": width, "DEPTH": of.depth, "LEVELS": of.levels, "BLOCK": block}
        filled = (order, each, slopes) if learns else (None, each, None)
        tensors = (x, weight, bias, steps, *filled, dx if learns_x else None, of.centers)
        _launcher("loss", warps, of.call, **sizes)(rows, tensors)
    if not is_each and starts(found):
        adder = _launcher("add_losses", 8, MEAN=reduction == "mean", BLOCK=4096)
        adder(1, (each, target, found, share), (rows, ignored))
    return found, share, slopes, steps, order, dx


def _sorted(keys: Tensor) -> Tensor:
    """The rows in the order of their keys."""
    rows = len(keys)
    if rows > MAX_COUNTED:
        return torch.sort(keys, stable=True)[1].int()
    order = torch.empty_like(keys)
    _launcher("sort_rows", HEIGHT=16, BLOCK=256)(-(-rows // 16), (keys, order), (rows,))
    return order


def pull(
    x: Tensor, of: Wide, weight: Tensor, gradient: Tensor, share: Tensor | None, slopes: Tensor, steps: Tensor,
    order: Tensor, dx: Tensor, learns_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of the features, the weights and a bias; with a share, ``gradient`` is of a sum or a mean."""
    width, nodes, gradient = x.shape[1], len(weight) if learns_weight else 0, gradient.contiguous()
    scaled = torch.empty_like(dx, dtype=x.dtype)
    out, bias_out = weight.new_empty((nodes, width)), weight.new_empty(nodes)
    if starts(dx):
        block = _block(width, 2048)
        launcher = _launcher("scale_rows", WIDTH=width, BLOCK=block)
        launcher(len(x) * -(-width // block), (dx, gradient, share, scaled))
    if learns_weight and starts(x):
        _sum_rows(x, of, gradient, share, slopes, steps, order, out, bias_out)
    elif learns_weight:
        out.zero_(), bias_out.zero_()
    return scaled, out, bias_out


def _sum_rows(
    x: Tensor, of: Wide, gradient: Tensor, share: Tensor | None, slopes: Tensor, steps: Tensor, order: Tensor,
    out: Tensor, bias_out: Tensor,
) -> None:  # fmt: skip
    """The gradient of the weights, and that of a bias."""
    (rows, width), nodes, chunks = x.shape, len(out), -(-len(x) // CHUNK)
    passed = torch.zeros(nodes, dtype=torch.int8, device=x.device)
    cells, padded = (chunks, of.depth), (chunks * CHUNK, of.depth)
    runs = (steps.new_empty(padded), slopes.new_empty(padded), order)
    leaves, ends, least = steps.new_empty(padded[0]), steps.new_empty(padded), steps.new_empty(chunks)
    tensors = (steps, slopes, gradient, share, order, *runs[:2], leaves, ends, least, passed)
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


def sample(x: Tensor, of: Wide, weight: Tensor, bias: Tensor | None, seed: Tensor) -> Tensor:
    """A class per row; ``seed`` is one int64 on the device."""
    out = x.new_empty(len(x), dtype=torch.int64)
    if starts(out):
        sizes = {"WIDTH": x.shape[1], "DEPTH": of.depth, "BLOCK": _block(x.shape[1], 2048)}
        tensors = (x, weight, bias, seed, of.node_at, of.class_at, out, of.centers)
        _launcher("sample", 4, of.call, **sizes)(len(x), tensors)
    return out
