"""log p (or p) of every class: each score is read once, and the levels stay in registers. `pull` is its gradient.

A program takes HEIGHT rows and one block of the tree: a subtree of DEPTH levels whose root lies ABOVE levels below the
tree's. Inside it, level l of a subtree rooted at place r is the contiguous slice r 2^l .. r 2^l + 2^l - 1, so the next
level is two vectors interleaved. What happened above the block is recomputed from the few scores on the way to its
root.

Where the number of classes is no power of two (not EVEN), the last level holds nodes (places below CLASSES) and
classes. PART is a power of two that covers its nodes, so that a few of them do not cost a whole level.

All loads come first: the compiler does not move one across the barriers between the levels. The last program of a
ragged batch repeats the last row instead of masking every access; the others (FULL) have addresses that need no
arithmetic.
"""

from __future__ import annotations

import triton
import triton.language as tl

from catnat.torch._gpu import coins, moves
from catnat.torch._gpu.moves import NUMBERS


@triton.jit
def _first(values, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PART: tl.constexpr):
    """The first PART columns of [HEIGHT, WIDTH]."""
    if PART == WIDTH:
        return values
    return moves.held(tl.gather(values, tl.broadcast_to(moves.columns(PART), (HEIGHT, PART)), 1))


@triton.jit
def above(
    x_ptr, at, root, ends_ptr, coin, CLASSES: tl.constexpr, ABOVE: tl.constexpr, HEIGHT: tl.constexpr,
    NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """[HEIGHT, 1] log of the probability to reach the block's root: one thread a step, like `path.log_of`."""
    if ABOVE == 0:
        return tl.zeros((HEIGHT, 1), tl.float32)
    else:
        step = moves.columns(triton.next_power_of_2(ABOVE))
        taken = step < ABOVE
        place = tl.where(taken, root >> (step + 1), 1)
        x = tl.load(x_ptr + place + at).to(tl.float32)
        ends = coins.ends_of(ends_ptr, place, tl.maximum(ABOVE - 1 - step, 0), coin, CLASSES - 1, ENDS)
        left, right = coins.log_branches(x, ends, coin, NATURAL, ENDS, SATURATION, EXACT)
        branch = tl.where((root >> step) & 1 == 1, right, left)
        return tl.sum(moves.held(tl.where(taken, branch, 0.0)), 1)[:, None]


@triton.jit
def descend(
    here, loaded, root, ends_ptr, coin, CLASSES: tl.constexpr, LEVELS: tl.constexpr, ABOVE: tl.constexpr,
    NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """From the block's root through its first LEVELS levels: [HEIGHT, 1] to [HEIGHT, 2^LEVELS]."""
    for level in tl.static_range(LEVELS):
        places = (root << level) + moves.columns(1 << level)
        ends = coins.ends_of_level(ends_ptr, places, ABOVE + level, coin, CLASSES - 1, ENDS)
        x = loaded[level].to(tl.float32)
        left, right = coins.log_branches(x, ends, coin, NATURAL, ENDS, SATURATION, EXACT)
        here = tl.interleave(here + left, here + right)
    return here


@triton.jit
def last_level(
    here, x, root, ends_ptr, coin, CLASSES: tl.constexpr, DEPTH: tl.constexpr, ABOVE: tl.constexpr,
    HEIGHT: tl.constexpr, PART: tl.constexpr,
    NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The nodes of the last level, which has classes too: [HEIGHT, 2^(DEPTH-1)] to [HEIGHT, 2 PART]."""
    places = (root << (DEPTH - 1)) + moves.columns(PART)
    ends = coins.ends_of_level(ends_ptr, places, ABOVE + DEPTH - 1, coin, CLASSES - 1, ENDS)
    left, right = coins.log_branches(x.to(tl.float32), ends, coin, NATURAL, ENDS, SATURATION, EXACT)
    here = _first(here, HEIGHT, 1 << (DEPTH - 1), PART)
    return tl.interleave(here + left, here + right)


@triton.jit
def _walk_block(
    x_ptr, at, out_ptr, to, root, ends_ptr, coin,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, ABOVE: tl.constexpr, HEIGHT: tl.constexpr, EVEN: tl.constexpr,
    PART: tl.constexpr, NATURAL: tl.constexpr, ENDS: tl.constexpr, ENDS_ABOVE: tl.constexpr, SATURATION: tl.constexpr,
    EXACT: tl.constexpr, EXP: tl.constexpr,
):  # fmt: skip
    loaded = moves.load_levels(x_ptr, at, root, CLASSES, DEPTH, EVEN, PART)
    here = above(x_ptr, at, root, ends_ptr, coin, CLASSES, ABOVE, HEIGHT, NATURAL, ENDS_ABOVE, SATURATION, EXACT)
    if EVEN:
        here = descend(here, loaded, root, ends_ptr, coin, CLASSES, DEPTH, ABOVE, NATURAL, ENDS, SATURATION, EXACT)
        here = tl.exp(here) if EXP else here
        moves.store_classes(out_ptr + (root << DEPTH), to, here, None, HEIGHT, 1 << DEPTH)
    else:
        here = descend(here, loaded, root, ends_ptr, coin, CLASSES, DEPTH - 1, ABOVE, NATURAL, ENDS, SATURATION, EXACT)
        deepest = last_level(
            here, loaded[DEPTH - 1], root, ends_ptr, coin,
            CLASSES, DEPTH, ABOVE, HEIGHT, PART, NATURAL, ENDS, SATURATION, EXACT,
        )  # fmt: skip
        if EXP:
            here, deepest = tl.exp(here), tl.exp(deepest)
        WIDTH: tl.constexpr = 1 << (DEPTH - 1)
        is_class = (root << (DEPTH - 1)) + moves.columns(WIDTH) >= CLASSES
        moves.store_classes(out_ptr + (root << (DEPTH - 1)), to, here, is_class, HEIGHT, WIDTH)
        hangs = (root << DEPTH) + moves.columns(2 * PART) < 2 * CLASSES  # its parent is a node
        moves.store_classes(out_ptr + (root << DEPTH), to, deepest, hangs, HEIGHT, 2 * PART)


@triton.jit
def _walk_rows(
    x_ptr, out_ptr, ends_ptr, rows, stride, outer_stride, inner, coin, FULL: tl.constexpr,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, ABOVE: tl.constexpr, HEIGHT: tl.constexpr, EVEN: tl.constexpr,
    PART: tl.constexpr, STRIDES: tl.constexpr, NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr,
    EXACT: tl.constexpr, EXP: tl.constexpr,
):  # fmt: skip
    first = (tl.program_id(0) >> ABOVE).to(tl.int64) * HEIGHT
    root = (1 << ABOVE) + (tl.program_id(0) & ((1 << ABOVE) - 1))
    line = moves.lines(first, rows, HEIGHT, FULL)
    at = moves.row_starts(first, line, stride, outer_stride, inner, CLASSES - 1, STRIDES)
    x_ptr = moves.base(x_ptr, first, stride, CLASSES - 1, STRIDES)
    out_ptr += first * CLASSES - CLASSES
    to = line * CLASSES
    if EVEN or ABOVE == 0:
        _walk_block(x_ptr, at, out_ptr, to, root, ends_ptr, coin, CLASSES, DEPTH, ABOVE, HEIGHT, EVEN, PART,
                    NATURAL, ENDS, ENDS, SATURATION, EXACT, EXP)  # fmt: skip
    else:
        # All blocks but one are even: left of that one a level deeper than right of it. Nodes with uneven sides lie on
        # the way to it.
        CENTERED: tl.constexpr = 0 if ENDS == 1 else ENDS
        start = root << (DEPTH - 1)
        if start + (1 << (DEPTH - 1)) <= CLASSES:
            _walk_block(x_ptr, at, out_ptr, to, root, ends_ptr, coin, CLASSES, DEPTH, ABOVE, HEIGHT, True, PART,
                        NATURAL, CENTERED, ENDS, SATURATION, EXACT, EXP)  # fmt: skip
        elif start >= CLASSES:
            _walk_block(x_ptr, at, out_ptr, to, root, ends_ptr, coin, CLASSES, DEPTH - 1, ABOVE, HEIGHT, True,
                        PART // 2, NATURAL, CENTERED, ENDS, SATURATION, EXACT, EXP)  # fmt: skip
        else:
            UNEVEN: tl.constexpr = CLASSES >> (DEPTH - 1)
            _walk_block(x_ptr, at, out_ptr, to, UNEVEN, ends_ptr, coin, CLASSES, DEPTH, ABOVE, HEIGHT, False, PART,
                        NATURAL, ENDS, ENDS, SATURATION, EXACT, EXP)  # fmt: skip


@triton.jit(do_not_specialize=NUMBERS)
def walk(
    x_ptr, out_ptr, ends_ptr, rows, stride, outer_stride, inner, half, rest, angle, least, period, period_rest,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, ABOVE: tl.constexpr, HEIGHT: tl.constexpr, EVEN: tl.constexpr,
    PART: tl.constexpr, STRIDES: tl.constexpr, NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr,
    EXACT: tl.constexpr, EXP: tl.constexpr,
):  # fmt: skip
    """log p of every class, or p itself (EXP)."""
    coin = (half, rest, angle, least, period, period_rest)
    if HEIGHT == 1 or moves.has_full_height(rows, ABOVE, HEIGHT):
        _walk_rows(x_ptr, out_ptr, ends_ptr, rows, stride, outer_stride, inner, coin, True, CLASSES, DEPTH, ABOVE,
                   HEIGHT, EVEN, PART, STRIDES, NATURAL, ENDS, SATURATION, EXACT, EXP)  # fmt: skip
    else:
        _walk_rows(x_ptr, out_ptr, ends_ptr, rows, stride, outer_stride, inner, coin, False, CLASSES, DEPTH, ABOVE,
                   HEIGHT, EVEN, PART, STRIDES, NATURAL, ENDS, SATURATION, EXACT, EXP)  # fmt: skip


@triton.jit
def minus_p_log_p(log_p, counted):
    """- p log p, 0 where p is 0 and where it does not count."""
    return tl.where(counted & (log_p != float("-inf")), -tl.exp(log_p) * log_p, 0.0)
