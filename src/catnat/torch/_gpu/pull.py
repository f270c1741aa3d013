"""The gradient of `walk`: from the classes up, each level split into its left and right branches.

Blocks are those of `walk`. Every block leaves one sum a row for a second, small launch over the top of the tree.
Nothing is summed across programs: results are the same run to run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from catnat.torch._gpu import moves, node, walk


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
def _below(
    x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, line, root, loaded, centers_ptr, numbers,
    EXP: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """What stands below the last level's nodes, [height, part, 2], and on its classes, [height, width]: by log p."""
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
        here = walk.above(x_ptr, at, root, centers_ptr, numbers, F)
        here = walk.descend(here, loaded, root, centers_ptr, numbers, F.depth - 1, F)
        deepest = walk.last_level(here, loaded[F.depth - 1], root, centers_ptr, numbers, F)
        if EXP:
            below *= tl.exp2(2 * deepest)
            if not F.even:
                beside *= tl.exp2(2 * here)
        else:
            of_entropy = tl.load(entropy_ptr + line).to(tl.float32)
            below = walk.minus_p_log_p(deepest, deeper < 2 * F.classes) * of_entropy[:, :, None]
            if not F.even:
                beside = walk.minus_p_log_p(here, places >= F.classes) * of_entropy
            if index_ptr is not None:
                chosen = tl.load(index_ptr + line).to(tl.int32) + F.classes  # its place
                of_chosen = tl.load(gradient_ptr + line).to(tl.float32)
                below += tl.where(deeper == chosen[:, :, None], of_chosen[:, :, None], 0.0)
                if not F.even:
                    beside += tl.where(places == chosen, of_chosen, 0.0)
    return below, beside


@triton.jit
def _pull_block(
    x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, line, root, centers_ptr, numbers,
    EXP: tl.constexpr, GATHER: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    loaded = moves.load_levels(x_ptr, at, root, F)  # first: what is loaded last is needed first
    below, beside = _below(
        x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, line, root, loaded, centers_ptr, numbers, EXP, F
    )
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
            if GATHER:
                found = (slope,) + found
            else:
                tl.store(dx_ptr + (root << (DEPTH - 1 - step)) + moves.offsets(to, 1 << (DEPTH - 1 - step)), slope)
            below = both
    if GATHER:
        heap = tl.zeros_like(line).to(tl.float32)
        for level in tl.static_range(len(found)):
            beside = tl.permute(tl.join(heap, found[level]), (0, 2, 1))
            heap = tl.reshape(beside, (F.height, 2 << level))
        tl.store(dx_ptr + moves.offsets(to, 1 << len(found)), heap, moves.columns(1 << len(found)) > 0)
    if F.above:
        tl.store(sums_ptr + ((line << F.above) + (root - (1 << F.above))), below)


@triton.jit
def _pull_rows(
    x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, centers_ptr, rows, stride, first, root, numbers,
    FULL: tl.constexpr, EXP: tl.constexpr, GATHER: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
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
    if F.even or F.above == 0:
        _pull_block(x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, line, root, centers_ptr, numbers,
                    EXP, GATHER, F)  # fmt: skip
    else:  # as in `walk`
        LEFT: tl.constexpr = F.left
        RIGHT: tl.constexpr = F.right
        start = root << (F.depth - 1)
        if start + F.width <= F.classes:
            _pull_block(x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, line, root, centers_ptr,
                        numbers, EXP, GATHER, LEFT)  # fmt: skip
        elif start >= F.classes:
            _pull_block(x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, line, root, centers_ptr,
                        numbers, EXP, GATHER, RIGHT)  # fmt: skip
        else:
            UNEVEN: tl.constexpr = F.classes >> (F.depth - 1)
            _pull_block(x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, line, UNEVEN, centers_ptr,
                        numbers, EXP, GATHER, F)  # fmt: skip


@moves.kernel
def pull(
    x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, centers_ptr, rows, stride,
    half, half_rest, angle, least, steepness, EXP: tl.constexpr, GATHER: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """The gradient in the scores of what has this gradient in log p, in p (EXP), or in a head's entropy and log p.

    GATHER: write a row's gradient in one piece; by level, a short row would touch every sector of memory several times.
    """
    numbers = (half, half_rest, angle, least, steepness)
    first, root = moves.first_and_root(rows, F)
    if F.height == 1 or first + F.height <= rows:
        _pull_rows(x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, centers_ptr, rows, stride,
                   first, root, numbers, True, EXP, GATHER, F)  # fmt: skip
    else:
        _pull_rows(x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, centers_ptr, rows, stride,
                   first, root, numbers, False, EXP, GATHER, F)  # fmt: skip
