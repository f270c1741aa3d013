"""A linear layer and a loss that read one path of the tree: the rows of the weights that a target's nodes have.

``x`` is [R, D], ``weight`` [K-1, D]; ``steps`` [R, DEPTH] are the paths to the targets from the root, +node for a right
turn, -node for a left one and 0 when done. Any tree will do.

**The weights' gradient** of a node is a sum over the rows that pass it. Sorted by where their targets stand from left
to right, these rows are neighbours: a *run*. Where a row's path leaves that of the row before it, at the level
``leaves[row]``, runs begin at that level and at all below; a run of level l ends before the next row with leaves <= l.
Sorted rows come in chunks. A run that ends in the chunk where it begins is added up by the program of its first row
(`_sum_short_runs`). At most one run per level leaves a chunk, and at most one enters it: the chunk's part in both is a
small matrix product for all levels at once (`sum_chunks`), and one program adds up those parts (`_sum_long_run`). All
sums have a fixed order; there are no atomics. Other programs of the same start (`write_sums`) write zeros for the nodes
that no row passed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from catnat.torch._gpu import moves, node, path

FAR: tl.constexpr = tl.constexpr(1 << 30)


# -- paths -------------------------------------------------------------------------------------------------------


@moves.kernel
def find_steps(
    target_ptr, places_ptr, lengths_ptr, ranks_ptr, above_ptr, steps_ptr, keys_ptr, rows, ignored,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    """The paths to the targets, written from their ends, and by what rows are sorted: their targets' ranks.

    ``above`` is the place of every node, None in a heap.
    """
    row = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    target = tl.load(target_ptr + row, row < rows, other=ignored)
    counts = (row < rows) & (target != ignored)
    tl.device_assert((target >= 0) & (target < CLASSES) | (counts == 0), "catnat: a class id is out of range")
    target = tl.where(counts, tl.minimum(tl.maximum(target, 0), CLASSES - 1), 0)
    place = tl.load(places_ptr + target)
    length = tl.where(counts, tl.load(lengths_ptr + target), 0)
    if keys_ptr is not None:
        tl.store(keys_ptr + row, tl.where(counts, tl.load(ranks_ptr + target), CLASSES), row < rows)
    for j in range(DEPTH):
        level = length - 1 - j
        own = place >> 1
        tl.store(steps_ptr + row * DEPTH + level, tl.where(place & 1 == 1, own, -own), level >= 0)
        tl.store(steps_ptr + row * DEPTH + length + j, 0, (row < rows) & (length + j < DEPTH))
        place = own if above_ptr is None else tl.load(above_ptr + own, level > 0, other=1)


@moves.kernel
def sort_rows(keys_ptr, order_ptr, rows, HEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """The rows in the order of their keys, equal ones as they came: each counts those that come before it.

    For a few thousand rows that is one short kernel in place of a sort's seven.
    """
    row = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    key = tl.load(keys_ptr + row, row < rows, other=0)[:, None]
    other = tl.arange(0, BLOCK)
    counts = tl.zeros((HEIGHT, BLOCK), tl.int32)
    first = 0
    while first < rows:
        keys = tl.load(keys_ptr + other, other < rows, other=FAR)[None, :]
        is_before = (keys < key) | (keys == key) & (other[None, :] < row[:, None])
        counts += is_before.to(tl.int32)
        other += BLOCK
        first += BLOCK
    tl.store(order_ptr + tl.sum(counts, 1), row, row < rows)


@triton.jit
def _gradient(gradient_ptr, share_ptr, row, inside):
    """Of the rows' losses: one number each, or one for their sum or mean, in which each has the same share."""
    if share_ptr is None:
        return tl.load(gradient_ptr + row, inside, other=0.0).to(tl.float32)
    else:
        one = tl.load(gradient_ptr).to(tl.float32) * tl.load(share_ptr)
        return tl.where(inside, one, 0.0)


@triton.jit
def _least(a, b):
    return tl.minimum(a, b)


@moves.kernel
def find_runs(
    steps_ptr, slopes_ptr, gradient_ptr, share_ptr, order_ptr, sorted_steps_ptr, sorted_slopes_ptr, leaves_ptr,
    ends_ptr, least_ptr, passed_ptr, rows, DEPTH: tl.constexpr, LEVELS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Of the sorted rows: steps; slopes, times the loss's gradient; where each leaves the path of the row before it.

    Nodes that are ``passed`` are marked. And ``ends``, the row before which a run of a level ends that begins here; 0
    for none, or one that leaves the chunk.
    """
    row = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    level = tl.arange(0, LEVELS)[None, :]
    is_row, is_first, is_last = row < rows, row == 0, row == rows - 1
    inside = is_row[:, None] & (level < DEPTH)
    line = tl.load(order_ptr + row, is_row, other=0)
    before = tl.load(order_ptr + row - 1, is_row & (is_first == 0), other=0)
    after = tl.load(order_ptr + row + 1, row < rows - 1, other=0)
    own = tl.load(steps_ptr + line[:, None] * DEPTH + level, inside, other=0)
    one = tl.load(steps_ptr + before[:, None] * DEPTH + level, inside, other=0)
    other = tl.load(steps_ptr + after[:, None] * DEPTH + level, inside, other=0)
    slope = tl.load(slopes_ptr + line[:, None] * DEPTH + level, inside, other=0.0)
    slope *= _gradient(gradient_ptr, share_ptr, line, is_row)[:, None]
    leaves = tl.min(tl.where((tl.abs(own) != tl.abs(one)) | is_first[:, None], level, LEVELS), 1)
    leaves = tl.where(is_row, leaves, -1)  # past the last row every run has ended
    ending = tl.min(tl.where((tl.abs(own) != tl.abs(other)) | is_last[:, None], level, LEVELS), 1)
    ends = tl.where((ending[:, None] <= level) & is_row[:, None], row[:, None] + 1, FAR)
    ends = tl.associative_scan(ends, 0, _least, reverse=True)
    begins = (leaves[:, None] <= level) & (own != 0)
    tl.store(passed_ptr + tl.abs(own) - 1, 1, begins)
    cell = row[:, None] * DEPTH + level
    tl.store(sorted_steps_ptr + cell, own, level < DEPTH)
    tl.store(sorted_slopes_ptr + cell, slope, level < DEPTH)
    tl.store(ends_ptr + cell, tl.where(begins & (ends < FAR), ends, 0), level < DEPTH)
    tl.store(leaves_ptr + row, leaves)
    tl.store(least_ptr + tl.program_id(0), tl.min(leaves, 0))


# -- the loss, and the gradient of the features --------------------------------------------------------------------


@triton.jit
def _weights(weight_ptr, steps_ptr, row, at, DEPTH: tl.constexpr, WIDTH: tl.constexpr):
    """The rows of the weights on a path, a tuple."""
    found = ()
    for level in tl.static_range(DEPTH):
        step = tl.load(steps_ptr + row * DEPTH + level)
        start = (tl.abs(step).to(tl.int64) - 1) * WIDTH
        found = found + (tl.load(weight_ptr + start + at, (at < WIDTH) & (step != 0), other=0.0),)
    return found


@triton.jit
def _add4(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@triton.jit
def _dots(weights, x, levels, DEPTH: tl.constexpr):
    """Every level's weights times x. Four sums at a time: threads wait for each other once."""
    found = tl.zeros_like(levels).to(tl.float32)
    for level in tl.static_range(0, DEPTH, 4):
        if level + 4 <= DEPTH:
            a, b, c, d = tl.reduce(
                (
                    weights[level].to(tl.float32) * x,
                    weights[level + 1].to(tl.float32) * x,
                    weights[level + 2].to(tl.float32) * x,
                    weights[level + 3].to(tl.float32) * x,
                ), 0, _add4,
            )  # fmt: skip
            found = tl.where(levels == level, a, tl.where(levels == level + 1, b, found))
            found = tl.where(levels == level + 2, c, tl.where(levels == level + 3, d, found))
        else:
            for rest in tl.static_range(level, DEPTH):
                found = tl.where(levels == rest, tl.sum(weights[rest].to(tl.float32) * x, 0), found)
    return found


@moves.kernel
def loss(
    x_ptr, weight_ptr, bias_ptr, steps_ptr, order_ptr, loss_ptr, slopes_ptr, dx_ptr, centers_ptr,
    half, half_rest, angle, least, steepness,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, LEVELS: tl.constexpr, BLOCK: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """- log p of a row's target, its slope in every score of the path and, if asked for, its gradient in x.

    Where a row is one block, the weights stay in registers for the gradient: they are read once. Sorted rows, which
    share most of their paths, find them in the cache.
    """
    numbers = (half, half_rest, angle, least, steepness)
    row = tl.program_id(0)
    if order_ptr is not None:
        row = tl.load(order_ptr + row)
    row = row.to(tl.int64)
    levels, column = tl.arange(0, LEVELS), tl.arange(0, BLOCK)
    step = tl.load(steps_ptr + row * DEPTH + levels, levels < DEPTH, other=0)
    taken, right = step != 0, step > 0
    place = tl.where(taken, tl.abs(step), 1)
    score = tl.zeros((LEVELS,), tl.float32)
    if bias_ptr is not None:
        score += tl.load(bias_ptr + place - 1).to(tl.float32)
    for first in tl.static_range(0, WIDTH, BLOCK):
        at = first + column
        weights = _weights(weight_ptr, steps_ptr, row, at, DEPTH, WIDTH)
        x = tl.load(x_ptr + row * WIDTH + at, at < WIDTH, other=0.0).to(tl.float32)
        score += _dots(weights, x, levels, DEPTH)
    offset, rounded = node.offset_of(score, place, 0, centers_ptr, F.kind, F)
    to_left, to_right = node.log_branches(0.0, offset, rounded, numbers, F)
    tl.store(loss_ptr + row, tl.sum(tl.where(taken, tl.where(right, to_right, to_left), 0.0), 0) * -node.LN_4)
    if slopes_ptr is not None:
        minus_one = tl.zeros_like(score) - 1
        left_part, right_part = tl.where(right, 0.0, minus_one), tl.where(right, minus_one, 0.0)
        slope = tl.where(taken, node.pull(left_part, right_part, minus_one, offset, rounded, numbers, F), 0.0)
        tl.store(slopes_ptr + row * DEPTH + levels, slope, levels < DEPTH)
        if dx_ptr is not None:
            for first in tl.static_range(0, WIDTH, BLOCK):
                at = first + column
                if WIDTH > BLOCK:
                    weights = _weights(weight_ptr, steps_ptr, row, at, DEPTH, WIDTH)
                total = tl.zeros((BLOCK,), tl.float32)
                for level in tl.static_range(DEPTH):
                    own = tl.sum(tl.where(levels == level, slope, 0.0), 0)
                    total += weights[level].to(tl.float32) * own
                tl.store(dx_ptr + row * WIDTH + at, total, at < WIDTH)


@moves.kernel
def add_losses(
    loss_ptr, target_ptr, total_ptr, share_ptr, rows, ignored, MEAN: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The sum of all rows' losses, or their mean, and a row's share in it; one program, so that the order is fixed."""
    total, count = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    row, first = tl.arange(0, BLOCK), 0
    while first < rows:
        total += tl.load(loss_ptr + row, row < rows, other=0.0)
        count += (tl.load(target_ptr + row, row < rows, other=ignored) != ignored).to(tl.float32)
        row += BLOCK
        first += BLOCK
    path.finish(tl.sum(total, 0), tl.sum(count, 0), total_ptr, share_ptr, MEAN)


@moves.kernel
def scale_rows(x_ptr, gradient_ptr, share_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Every row times its loss's gradient; 0 stays 0, though a mean of nothing has an endless gradient."""
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // BLOCKS).to(tl.int64)
    at = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * WIDTH + at, at < WIDTH, other=0.0).to(tl.float32)
    scaled = tl.where(x == 0, 0.0, x * _gradient(gradient_ptr, share_ptr, row, True))
    tl.store(out_ptr + row * WIDTH + at, scaled, at < WIDTH)


# -- the gradient of the weights -----------------------------------------------------------------------------------


@moves.kernel
def sum_chunks(
    x_ptr, slopes_ptr, order_ptr, leaves_ptr, first_ptr, last_ptr, first_bias_ptr, last_bias_ptr, rows,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, LEVELS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A chunk's parts, at every level, in the run that enters it and in the run that is open at its end."""
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    chunk, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    level, own = tl.arange(0, LEVELS), tl.arange(0, CHUNK)
    at = block * BLOCK + tl.arange(0, BLOCK)
    row = chunk * CHUNK + own
    line = tl.load(order_ptr + row, row < rows, other=0).to(tl.int64)
    begins = tl.load(leaves_ptr + row)[:, None] <= level[None, :]
    begin = tl.min(tl.where(begins, own[:, None], CHUNK), 0)[None, :]  # of the first run in the chunk
    last = tl.max(tl.where(begins, own[:, None], 0), 0)[None, :]  # and of the last one
    slope = tl.load(slopes_ptr + row[:, None] * DEPTH + level[None, :], (level < DEPTH)[None, :], other=0.0)
    entering, leaving = tl.where(own[:, None] < begin, slope, 0.0), tl.where(own[:, None] >= last, slope, 0.0)
    inside = (row < rows)[:, None] & (at < WIDTH)[None, :]
    x = tl.load(x_ptr + line[:, None] * WIDTH + at[None, :], inside, other=0.0).to(tl.float32)
    to = (chunk.to(tl.int64) * DEPTH + level)[:, None] * WIDTH + at[None, :]
    inside = (level < DEPTH)[:, None] & (at < WIDTH)[None, :]
    tl.store(first_ptr + to, tl.dot(tl.trans(entering), x, input_precision=PRECISION), inside)
    tl.store(last_ptr + to, tl.dot(tl.trans(leaving), x, input_precision=PRECISION), inside)
    if block == 0:
        tl.store(first_bias_ptr + chunk * DEPTH + level, tl.sum(entering, 0), level < DEPTH)
        tl.store(last_bias_ptr + chunk * DEPTH + level, tl.sum(leaving, 0), level < DEPTH)


@triton.jit
def _sum_long_run(
    number, block, steps_ptr, leaves_ptr, least_ptr, parts, out_ptr, bias_out_ptr, chunks,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    """The run of one level that begins in one chunk and leaves it, if there is one."""
    first_ptr, last_ptr, first_bias_ptr, last_bias_ptr = parts
    level, chunk = number % DEPTH, number // DEPTH
    goes_on = tl.load(leaves_ptr + (chunk + 1) * CHUNK, chunk + 1 < chunks, other=-1) > level
    if goes_on & (tl.load(least_ptr + chunk) <= level):
        row = chunk * CHUNK + tl.arange(0, CHUNK)
        own = tl.max(tl.where(tl.load(leaves_ptr + row) <= level, row, 0), 0)
        cell = own * DEPTH + level
        if tl.load(steps_ptr + cell) != 0:
            at = block * BLOCK + tl.arange(0, BLOCK)
            total = tl.load(last_ptr + (chunk.to(tl.int64) * DEPTH + level) * WIDTH + at, at < WIDTH, other=0.0)
            bias_total = tl.load(last_bias_ptr + chunk * DEPTH + level)
            chunk += 1
            goes_on = chunk < chunks
            while goes_on:
                some = chunk + tl.arange(0, HEIGHT)
                ends = tl.load(least_ptr + some, some < chunks, other=-1) <= level
                stop = tl.min(tl.where(ends, some, FAR), 0)  # the chunk that it ends in has a part in it, too
                inside = (some <= stop) & (some < chunks)
                start = (some.to(tl.int64) * DEPTH + level)[:, None] * WIDTH
                part = tl.load(first_ptr + start + at[None, :], inside[:, None] & (at < WIDTH)[None, :], other=0.0)
                total += tl.sum(part, 0)
                bias_total += tl.sum(tl.load(first_bias_ptr + some * DEPTH + level, inside, other=0.0), 0)
                goes_on = stop == FAR
                chunk += HEIGHT
            to = tl.abs(tl.load(steps_ptr + cell)).to(tl.int64) - 1
            tl.store(out_ptr + to * WIDTH + at, total, at < WIDTH)
            if block == 0:
                tl.store(bias_out_ptr + to, bias_total)


@triton.jit
def _sum_short_runs(
    own, block, x_ptr, steps_ptr, slopes_ptr, order_ptr, leaves_ptr, ends_ptr, out_ptr, bias_out_ptr, rows,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    """The runs that begin at one sorted row and end in its chunk. Most have a few rows, which are read once."""
    at = block * BLOCK + tl.arange(0, BLOCK)
    row = own + tl.arange(0, HEIGHT)
    line = tl.load(order_ptr + row, row < rows, other=0).to(tl.int64)[:, None] * WIDTH
    level = tl.load(leaves_ptr + own)
    if level < DEPTH:
        # the first rows, of which no run of this row has more than the one of its highest level that is here
        most = tl.load(ends_ptr + own * DEPTH + level)
        inside = (row < tl.where(most == 0, own + HEIGHT, most)) & (row < rows)
        x = tl.load(x_ptr + line + at[None, :], inside[:, None] & (at < WIDTH)[None, :], other=0.0).to(tl.float32)
        while level < DEPTH:
            cell = own * DEPTH + level
            stop = tl.load(ends_ptr + cell)
            if stop > 0:
                slope = tl.load(slopes_ptr + row * DEPTH + level, row < stop, other=0.0)
                total, bias_total = tl.sum(slope[:, None] * x, 0), tl.sum(slope, 0)
                first = own + HEIGHT
                while first < stop:
                    more = first + tl.arange(0, HEIGHT)
                    lines = tl.load(order_ptr + more, more < stop, other=0).to(tl.int64)[:, None] * WIDTH
                    slope = tl.load(slopes_ptr + more * DEPTH + level, more < stop, other=0.0)
                    read = (more < stop)[:, None] & (at < WIDTH)[None, :]
                    total += tl.sum(slope[:, None] * tl.load(x_ptr + lines + at[None, :], read, other=0.0), 0)
                    bias_total += tl.sum(slope, 0)
                    first += HEIGHT
                to = tl.abs(tl.load(steps_ptr + cell)).to(tl.int64) - 1
                tl.store(out_ptr + to * WIDTH + at, total, at < WIDTH)
                if block == 0:
                    tl.store(bias_out_ptr + to, bias_total)
            level += 1


@moves.kernel
def write_sums(
    x_ptr, steps_ptr, slopes_ptr, order_ptr, leaves_ptr, ends_ptr, least_ptr, first_ptr, last_ptr, first_bias_ptr,
    last_bias_ptr, passed_ptr, out_ptr, bias_out_ptr, rows, chunks, nodes,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, HEIGHT: tl.constexpr,
    CLEAR_HEIGHT: tl.constexpr,
):  # fmt: skip
    """Every row of the gradient, once: sums of short and of long runs, then zeros where no row passed."""
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    number, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    if number < rows:
        _sum_short_runs(number, block, x_ptr, steps_ptr, slopes_ptr, order_ptr, leaves_ptr, ends_ptr, out_ptr,
                        bias_out_ptr, rows, WIDTH, DEPTH, BLOCK, HEIGHT)  # fmt: skip
    elif number < rows + chunks * DEPTH:
        parts = first_ptr, last_ptr, first_bias_ptr, last_bias_ptr
        _sum_long_run(number - rows, block, steps_ptr, leaves_ptr, least_ptr, parts, out_ptr, bias_out_ptr, chunks,
                      WIDTH, DEPTH, CHUNK, BLOCK, HEIGHT)  # fmt: skip
    else:
        row = (number - (rows + chunks * DEPTH)) * CLEAR_HEIGHT + tl.arange(0, CLEAR_HEIGHT)
        at = block * BLOCK + tl.arange(0, BLOCK)
        is_clear = tl.load(passed_ptr + row, row < nodes, other=1) == 0
        to = row.to(tl.int64)[:, None] * WIDTH + at[None, :]
        tl.store(out_ptr + to, tl.zeros((CLEAR_HEIGHT, BLOCK), tl.float32), is_clear[:, None] & (at < WIDTH)[None, :])
        if block == 0:
            tl.store(bias_out_ptr + row, tl.zeros((CLEAR_HEIGHT,), tl.float32), is_clear)


# -- a walk down ---------------------------------------------------------------------------------------------------


@moves.kernel
def sample(
    x_ptr, weight_ptr, bias_ptr, seed_ptr, node_at_ptr, class_at_ptr, out_ptr, centers_ptr,
    half, half_rest, angle, least, steepness,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """One class per row, a coin per node of one path; no class, K, where a coin is NaN.

    The tables say which node sits at a place, 0 for none, and which class.
    """
    numbers = (half, half_rest, angle, least, steepness)
    row = tl.program_id(0).to(tl.int64)
    column, one = tl.arange(0, BLOCK), tl.arange(0, 1)
    seed = tl.load(seed_ptr)
    place = one + 1
    own = one + 1  # its node
    lost = one > 0
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
        lost = lost | (inside & (left != left))
        place = tl.where(inside, 2 * here + falls_right.to(tl.int32), place)
        own = tl.where(inside, tl.load(node_at_ptr + place), own).to(tl.int32)
    tl.store(out_ptr + row + one, tl.where(lost, F.classes, tl.load(class_at_ptr + place)))
