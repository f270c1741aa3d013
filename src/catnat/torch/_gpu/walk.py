"""log p (or p) of every class: each score is read once, and the levels stay in registers. And its gradient.

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
def _each_kind(BLOCK: tl.constexpr, pointers, line, at, root, centers_ptr, numbers, EXP: tl.constexpr, F: tl.constexpr):
    """BLOCK for the block's kind: where there are several, all but one are even."""
    if F.even or F.above == 0:
        BLOCK(pointers, line, at, root, centers_ptr, numbers, EXP, F)
    else:
        LEFT: tl.constexpr = F.left
        RIGHT: tl.constexpr = F.right
        start = root << (F.depth - 1)
        if start + F.width <= F.classes:
            BLOCK(pointers, line, at, root, centers_ptr, numbers, EXP, LEFT)
        elif start >= F.classes:
            BLOCK(pointers, line, at, root, centers_ptr, numbers, EXP, RIGHT)
        else:
            UNEVEN: tl.constexpr = F.classes >> (F.depth - 1)
            BLOCK(pointers, line, at, UNEVEN, centers_ptr, numbers, EXP, F)


@triton.jit
def _walk_block(pointers, line, at, root, centers_ptr, numbers, EXP: tl.constexpr, F: tl.constexpr):
    x_ptr, out_ptr = pointers
    to = line * F.classes
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
    at = moves.row_start(line, stride, F)
    x_ptr += moves.row_start(first, stride, F) - 1  # places count from 1
    out_ptr += first * F.classes - F.classes
    _each_kind(_walk_block, (x_ptr, out_ptr), line, at, root, centers_ptr, numbers, EXP, F)


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


# -- the gradient: from the classes up, each level split into its left and right branches ---------------------------
#
# Every block leaves one sum a row for a second, small launch over the top of the tree. Nothing is summed across
# programs: results are the same run to run.


@triton.jit
def minus_p_log_p(log4_p, counted):
    """- p log p, 0 where p is 0 and where it does not count."""
    return tl.where(counted & (log4_p != float("-inf")), -tl.exp2(2 * log4_p) * log4_p * node.LN_4, 0.0)


@triton.jit
def _halves(pairs, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, WARPS: tl.constexpr):
    """The left and the right of pairs [HEIGHT, WIDTH, 2], and their sum."""
    if HEIGHT * WIDTH < 32 * WARPS:  # to split would bring every pair to every thread
        odd = tl.arange(0, 2)[None, None, :]
        left, right = tl.sum(tl.where(odd == 0, pairs, 0.0), 2), tl.sum(tl.where(odd == 1, pairs, 0.0), 2)
        return left, right, left + right
    left, right = tl.split(pairs)
    both = left + right
    if WARPS == 1:  # in one warp it is cheaper to hand the sums on than to add again; between warps it is not
        both = moves.held(both)
    return left, right, both


@triton.jit
def _below(pointers, line, at, root, loaded, centers_ptr, numbers, EXP: tl.constexpr, F: tl.constexpr):
    """What stands below the last level's nodes, [height, part, 2], and on its classes, [height, width]: by log p."""
    x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr = pointers
    places = (root << (F.depth - 1)) + moves.columns(F.width)
    deeper = moves.pairs(root << F.depth, F.part)
    beside = 0.0
    if entropy_ptr is None:
        of = line * F.classes
        below = moves.load_pairs(gradient_ptr + (root << F.depth), of, root << F.depth, F.height, F.part, F)
        if not F.even:
            cells = gradient_ptr + (root << (F.depth - 1)) + moves.offsets(of, F.width)
            beside = tl.load(cells, places >= F.classes, other=0.0).to(tl.float32)
    if EXP or entropy_ptr is not None:
        here = above(x_ptr, at, root, centers_ptr, numbers, F)
        here = descend(here, loaded, root, centers_ptr, numbers, F.depth - 1, F)
        deepest = last_level(here, loaded[F.depth - 1], root, centers_ptr, numbers, F)
        if EXP:
            below *= tl.exp2(2 * deepest)
            if not F.even:
                beside *= tl.exp2(2 * here)
        else:
            of_entropy = tl.load(entropy_ptr + line).to(tl.float32)
            below = minus_p_log_p(deepest, deeper < 2 * F.classes) * of_entropy[:, :, None]
            if not F.even:
                beside = minus_p_log_p(here, places >= F.classes) * of_entropy
            if index_ptr is not None:
                chosen = tl.load(index_ptr + line).to(tl.int32) + F.classes  # its place
                of_chosen = tl.load(gradient_ptr + line).to(tl.float32)
                below += tl.where(deeper == chosen[:, :, None], of_chosen[:, :, None], 0.0)
                if not F.even:
                    beside += tl.where(places == chosen, of_chosen, 0.0)
    return below, beside


@triton.jit
def _pull_block(pointers, line, at, root, centers_ptr, numbers, EXP: tl.constexpr, F: tl.constexpr):
    x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr = pointers
    loaded = moves.load_levels(x_ptr, at, root, F)  # first: what is loaded last is needed first
    below, beside = _below(pointers, line, at, root, loaded, centers_ptr, numbers, EXP, F)
    DEPTH: tl.constexpr = F.depth
    to = line * F.nodes
    found = ()
    for step in tl.static_range(DEPTH):
        # the level is DEPTH - 1 - step; names for it cannot be kept in an unrolled loop
        if step > 0:
            below = tl.reshape(below, (F.height, 1 << (DEPTH - 1 - step), 2))
        left, right, both = _halves(below, F.height, F.part if step == 0 else 1 << (DEPTH - 1 - step), F.warps)
        places = (root << (DEPTH - 1 - step)) + moves.columns(F.part if step == 0 else 1 << (DEPTH - 1 - step))
        x = loaded[DEPTH - 1 - step].to(tl.float32)
        offset, rounded = node.offset_of(
            x, places, F.above + DEPTH - 1 - step, centers_ptr, F.kinds[DEPTH - 1 - step], F
        )
        slope = node.pull(left, right, both, offset, rounded, numbers, F)
        if step == 0 and not F.even:
            tl.store(dx_ptr + (root << (DEPTH - 1)) + moves.offsets(to, F.part), slope, places < F.classes)
            if F.part < F.width:  # the other columns are arbitrary
                column = tl.minimum(moves.columns(F.width), F.part - 1)
                both = tl.gather(both, tl.broadcast_to(column, (F.height, F.width)), 1)
            below = tl.where((root << (DEPTH - 1)) + moves.columns(F.width) < F.classes, both, beside)
        else:
            if F.gather:
                found = (slope,) + found
            else:
                tl.store(dx_ptr + (root << (DEPTH - 1 - step)) + moves.offsets(to, 1 << (DEPTH - 1 - step)), slope)
            below = both
    if F.gather:
        heap = tl.zeros_like(line).to(tl.float32)
        for level in tl.static_range(len(found)):
            beside = tl.permute(tl.join(heap, found[level]), (0, 2, 1))
            heap = tl.reshape(beside, (F.height, 2 << level))
        tl.store(dx_ptr + moves.offsets(to, 1 << len(found)), heap, moves.columns(1 << len(found)) > 0)
    if F.above:
        tl.store(sums_ptr + ((line << F.above) + (root - (1 << F.above))), below)


@triton.jit
def _pull_rows(
    pointers, centers_ptr, rows, stride, first, root, numbers, FULL: tl.constexpr, EXP: tl.constexpr, F: tl.constexpr
):
    x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr = pointers
    line = moves.lines(rows, first, FULL, F)
    at = moves.row_start(line, stride, F)
    x_ptr += moves.row_start(first, stride, F) - 1
    dx_ptr += first * F.nodes - 1
    if entropy_ptr is None:
        gradient_ptr += first * F.classes - F.classes
    else:
        entropy_ptr += first
        if index_ptr is not None:
            index_ptr += first
            gradient_ptr += first
    if F.above:
        sums_ptr += first * (1 << F.above)
    pointers = x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr
    _each_kind(_pull_block, pointers, line, at, root, centers_ptr, numbers, EXP, F)


@moves.kernel
def pull(
    x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, centers_ptr, rows, stride,
    half, half_rest, angle, least, steepness, EXP: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """The gradient in the scores of what has this gradient in log p, in p (EXP), or in a head's entropy and log p."""
    numbers = (half, half_rest, angle, least, steepness)
    first, root = moves.first_and_root(rows, F)
    pointers = x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr
    if F.height == 1 or first + F.height <= rows:
        _pull_rows(pointers, centers_ptr, rows, stride, first, root, numbers, True, EXP, F)
    else:
        _pull_rows(pointers, centers_ptr, rows, stride, first, root, numbers, False, EXP, F)
