"""`walk` and `pull` of `_classes` on an NVIDIA GPU: two Pallas kernels for the balanced heap in float32.

A kernel reads every score once and keeps the levels in registers. A program takes some rows and one block of classes,
the leaves of a subtree: level l below the place r is the slice r 2^l .. r 2^l + 2^l - 1, so the next level is two
vectors interleaved. What happened above the block comes from the same kernel run on the top of the tree; on the way
back every block leaves its sums for that top. Nothing is summed across programs: results are the same run to run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from catnat.core.parameterization import Natural
from catnat.jax._compat import shaped
from catnat.jax._gpu import node
from catnat.jax._plan import Plan, Values

MAX_CELLS = 2**31  # cells are addressed by 32-bit numbers


class Block(NamedTuple):
    """What one program does in the tree of ``classes`` classes: a subtree of 2^depth places at the deepest level."""

    classes: int
    rows: int  # of the batch
    depth: int
    above: int  # levels of the tree above the block's root
    head: int  # levels of the block that are left to the tree above
    height: int  # rows a program
    warps: int
    even: bool  # whether all classes are at the deepest level

    @staticmethod
    def of(classes: int, rows: int) -> Block:
        """The block for a tree: the fastest of those that we have timed on an H200."""
        levels = (classes - 1).bit_length()
        if classes > 512:
            width, warps, head = 2048, 4, 7
        else:
            width, warps, head = 1024, 2 if classes > 64 else 4, 5
        depth = min(levels, width.bit_length() - 1)
        height = max(1, width >> depth)
        # with many rows at hand even the narrow levels of a block fill a warp
        head = 0 if height >= 8 else min(head, depth - 1)
        return Block(classes, rows, depth, levels - depth, head, height, warps, classes == 1 << levels)

    @property
    def top(self) -> int:
        """How many classes the tree above has."""
        return 1 << (self.above + self.head)


def applies(x: Any, plan: Plan) -> bool:
    """Whether the kernels can do it: else XLA does."""
    if not all(isinstance(size, int) for size in x.shape):  # an exported program may have symbols among them
        return False
    is_tree = plan.is_heap and plan.num_classes > 1 and plan.dtype == np.float32
    return is_tree and node.applies(plan) and 0 < math.prod(x.shape[:-1]) * plan.num_classes < MAX_CELLS


def walk(x: Array, *, plan: Plan, interpret: bool = False) -> Array:
    found = _walk(x.reshape(-1, plan.num_nodes), _constants(plan), plan.num_classes, plan, interpret)
    return found.reshape(*x.shape[:-1], plan.num_classes)


def pull(x: Array, gradient: Array, *, plan: Plan, interpret: bool = False) -> Array:
    rows, below = x.reshape(-1, plan.num_nodes), gradient.reshape(-1, plan.num_classes)
    return _pull(rows, below, None, _constants(plan), plan.num_classes, plan, interpret).reshape(x.shape)


def _walk(x: Array, constants: Array | None, classes: int, plan: Plan, interpret: bool) -> Array:
    block = Block.of(classes, x.shape[0])
    above = [] if block.top == 1 else [_walk(x, constants, block.top, plan, interpret)]
    operands = [x, *_given(constants), *above]
    return _call(_walk_block, block, plan, operands, shaped(x, (block.rows, classes)), {}, interpret)


def _pull(
    x: Array, gradient: Array, dx: Array | None, constants: Array | None, classes: int, plan: Plan, interpret: bool
) -> Array:
    block = Block.of(classes, x.shape[0])
    operands = [x, *_given(constants), gradient, *_given(dx)]
    out = [shaped(x, x.shape)]
    if block.top > 1:
        out.append(shaped(x, (block.rows, block.top)))
    # the tree above writes its part of the gradient into the same array
    alias = {} if dx is None else {len(operands) - 1: 0}
    dx, *sums = _call(_pull_block, block, plan, operands, out, alias, interpret)
    return _pull(x, sums[0], dx, constants, block.top, plan, interpret) if sums else dx


def _call(
    kernel: Any, block: Block, plan: Plan, operands: list[Array], out: Any, alias: dict[int, int], interpret: bool
) -> Any:
    return pl.pallas_call(
        partial(kernel, block=block, plan=plan, interpret=interpret),
        out_shape=out,
        grid=(pl.cdiv(block.rows, block.height), 1 << block.above),
        input_output_aliases=alias,
        compiler_params=triton.CompilerParams(num_warps=block.warps, num_stages=1),
        interpret=interpret,
        name=kernel.__name__.strip("_"),
    )(*operands)


def _given(array: Array | None) -> list[Array]:
    return [] if array is None else [array]


def _constants(plan: Plan) -> Array | None:
    """[c, K-1] what a node must know of itself, where that differs from node to node; None where it does not."""
    return None if plan.uniform else jnp.asarray(np.stack([np.asarray(part) for part in plan.constants]))


# -- the kernels -------------------------------------------------------------------------------------------------


class _Program:
    """Where one program stands, and its way to the memory."""

    def __init__(self, block: Block, plan: Plan, constants: Any, interpret: bool) -> None:
        self.block, self.plan, self.constants, self.interpret = block, plan, constants, interpret
        self.row = pl.program_id(0) * block.height
        self.root = (1 << block.above) + pl.program_id(1)  # its place

    def places(self, level: int) -> Array:
        """[1, 2^level] the places of one level of the block."""
        return (self.root << level) + lax.broadcasted_iota(jnp.int32, (1, 1 << level), 1)

    def is_node(self, level: int) -> Array | None:
        """Which places of a level are nodes; None where all are."""
        if self.block.even or level < self.block.depth - 1:
            return None
        return self.places(level) < self.block.classes

    def hangs(self) -> Array | None:
        """Which places below the block's last level are there: those whose parent is a node."""
        return None if self.block.even else self.places(self.block.depth) >> 1 < self.block.classes

    def load(self, ref: Any, columns: Array, where: Array | None = None) -> Array:
        """[height, n] what stands in the given columns [1, n] of our rows; 0 where there is nothing."""
        row, column, mask = self._cells(columns, where)
        if self.interpret:  # it wants every address inside, though it is not read; Triton would lose wide loads by this
            row, column = jnp.minimum(row, ref.shape[0] - 1), jnp.clip(column, 0, ref.shape[1] - 1)
        return triton.load(ref.at[row, column], mask=mask, other=0.0)

    def load_levels(self, x: Any) -> dict[int, Array]:
        """The scores of all levels, at once: no load moves across the barriers between the levels later."""
        levels = range(self.block.head, self.block.depth)
        return {level: self.load(x, self.places(level) - 1, self.is_node(level)) for level in levels}

    def store(self, ref: Any, columns: Array, values: Array, where: Array | None = None) -> None:
        """Write [height, n] values into columns of our rows."""
        row, column, mask = self._cells(columns, where)
        if self.interpret:  # it has no masks for writing, but drops what is outside
            row, column = jnp.where(mask, row, ref.shape[0]), jnp.where(mask, column, ref.shape[1])
        triton.store(ref.at[row, column], values, mask=mask)

    def _cells(self, columns: Array, where: Array | None) -> tuple[Array, Array, Array]:
        shape = (self.block.height, columns.shape[1])
        row = self.row + lax.broadcasted_iota(jnp.int32, shape, 0)
        mask = row < self.block.rows
        return row, jnp.broadcast_to(columns, shape), mask if where is None else mask & where

    def given(self, level: int) -> Sequence[Values]:
        """What the nodes of one level must know of themselves."""
        if self.constants is None:
            return self.plan.constants
        columns, is_node = self.places(level) - 1, self.is_node(level)
        if self.interpret:
            columns = jnp.minimum(columns, self.constants.shape[1] - 1)
        other = None if is_node is None else 0.0
        cells = [self.constants.at[jnp.full_like(columns, i), columns] for i in range(self.constants.shape[0])]
        return [triton.load(cell, mask=is_node, other=other) for cell in cells]


def _open(refs: tuple[Any, ...], block: Block, plan: Plan, interpret: bool) -> tuple[_Program, Any, list[Any]]:
    """The program, the scores, and what else came in and goes out."""
    x, *rest = refs
    constants = None if _constants(plan) is None else rest.pop(0)
    return _Program(block, plan, constants, interpret), x, rest


def _walk_block(*refs: Any, block: Block, plan: Plan, interpret: bool) -> None:
    program, x, (*above, out) = _open(refs, block, plan, interpret)
    loaded = program.load_levels(x)
    here = jnp.zeros((block.height, 1), jnp.float32)
    if above:
        here = program.load(above[0], program.places(block.head) - block.top)
    for level in range(block.head, block.depth):
        places, is_node, scores = program.places(level), program.is_node(level), loaded[level]
        if is_node is not None:  # the others are classes already
            program.store(out, places - block.classes, here, ~is_node)
        left, right = node.log_branches(scores, plan, program.given(level), interpret)
        here = _keep_nan(here, scores, plan)
        here = _interleave(here + left, here + right)
    program.store(out, program.places(block.depth) - block.classes, here, program.hangs())


def _pull_block(*refs: Any, block: Block, plan: Plan, interpret: bool) -> None:
    program, x, (gradient, *rest) = _open(refs, block, plan, interpret)
    dx = rest[-2] if block.top > 1 else rest[-1]
    loaded = program.load_levels(x)
    below = program.load(gradient, program.places(block.depth) - block.classes, program.hangs())
    for level in reversed(range(block.head, block.depth)):
        places, is_node, scores = program.places(level), program.is_node(level), loaded[level]
        below_left, below_right = _part(below)
        left, right = node.slopes(scores, plan, program.given(level), interpret)
        slope = _keep_nan(left * below_left + right * below_right, scores, plan)
        program.store(dx, places - 1, slope, is_node)
        below = below_left + below_right
        if is_node is not None:
            below = below + program.load(gradient, places - block.classes, ~is_node)
    if block.top > 1:
        program.store(rest[-1], program.places(block.head) - block.top, below)


def _keep_nan(values: Array, scores: Array, plan: Plan) -> Array:
    """A NaN among the scores, which a GPU's minimum and maximum let fall under the table."""
    return jnp.where(scores == scores, values, scores) if isinstance(plan.activation, Natural) else values


def _interleave(left: Array, right: Array) -> Array:
    return jnp.concatenate((left[..., None], right[..., None]), -1).reshape(len(left), -1)


def _part(pairs: Array) -> list[Array]:
    halves = lax.split(pairs.reshape(len(pairs), -1, 2), (1, 1), axis=2)
    return [half.reshape(len(pairs), -1) for half in halves]
