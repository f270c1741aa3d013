"""Given classes: their log p, a loss and its gradient, from the scores on their paths alone; sampling; a policy's head.

Steps are numbered by level, so that a node is always in the same column: several classes of one row then meet in one
thread, and their gradients are added up in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from catnat.torch._gpu import moves, node, walk


@triton.jit
def checked(index, F: tl.constexpr):
    """The class ids, inside of the row whatever came; what was outside stops the program on the device."""
    tl.device_assert((index >= 0) & (index < F.classes), "catnat: a class id is out of range")
    return tl.minimum(tl.maximum(index, 0), F.classes - 1).to(tl.int32)


@triton.jit
def _steps(index, F: tl.constexpr):
    """[height, steps] levels, nodes, turns, and which steps the path to [height] class ids has."""
    level = moves.columns(triton.next_power_of_2(F.levels))
    place = (index + F.classes)[:, None]
    length = tl.where(place < (1 << F.levels), F.levels - 1, F.levels)  # in a heap two lengths are next to each other
    taken = level < length
    left = tl.where(taken, length - level, 1)
    return level, tl.where(taken, place >> left, 1), (place >> (left - 1)) & 1 == 1, taken


@triton.jit
def log_of(x_ptr, start, index, centers_ptr, numbers, F: tl.constexpr):
    """[height] log p of class ids, from rows that begin at ``start``."""
    level, place, right, taken = _steps(index, F)
    x = tl.load(x_ptr + start[:, None] + (place - 1), taken, other=0.0).to(tl.float32)
    offset, rounded = node.offset_of(x, place, tl.where(taken, level, 0), centers_ptr, F.kind, F)
    to_left, to_right = node.log_branches(0.0, offset, rounded, numbers, F)
    return tl.sum(tl.where(taken, tl.where(right, to_right, to_left), 0.0), 1) * node.LN_4


@triton.jit
def _weight(weight_ptr, index, counts):
    """[height] by how much a class counts: its weight, 1 where there are none; 0 where it is ignored."""
    weight = 1.0 if weight_ptr is None else tl.load(weight_ptr + index)
    return tl.where(counts, weight, 0.0)


@triton.jit
def _losses(x_ptr, row, index_ptr, weight_ptr, centers_ptr, rows, ignored, stride, numbers, F: tl.constexpr):
    """[height] - w log p of the rows' classes and w, 0 past the last row and for the class id ``ignored``."""
    inside = tl.minimum(row, rows - 1)
    index = tl.load(index_ptr + inside)
    counts = index != ignored
    index = checked(tl.where(counts, index, 0), F)
    weight = _weight(weight_ptr, index, counts & (row < rows))
    found = log_of(x_ptr, moves.row_start(inside, stride, F), index, centers_ptr, numbers, F)
    return tl.where(counts & (row < rows), -found * weight, 0.0), weight


@moves.kernel
def log_path(
    x_ptr, index_ptr, weight_ptr, out_ptr, centers_ptr, items, samples, ignored, stride,
    half, half_rest, angle, least, steepness, ONE: tl.constexpr, LOSS: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """log p of ``samples`` classes a row (ONE: of one), or the LOSS of one."""
    numbers = (half, half_rest, angle, least, steepness)
    item = tl.program_id(0).to(tl.int64) * F.height + tl.arange(0, F.height)
    if LOSS:
        found, _ = _losses(x_ptr, item, index_ptr, weight_ptr, centers_ptr, items, ignored, stride, numbers, F)
    else:
        inside = tl.minimum(item, items - 1)
        index = checked(tl.load(index_ptr + inside), F)
        row = inside if ONE else inside // samples
        found = log_of(x_ptr, moves.row_start(row, stride, F), index, centers_ptr, numbers, F)
    tl.store(out_ptr + item, found, item < items)


@moves.kernel
def loss(
    x_ptr, index_ptr, weight_ptr, out_ptr, share_ptr, centers_ptr, rows, programs, ignored, stride,
    half, half_rest, angle, least, steepness, ALL: tl.constexpr, MEAN: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """The sum or the MEAN of all losses and a row's share in it (ALL: there is one program), or a program's part."""
    numbers = (half, half_rest, angle, least, steepness)
    row = tl.program_id(0).to(tl.int64) * F.height + tl.arange(0, F.height)
    losses, weights = tl.zeros_like(row).to(tl.float32), tl.zeros_like(row).to(tl.float32)
    start = tl.program_id(0)
    while start * F.height < rows:  # Triton's interpreter has no range() of an argument
        found, weight = _losses(x_ptr, row, index_ptr, weight_ptr, centers_ptr, rows, ignored, stride, numbers, F)
        losses += found
        weights += weight
        start += programs
        row += programs * F.height
    if ALL:
        finish(tl.sum(losses, 0), tl.sum(weights, 0), out_ptr, share_ptr, MEAN)
    else:
        tl.store(out_ptr + 2 * tl.program_id(0), tl.sum(losses, 0))
        tl.store(out_ptr + 2 * tl.program_id(0) + 1, tl.sum(weights, 0))


@triton.jit
def finish(total, count, loss_ptr, share_ptr, MEAN: tl.constexpr):
    """The sum or the mean of all rows, and a row's share in it: a mean of nothing is nan, and nobody has a share."""
    tl.store(loss_ptr, total / count if MEAN else total)
    tl.store(share_ptr, tl.where(count > 0, 1 / count, 0.0) if MEAN else 1.0)


@moves.kernel
def reduce(sums_ptr, loss_ptr, share_ptr, programs, MEAN: tl.constexpr, WIDTH: tl.constexpr):
    """The programs' parts together, in a fixed order, whatever ran first."""
    losses, weights = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    start = 0
    while start < programs:
        program = start + tl.arange(0, WIDTH)
        losses += tl.load(sums_ptr + 2 * program, program < programs, other=0.0)
        weights += tl.load(sums_ptr + 2 * program + 1, program < programs, other=0.0)
        start += WIDTH
    finish(tl.sum(losses, 0), tl.sum(weights, 0), loss_ptr, share_ptr, MEAN)


@moves.kernel
def pull_path(
    x_ptr, index_ptr, weight_ptr, gradient_ptr, share_ptr, dx_ptr, centers_ptr, rows, samples, ignored, stride,
    half, half_rest, angle, least, steepness,
    ONE: tl.constexpr, LOSS: tl.constexpr, SPAN: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """The gradient of `log_path` or, with a share, of `loss`: 0 but for the paths.

    A program writes SPAN cells, of ``height`` rows at most.
    """
    numbers = (half, half_rest, angle, least, steepness)
    low = tl.program_id(0).to(tl.int64) * SPAN
    high = tl.minimum(low + SPAN, rows.to(tl.int64) * F.nodes)
    column = tl.arange(0, triton.next_power_of_2(SPAN))
    if high == low + SPAN:  # a mask that the compiler knows leaves whole vectors whole
        tl.store(dx_ptr + low + column, 0.0, column < SPAN)
    else:
        tl.store(dx_ptr + low + column, 0.0, low + column < high)
    tl.debug_barrier()
    row = tl.minimum(low // F.nodes + tl.arange(0, F.height), rows - 1)
    repeats = low // F.nodes + tl.arange(0, F.height) >= rows
    at, to = moves.row_start(row, stride, F)[:, None], (row * F.nodes)[:, None]
    sample = 0
    while sample < samples:
        item = row * samples + sample
        index = tl.load(index_ptr + item)
        counts = index != ignored if LOSS else index >= 0
        index = tl.minimum(tl.maximum(index, 0), F.classes - 1).to(tl.int32)
        gradient = tl.load(gradient_ptr + item if share_ptr is None else gradient_ptr).to(tl.float32)
        if share_ptr is not None:
            gradient *= tl.load(share_ptr)
        if LOSS:
            gradient = -gradient * _weight(weight_ptr, index, counts)
        level, place, right, taken = _steps(index, F)
        cell = to + (place - 1)
        taken = taken & (counts & (repeats == 0))[:, None] & (cell >= low) & (cell < high)
        x = tl.load(x_ptr + at + (place - 1), taken, other=0.0).to(tl.float32)
        gradient = gradient[:, None]
        below_left, below_right = tl.where(right, 0.0, gradient), tl.where(right, gradient, 0.0)
        offset, rounded = node.offset_of(x, place, tl.where(taken, level, 0), centers_ptr, F.kind, F)
        slope = node.pull(below_left, below_right, gradient, offset, rounded, numbers, F)
        if not ONE:
            slope += tl.load(dx_ptr + cell, taken, other=0.0)
        tl.store(dx_ptr + cell, slope, taken)
        sample += 1


@triton.jit
def toss(x_ptr, at, item, seed, centers_ptr, numbers, F: tl.constexpr):
    """Walk down from the root, a coin a level: [height] class ids and their log p; no class, K, where a coin is NaN."""
    FOURS: tl.constexpr = (F.levels + 3) // 4
    place = tl.zeros_like(item).to(tl.int32) + 1
    total = tl.zeros_like(item).to(tl.float32)
    for four in tl.static_range(FOURS):
        uniforms = tl.rand4x(seed, item.to(tl.int64) * FOURS + four)
        for one in tl.static_range(4):
            if four * 4 + one < F.levels:
                is_node = place < F.classes
                here = tl.where(is_node, place, 1)
                x = tl.load(x_ptr + at + (here - 1)).to(tl.float32)
                offset, rounded = node.offset_of(x, here, four * 4 + one, centers_ptr, F.kind, F)
                left, right = node.log_branches(0.0, offset, rounded, numbers, F)
                # By the less likely branch, whose probability has all its digits. Uniform numbers have steps of 2^-31:
                # what is less likely than that is drawn as if it were so likely.
                likely_right = right > left
                rare = uniforms[one] < tl.exp2(2 * tl.minimum(left, right))
                falls_right = likely_right != rare
                total += tl.where(is_node, tl.where(falls_right, right, left), 0.0)
                place = tl.where(is_node, 2 * place + falls_right.to(tl.int32), place)
    return tl.where(total == total, place - F.classes, F.classes), total * node.LN_4


@moves.kernel
def sample(
    x_ptr, seed_ptr, out_ptr, centers_ptr, items, batch, stride, half, half_rest, angle, least, steepness,
    ONE: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Draws for every row, again and again (ONE: once): item i is one of row i % batch."""
    numbers = (half, half_rest, angle, least, steepness)
    item = tl.minimum(tl.program_id(0).to(tl.int64) * F.height + tl.arange(0, F.height), items - 1)
    row = item if ONE else item % batch
    found, _ = toss(x_ptr, moves.row_start(row, stride, F), item, tl.load(seed_ptr), centers_ptr, numbers, F)
    tl.store(out_ptr + item, found.to(tl.int64))


@moves.kernel
def head(
    x_ptr, index_ptr, seed_ptr, log_prob_ptr, entropy_ptr, centers_ptr, rows, stride,
    half, half_rest, angle, least, steepness, F: tl.constexpr,
):  # fmt: skip
    """The entropy of a row, by a seed a draw, and log p of it or of given classes: the whole tree in one program.

    `walk.pull` is its gradient, too: that of the entropy in log p_k is -p_k log p_k, but for a multiple of p_k that
    falls out since the probabilities sum to one.
    """
    numbers = (half, half_rest, angle, least, steepness)
    first, root = moves.first_and_root(rows, F)
    line = moves.lines(rows, first, False, F)
    row = first + tl.sum(line, 1)
    base = x_ptr + moves.row_start(first, stride, F) - 1
    loaded = moves.load_levels(base, moves.row_start(line, stride, F), root, F)
    start = moves.row_start(row, stride, F)
    if seed_ptr is not None:
        index, log_p = toss(x_ptr, start, row, tl.load(seed_ptr), centers_ptr, numbers, F)
        tl.store(index_ptr + row, index.to(tl.int64))
        tl.store(log_prob_ptr + row, log_p)
    elif index_ptr is not None:
        index = checked(tl.load(index_ptr + row), F)
        tl.store(log_prob_ptr + row, log_of(x_ptr, start, index, centers_ptr, numbers, F))
    here = walk.descend(tl.zeros_like(line).to(tl.float32), loaded, root, centers_ptr, numbers, F.depth - 1, F)
    deepest = walk.last_level(here, loaded[F.depth - 1], root, centers_ptr, numbers, F)
    hangs = moves.pairs(2 * F.width, F.part) < 2 * F.classes  # its parent is a node
    entropy = tl.sum(tl.sum(walk.minus_p_log_p(deepest, hangs), 2), 1)
    if not F.even:
        entropy += tl.sum(walk.minus_p_log_p(here, F.width + moves.columns(F.width) >= F.classes), 1)
    tl.store(entropy_ptr + row, entropy)
