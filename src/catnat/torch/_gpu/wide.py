"""A linear layer and a loss that read one path of the tree: the rows of the weights that a target's nodes have.

``x`` is [R, D], ``weight`` [K-1, D]; ``steps`` [R, DEPTH] are the paths to the targets from the root, +node for a right
turn, -node for a left one and 0 when done. Any tree will do.

**The weights' gradient** of a node is a sum over the rows that pass it. Sorted by where their targets stand from left
to right, these rows are neighbours: a *run*. Where a row's path leaves that of the row before it, at the level
``leaves[row]``, runs begin at that level and at all below; a run of level l ends before the next row with leaves <= l.
One program adds up the runs that begin at one row, in a fixed order and without atomics. A long run is made of whole
chunks of CHUNK rows, whose sums of all levels are one small matrix product each (`sum_chunks`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from catnat.torch._gpu import node

NUMBERS = ("rows", "chunks", "ignored")  # see `launcher`
FAR: tl.constexpr = tl.constexpr(1 << 30)


# -- paths -------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=NUMBERS)
def find_steps(
    target_ptr, places_ptr, lengths_ptr, above_ptr, steps_ptr, rows, ignored,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    """The paths to the targets, written from their ends. ``above``: the place of every node, None in a heap."""
    row = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    target = tl.load(target_ptr + row, row < rows, other=ignored)
    counts = (row < rows) & (target != ignored)
    tl.device_assert((target >= 0) & (target < CLASSES) | (counts == 0), "catnat: a class id is out of range")
    target = tl.where(counts, tl.minimum(tl.maximum(target, 0), CLASSES - 1), 0)
    place = tl.load(places_ptr + target)
    length = tl.where(counts, tl.load(lengths_ptr + target), 0)
    for j in range(DEPTH):
        level = length - 1 - j
        own = place >> 1
        tl.store(steps_ptr + row * DEPTH + level, tl.where(place & 1 == 1, own, -own), level >= 0)
        tl.store(steps_ptr + row * DEPTH + length + j, 0, (row < rows) & (length + j < DEPTH))
        place = own if above_ptr is None else tl.load(above_ptr + own, level > 0, other=1)


@triton.jit(do_not_specialize=NUMBERS)
def find_leaves(
    steps_ptr, order_ptr, leaves_ptr, least_ptr, rows,
    DEPTH: tl.constexpr, LEVELS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Where the path of every sorted row leaves that of the row before it, and the least of every chunk."""
    row = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    level = tl.arange(0, LEVELS)[None, :]
    here = tl.load(order_ptr + row, row < rows, other=0)[:, None] * DEPTH
    before = tl.load(order_ptr + row - 1, (row < rows) & (row > 0), other=0)[:, None] * DEPTH
    own = tl.abs(tl.load(steps_ptr + here + level, level < DEPTH, other=0))
    other = tl.abs(tl.load(steps_ptr + before + level, level < DEPTH, other=0))
    leaves = tl.min(tl.where(own != other, level, LEVELS), 1)
    leaves = tl.where(row == 0, 0, tl.where(row < rows, leaves, -1))  # past the last row every run has ended
    tl.store(leaves_ptr + row, leaves)
    tl.store(least_ptr + tl.program_id(0), tl.min(leaves, 0))


# -- the loss, and the gradient of the features --------------------------------------------------------------------


@triton.jit(do_not_specialize=NUMBERS)
def loss(
    x_ptr, weight_ptr, bias_ptr, steps_ptr, loss_ptr, slopes_ptr, dx_ptr, centers_ptr,
    half, half_rest, angle, least, steepness,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, LEVELS: tl.constexpr, BLOCK: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """- log p of a row's target, its slope in every score of the path and, if asked for, its gradient in x."""
    numbers = (half, half_rest, angle, least, steepness)
    row = tl.program_id(0).to(tl.int64)
    level, column = tl.arange(0, LEVELS), tl.arange(0, BLOCK)
    step = tl.load(steps_ptr + row * DEPTH + level, level < DEPTH, other=0)
    taken, right = step != 0, step > 0
    place = tl.where(taken, tl.abs(step), 1)
    start = (place.to(tl.int64) - 1) * WIDTH
    products = tl.zeros((LEVELS, BLOCK), tl.float32)
    for first in range(0, WIDTH, BLOCK):
        at = first + column
        x = tl.load(x_ptr + row * WIDTH + at, at < WIDTH, other=0.0).to(tl.float32)
        inside = taken[:, None] & (at < WIDTH)[None, :]
        products += tl.load(weight_ptr + start[:, None] + at[None, :], inside, other=0.0).to(tl.float32) * x[None, :]
    score = tl.sum(products, 1)
    if bias_ptr is not None:
        score += tl.load(bias_ptr + place - 1).to(tl.float32)
    offset, rounded = node.offset_of(score, place, 0, centers_ptr, F.kind, F)
    to_left, to_right = node.log_branches(0.0, offset, rounded, numbers, F)
    tl.store(loss_ptr + row, tl.sum(tl.where(taken, tl.where(right, to_right, to_left), 0.0), 0) * -node.LN_4)
    if slopes_ptr is not None:
        minus_one = tl.zeros_like(score) - 1
        left_part, right_part = tl.where(right, 0.0, minus_one), tl.where(right, minus_one, 0.0)
        slope = tl.where(taken, node.pull(left_part, right_part, minus_one, offset, rounded, numbers, F), 0.0)
        tl.store(slopes_ptr + row * DEPTH + level, slope, level < DEPTH)
        if dx_ptr is not None:
            for first in range(0, WIDTH, BLOCK):
                at = first + column
                inside = taken[:, None] & (at < WIDTH)[None, :]
                weight = tl.load(weight_ptr + start[:, None] + at[None, :], inside, other=0.0).to(tl.float32)
                tl.store(dx_ptr + row * WIDTH + at, tl.sum(weight * slope[:, None], 0), at < WIDTH)


# -- the gradient of the weights -----------------------------------------------------------------------------------


@triton.jit(do_not_specialize=NUMBERS)
def sum_chunks(
    x_ptr, slopes_ptr, gradient_ptr, order_ptr, least_ptr, sums_ptr, bias_sums_ptr, rows,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, LEVELS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The sums of a chunk of sorted rows, at the levels at which all of it is inside of one run."""
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    chunk, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    least = tl.load(least_ptr + chunk)
    if least > 0:
        level, at = tl.arange(0, LEVELS), block * BLOCK + tl.arange(0, BLOCK)
        row = tl.load(order_ptr + chunk * CHUNK + tl.arange(0, CHUNK))
        used = level < tl.minimum(least, DEPTH)
        slope = tl.load(slopes_ptr + row[:, None] * DEPTH + level[None, :], used[None, :], other=0.0)
        slope *= tl.load(gradient_ptr + row)[:, None]
        x = tl.load(x_ptr + row[:, None] * WIDTH + at[None, :], (at < WIDTH)[None, :], other=0.0).to(tl.float32)
        sums = tl.dot(tl.trans(slope), x, input_precision=PRECISION)
        to = (chunk.to(tl.int64) * DEPTH + level)[:, None] * WIDTH + at[None, :]
        tl.store(sums_ptr + to, sums, used[:, None] & (at < WIDTH)[None, :])
        if block == 0:
            tl.store(bias_sums_ptr + chunk * DEPTH + level, tl.sum(slope, 0), used)


@triton.jit
def _add_rows(
    total, bias_total, first, end, own, level, x_ptr, slopes_ptr, gradient_ptr, order_ptr, leaves_ptr, at,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    """Add sorted rows from ``first`` on up to the end of the run of row ``own``; whether it ends before ``end``."""
    ended = first < 0
    while (first < end) & (ended == 0):
        row = first + tl.arange(0, HEIGHT)
        leaves = tl.load(leaves_ptr + row, row < end, other=FAR)
        stop = tl.min(tl.where((leaves <= level) & (row != own), row, FAR), 0)
        inside = (row < end) & (row < stop)
        line = tl.load(order_ptr + row, inside, other=0)
        slope = tl.load(slopes_ptr + line * DEPTH + level, inside, other=0.0)
        slope *= tl.load(gradient_ptr + line, inside, other=0.0)
        cell = line[:, None] * WIDTH + at[None, :]
        x = tl.load(x_ptr + cell, inside[:, None] & (at < WIDTH)[None, :], other=0.0).to(tl.float32)
        total += slope[:, None] * x
        bias_total += slope
        ended = stop < FAR
        first += HEIGHT
    return total, bias_total, ended


@triton.jit(do_not_specialize=NUMBERS)
def sum_runs(
    x_ptr, slopes_ptr, gradient_ptr, steps_ptr, order_ptr, leaves_ptr, least_ptr, sums_ptr, bias_sums_ptr, slots_ptr,
    out_ptr, bias_out_ptr, rows, chunks,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, LEVELS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    HEIGHT: tl.constexpr,
):  # fmt: skip
    """The runs that begin at one sorted row. A node's sum goes to its own row of ``out``, or to that of its slot."""
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    own, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    at = block * BLOCK + tl.arange(0, BLOCK)
    line = tl.load(order_ptr + own).to(tl.int64)
    levels = tl.arange(0, LEVELS)
    steps = tl.load(steps_ptr + line * DEPTH + levels, levels < DEPTH, other=0)
    length = tl.sum((steps != 0).to(tl.int32), 0)
    level = tl.load(leaves_ptr + own)
    edge = tl.minimum((own // CHUNK + 1) * CHUNK, rows)  # of the chunk in which the run begins
    while level < length:
        total, bias_total = tl.zeros((HEIGHT, BLOCK), tl.float32), tl.zeros((HEIGHT,), tl.float32)
        total, bias_total, ended = _add_rows(
            total, bias_total, own, edge, own, level, x_ptr, slopes_ptr, gradient_ptr, order_ptr, leaves_ptr, at,
            WIDTH, DEPTH, HEIGHT,
        )  # fmt: skip
        chunk = own // CHUNK + 1
        whole = ended == 0
        while (chunk < chunks) & whole:
            some = chunk + tl.arange(0, HEIGHT)
            least = tl.load(least_ptr + some, some < chunks, other=-1)
            stop = tl.min(tl.where(least <= level, some, FAR), 0)
            inside = some < stop
            cell = (some.to(tl.int64) * DEPTH + level)[:, None] * WIDTH + at[None, :]
            total += tl.load(sums_ptr + cell, inside[:, None] & (at < WIDTH)[None, :], other=0.0)
            bias_total += tl.load(bias_sums_ptr + some * DEPTH + level, inside, other=0.0)
            whole = stop == FAR
            chunk = tl.minimum(stop, chunk + HEIGHT)
        if ended == 0:
            total, bias_total, ended = _add_rows(
                total, bias_total, chunk * CHUNK, rows, own, level, x_ptr, slopes_ptr, gradient_ptr, order_ptr,
                leaves_ptr, at, WIDTH, DEPTH, HEIGHT,
            )  # fmt: skip
        if slots_ptr is None:
            to = tl.abs(tl.load(steps_ptr + line * DEPTH + level)).to(tl.int64) - 1
        else:
            to = tl.load(slots_ptr + own * DEPTH + level).to(tl.int64)
        tl.store(out_ptr + to * WIDTH + at, tl.sum(total, 0), at < WIDTH)
        if (block == 0) & (bias_out_ptr is not None):
            tl.store(bias_out_ptr + to, tl.sum(bias_total, 0))
        level += 1


# -- a walk down ---------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=NUMBERS)
def sample(
    x_ptr, weight_ptr, bias_ptr, seed_ptr, node_at_ptr, class_at_ptr, out_ptr, centers_ptr,
    half, half_rest, angle, least, steepness,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """One class per row, a coin per node of one path. The tables say which node or class sits at a place, 0 if none."""
    numbers = (half, half_rest, angle, least, steepness)
    row = tl.program_id(0).to(tl.int64)
    column, one = tl.arange(0, BLOCK), tl.arange(0, 1)
    seed = tl.load(seed_ptr)
    place = one + 1
    own = one + 1  # its node
    for level in range(DEPTH):
        inside = own > 0
        here = tl.where(inside, own, 1)
        products = tl.zeros((1, BLOCK), tl.float32)
        for first in range(0, WIDTH, BLOCK):
            at = first + column
            x = tl.load(x_ptr + row * WIDTH + at, at < WIDTH, other=0.0).to(tl.float32)
            cell = (here.to(tl.int64) - 1)[:, None] * WIDTH + at[None, :]
            read = inside[:, None] & (at < WIDTH)[None, :]
            products += tl.load(weight_ptr + cell, read, other=0.0).to(tl.float32) * x[None, :]
        score = tl.sum(products, 1)
        if bias_ptr is not None:
            score += tl.load(bias_ptr + here - 1).to(tl.float32)
        offset, rounded = node.offset_of(score, here, 0, centers_ptr, F.kind, F)
        left, right = node.log_branches(0.0, offset, rounded, numbers, F)
        # by the less likely branch, whose probability has all its digits
        rare = tl.rand(seed, row * DEPTH + level + one) < tl.exp2(2 * tl.minimum(left, right))
        falls_right = (right > left) != rare
        place = tl.where(inside, 2 * here + falls_right.to(tl.int32), place)
        own = tl.where(inside, tl.load(node_at_ptr + place), own).to(tl.int32)
    tl.store(out_ptr + row + one, tl.load(class_at_ptr + place))
