"""One class a row: its log p and gradient from the scores on its path alone, and sampling, a coin a level.

Steps are numbered by level, so that a node is always in the same column: several classes of one row then meet in one
thread, and their gradients are added up in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from catnat.torch._gpu import coins

NUMBERS = ("items", "rows", "batch", "samples", "ignored", "stride", "outer_stride", "inner")  # see `launcher`


@triton.jit
def _check(index, CLASSES: tl.constexpr):
    """The class ids, inside of the row whatever came; what was outside stops the program on the device."""
    tl.device_assert((index >= 0) & (index < CLASSES), "catnat: a class id is out of range")
    return tl.minimum(tl.maximum(index, 0), CLASSES - 1).to(tl.int32)


@triton.jit
def _row_start(row, stride, outer_stride, inner, STRIDES: tl.constexpr):
    if STRIDES == 2:
        return (row // inner).to(tl.int64) * outer_stride + (row % inner).to(tl.int64) * stride
    else:
        return row.to(tl.int64) * stride


@triton.jit
def _steps(index, CLASSES: tl.constexpr, DEPTH: tl.constexpr, STEPS: tl.constexpr):
    """[HEIGHT, STEPS] levels, nodes, turns, and which steps the path to [HEIGHT] class ids has."""
    level = tl.arange(0, STEPS)[None, :]
    place = (index + CLASSES)[:, None]
    length = tl.where(place < (1 << DEPTH), DEPTH - 1, DEPTH)  # in a heap two lengths are next to each other
    taken = level < length
    left = tl.where(taken, length - level, 1)
    return level, tl.where(taken, place >> left, 1), (place >> (left - 1)) & 1 == 1, taken


@triton.jit
def log_of(
    x_ptr, start, index, ends_ptr, coin, CLASSES: tl.constexpr, DEPTH: tl.constexpr, STEPS: tl.constexpr,
    NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr,
):  # fmt: skip
    """[HEIGHT] log p of class ids, from rows that begin at ``start``."""
    level, node, right, taken = _steps(index, CLASSES, DEPTH, STEPS)
    x = tl.load(x_ptr + start[:, None] + (node - 1), taken, other=0.0).to(tl.float32)
    ends = coins.ends_of(ends_ptr, node, tl.where(taken, level, 0), coin, CLASSES - 1, ENDS)
    to_left, to_right = coins.log_branches(x, ends, coin, NATURAL, ENDS, SATURATION, True)
    return tl.sum(tl.where(taken, tl.where(right, to_right, to_left), 0.0), 1)


@triton.jit(do_not_specialize=NUMBERS)
def log_path(
    x_ptr, index_ptr, out_ptr, ends_ptr, items, samples, ignored, stride, outer_stride, inner,
    half, rest, angle, least, period, period_rest,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, STEPS: tl.constexpr, STRIDES: tl.constexpr,
    NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr, ONE: tl.constexpr, LOSS: tl.constexpr,
):  # fmt: skip
    """log p of ``samples`` classes a row; ONE where that is one. LOSS: - log p, and 0 for the class id ``ignored``."""
    coin = (half, rest, angle, least, period, period_rest)
    item = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    item = tl.minimum(item, items - 1)
    index = tl.load(index_ptr + item)
    counts = index != ignored
    if LOSS:
        index = tl.where(counts, index, 0)
    index = _check(index, CLASSES)
    row = item if ONE else item // samples
    start = _row_start(row, stride, outer_stride, inner, STRIDES)
    found = log_of(x_ptr, start, index, ends_ptr, coin, CLASSES, DEPTH, STEPS, NATURAL, ENDS, SATURATION)
    if LOSS:
        found = tl.where(counts, -found, 0.0)
    tl.store(out_ptr + item, found)


@triton.jit(do_not_specialize=NUMBERS)
def pull_path(
    x_ptr, index_ptr, gradient_ptr, dx_ptr, ends_ptr, rows, samples, ignored, stride, outer_stride, inner,
    half, rest, angle, least, period, period_rest,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, STEPS: tl.constexpr, STRIDES: tl.constexpr,
    NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr, ONE: tl.constexpr, LOSS: tl.constexpr,
):  # fmt: skip
    """Its gradient, into ``dx``, which is 0 everywhere; ONE where there is one sample a row."""
    coin = (half, rest, angle, least, period, period_rest)
    row = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    inside = (row < rows)[:, None]
    row = tl.minimum(row, rows - 1)
    at = _row_start(row, stride, outer_stride, inner, STRIDES)[:, None]
    to = row[:, None] * (CLASSES - 1)
    sample = 0
    while sample < samples:  # Triton's interpreter has no range() of an argument
        item = row * samples + sample
        wanted = tl.load(index_ptr + item)
        index = tl.minimum(tl.maximum(wanted, 0), CLASSES - 1).to(tl.int32)
        level, node, right, taken = _steps(index, CLASSES, DEPTH, STEPS)
        taken = taken & inside
        if LOSS:
            taken = taken & (wanted != ignored)[:, None]
        x = tl.load(x_ptr + at + (node - 1), taken, other=0.0).to(tl.float32)
        gradient = tl.load(gradient_ptr + item).to(tl.float32)[:, None]
        gradient = -gradient if LOSS else gradient
        ends = coins.ends_of(ends_ptr, node, tl.where(taken, level, 0), coin, CLASSES - 1, ENDS)
        below_left, below_right = tl.where(right, 0.0, gradient), tl.where(right, gradient, 0.0)
        slope = coins.pull(x, below_left, below_right, gradient, ends, coin, NATURAL, ENDS, SATURATION, True)
        cell = dx_ptr + to + (node - 1)
        if not ONE:
            slope += tl.load(cell, taken, other=0.0)
        tl.store(cell, slope, taken)
        sample += 1


@triton.jit
def toss(
    x_ptr, at, item, seed, ends_ptr, coin, CLASSES: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr,
    NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr,
):  # fmt: skip
    """Walk down from the root, a coin a level: [HEIGHT] class ids and their log p."""
    FOURS: tl.constexpr = (DEPTH + 3) // 4
    place = tl.full((HEIGHT,), 1, tl.int32)
    total = tl.zeros((HEIGHT,), tl.float32)
    for four in tl.static_range(FOURS):
        uniforms = tl.rand4x(seed, item.to(tl.int64) * FOURS + four)
        for one in tl.static_range(4):
            if four * 4 + one < DEPTH:
                is_node = place < CLASSES
                node = tl.where(is_node, place, 1)
                x = tl.load(x_ptr + at + (node - 1)).to(tl.float32)
                ends = coins.ends_of(ends_ptr, node, four * 4 + one, coin, CLASSES - 1, ENDS)
                left, right = coins.log_branches(x, ends, coin, NATURAL, ENDS, SATURATION, True)
                # By the less likely branch, whose probability has all its digits. Uniform numbers have steps of 2^-31:
                # what is less likely than that is drawn as if it were so likely.
                likely_right = right > left
                rare = uniforms[one] < tl.exp(tl.minimum(left, right))
                falls_right = likely_right != rare
                total += tl.where(is_node, tl.where(falls_right, right, left), 0.0)
                place = tl.where(is_node, 2 * place + falls_right.to(tl.int32), place)
    return place - CLASSES, total


@triton.jit(do_not_specialize=NUMBERS)
def sample(
    x_ptr, seed_ptr, out_ptr, ends_ptr, items, batch, stride, outer_stride, inner,
    half, rest, angle, least, period, period_rest,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, STRIDES: tl.constexpr,
    NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """Draws for every row, again and again (ONE: once): item i is one of row i % batch."""
    coin = (half, rest, angle, least, period, period_rest)
    item = tl.minimum(tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT), items - 1)
    row = item if ONE else item % batch
    at = _row_start(row, stride, outer_stride, inner, STRIDES)
    found, _ = toss(
        x_ptr, at, item, tl.load(seed_ptr), ends_ptr, coin, CLASSES, DEPTH, HEIGHT, NATURAL, ENDS, SATURATION
    )
    tl.store(out_ptr + item, found.to(tl.int64))
