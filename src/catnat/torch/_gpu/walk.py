"""log p (or p) of every class: each score is read once, and the levels stay in registers. `pull` is its gradient.

A program takes some rows and one block of the tree, a subtree (`blocks.Form`). Inside it, level l of a subtree rooted
at place r is the contiguous slice r 2^l .. r 2^l + 2^l - 1, so the next level is two vectors interleaved. Where the
number of classes is no power of two, the last level holds nodes (places below the number of classes) and classes;
``part`` covers its nodes, so that a few of them do not cost a whole level.

All loads come first: the compiler does not move one across the barriers between the levels. The last program of a
ragged batch repeats the last row instead of masking every access; the others (FULL) have addresses that need no
arithmetic.
"""

from __future__ import annotations

import triton
import triton.language as tl

from catnat.torch._gpu import moves, node


@triton.jit
def above(x_ptr, at, root, centers_ptr, numbers, F: tl.constexpr):
    """[height, 1] log of the probability to reach the block's root: one thread a step, like `path.log_of`."""
    if F.above == 0:
        return tl.zeros_like(at).to(tl.float32)
    else:
        step = moves.columns(triton.next_power_of_2(F.above))
        taken = step < F.above
        place = tl.where(taken, root >> (step + 1), 1)
        x = tl.load(x_ptr + place + at).to(tl.float32)
        offset, rounded = node.offset_of(x, place, tl.maximum(F.above - 1 - step, 0), centers_ptr, F.kind_above, F)
        left, right = node.log_branches(0.0, offset, rounded, numbers, F)
        branch = tl.where((root >> step) & 1 == 1, right, left)
        return tl.sum(moves.held(tl.where(taken, branch, 0.0)), 1)[:, None]


@triton.jit
def descend(here, loaded, root, centers_ptr, numbers, LEVELS: tl.constexpr, F: tl.constexpr):
    """From the block's root through its first LEVELS levels: [height, 1] to [height, 2^LEVELS]."""
    for level in tl.static_range(LEVELS):
        places = (root << level) + moves.columns(1 << level)
        x = loaded[level].to(tl.float32)
        offset, rounded = node.offset_of(x, places, F.above + level, centers_ptr, F.kinds[level], F)
        left, right = node.log_branches(here, offset, rounded, numbers, F)
        here = tl.interleave(left, right)
    return here


@triton.jit
def last_level(here, x, root, centers_ptr, numbers, F: tl.constexpr):
    """The nodes of the last level: [height, width] to [height, part, 2]."""
    if F.part < F.width:
        column = tl.broadcast_to(moves.columns(F.part), (F.height, F.part))
        here = moves.held(tl.gather(here, column, 1))
    LEVEL: tl.constexpr = F.depth - 1
    places = (root << LEVEL) + moves.columns(F.part)
    offset, rounded = node.offset_of(x.to(tl.float32), places, F.above + LEVEL, centers_ptr, F.kinds[LEVEL], F)
    left, right = node.log_branches(here, offset, rounded, numbers, F)
    return tl.join(left, right)


@triton.jit
def _walk_block(x_ptr, at, out_ptr, to, root, centers_ptr, numbers, EXP: tl.constexpr, F: tl.constexpr):
    loaded = moves.load_levels(x_ptr, at, root, F)
    here = above(x_ptr, at, root, centers_ptr, numbers, F)
    here = descend(here, loaded, root, centers_ptr, numbers, F.depth - 1, F)
    deepest = last_level(here, loaded[F.depth - 1], root, centers_ptr, numbers, F)
    deepest = tl.exp2(2 * deepest) if EXP else deepest * node.LN_4
    if not F.even:
        here = tl.exp2(2 * here) if EXP else here * node.LN_4
        is_class = (root << (F.depth - 1)) + moves.columns(F.width) >= F.classes
        tl.store(out_ptr + (root << (F.depth - 1)) + moves.offsets(to, F.width), here, is_class)
    moves.store_pairs(out_ptr + (root << F.depth), to, deepest, root << F.depth, F.part, F)


@triton.jit
def _walk_rows(
    x_ptr, out_ptr, centers_ptr, rows, stride, first, root, numbers,
    FULL: tl.constexpr, EXP: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    line = moves.lines(rows, first, FULL, F)
    at, to = moves.row_start(line, stride, F), line * F.classes
    x_ptr += moves.row_start(first, stride, F) - 1  # places count from 1
    out_ptr += first * F.classes - F.classes
    if F.even or F.above == 0:
        _walk_block(x_ptr, at, out_ptr, to, root, centers_ptr, numbers, EXP, F)
    else:
        LEFT: tl.constexpr = F.left
        RIGHT: tl.constexpr = F.right
        start = root << (F.depth - 1)
        if start + F.width <= F.classes:
            _walk_block(x_ptr, at, out_ptr, to, root, centers_ptr, numbers, EXP, LEFT)
        elif start >= F.classes:
            _walk_block(x_ptr, at, out_ptr, to, root, centers_ptr, numbers, EXP, RIGHT)
        else:
            UNEVEN: tl.constexpr = F.classes >> (F.depth - 1)
            _walk_block(x_ptr, at, out_ptr, to, UNEVEN, centers_ptr, numbers, EXP, F)


@moves.kernel
def walk(
    x_ptr, out_ptr, centers_ptr, rows, stride, half, half_rest, angle, least, steepness,
    EXP: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """log p of every class, or p itself (EXP)."""
    numbers = (half, half_rest, angle, least, steepness)
    first, root = moves.first_and_root(rows, F)
    if F.height == 1 or first + F.height <= rows:
        _walk_rows(x_ptr, out_ptr, centers_ptr, rows, stride, first, root, numbers, True, EXP, F)
    else:
        _walk_rows(x_ptr, out_ptr, centers_ptr, rows, stride, first, root, numbers, False, EXP, F)


@triton.jit
def minus_p_log_p(log4_p, counted):
    """- p log p, 0 where p is 0 and where it does not count."""
    return tl.where(counted & (log4_p != float("-inf")), -tl.exp2(2 * log4_p) * log4_p * node.LN_4, 0.0)
