"""The gradient of `walk`: from the classes up, each level split into its left and right branches.

Blocks are those of `walk`. Every block leaves one sum a row for a second, small launch over the top of the tree.
Nothing is summed across programs: results are the same run to run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from catnat.torch._gpu import coins, moves, walk
from catnat.torch._gpu.moves import NUMBERS

# What `pull` is given the gradient of.
LOG_P: tl.constexpr = tl.constexpr(0)
P: tl.constexpr = tl.constexpr(1)
HEAD: tl.constexpr = tl.constexpr(2)


@triton.jit
def _widened(values, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PART: tl.constexpr):
    """[HEIGHT, PART] as the first columns of [HEIGHT, WIDTH]; the others are arbitrary."""
    if PART == WIDTH:
        return values
    return tl.gather(values, tl.broadcast_to(tl.minimum(moves.columns(WIDTH), PART - 1), (HEIGHT, WIDTH)), 1)


@triton.jit
def _append(heap, level, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Two [HEIGHT, WIDTH] side by side."""
    return tl.reshape(tl.permute(tl.join(heap, level), (0, 2, 1)), (HEIGHT, 2 * WIDTH))


@triton.jit
def _halves(below, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, THREADS: tl.constexpr):
    """The left and the right of [HEIGHT, 2 WIDTH] pairs, and their sum."""
    pairs = tl.reshape(below, (HEIGHT, WIDTH, 2))
    if HEIGHT * WIDTH < THREADS:  # to split would bring every pair to every thread
        odd = tl.arange(0, 2)[None, None, :]
        left, right = tl.sum(tl.where(odd == 0, pairs, 0.0), 2), tl.sum(tl.where(odd == 1, pairs, 0.0), 2)
        return left, right, left + right
    left, right = tl.split(pairs)
    both = left + right
    if THREADS == 32:  # in one warp it is cheaper to hand the sums on than to add again; between warps it is not
        both = moves.held(both)
    return left, right, both


@triton.jit
def _pull_block(
    x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, first, line, root, ends_ptr, coin,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, ABOVE: tl.constexpr, HEIGHT: tl.constexpr, EVEN: tl.constexpr,
    PART: tl.constexpr, NATURAL: tl.constexpr, ENDS: tl.constexpr, ENDS_ABOVE: tl.constexpr, SATURATION: tl.constexpr,
    EXACT: tl.constexpr, OF: tl.constexpr, NODES: tl.constexpr, THREADS: tl.constexpr, GATHER: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = 1 << (DEPTH - 1)  # of the last level
    places = (root << (DEPTH - 1)) + moves.columns(WIDTH)
    deeper = (root << DEPTH) + moves.columns(2 * PART)
    hangs = deeper < 2 * CLASSES  # its parent is a node
    of, to = line * CLASSES, line * NODES
    loaded = moves.load_levels(x_ptr, at, root, CLASSES, DEPTH, EVEN, PART)
    if OF != HEAD:  # after the scores: what is loaded last is needed first
        if EVEN:
            below = moves.load_classes(gradient_ptr + (root << DEPTH), of, None, HEIGHT, 2 * PART)
        else:
            below = moves.load_classes(gradient_ptr + (root << DEPTH), of, hangs, HEIGHT, 2 * PART)
            beside = moves.load_classes(gradient_ptr + (root << (DEPTH - 1)), of, places >= CLASSES, HEIGHT, WIDTH)
    if OF != LOG_P:
        here = walk.above(
            x_ptr, at, root, ends_ptr, coin, CLASSES, ABOVE, HEIGHT, NATURAL, ENDS_ABOVE, SATURATION, EXACT
        )
        here = walk.descend(
            here, loaded, root, ends_ptr, coin, CLASSES, DEPTH - 1, ABOVE, NATURAL, ENDS, SATURATION, EXACT
        )
        deepest = walk.last_level(
            here, loaded[DEPTH - 1], root, ends_ptr, coin,
            CLASSES, DEPTH, ABOVE, HEIGHT, PART, NATURAL, ENDS, SATURATION, EXACT,
        )  # fmt: skip
        if OF == P:
            below *= tl.exp(deepest)
            if not EVEN:
                beside *= tl.exp(here)
        else:
            row = first + line
            of_entropy = tl.load(entropy_ptr + row).to(tl.float32)
            below = walk.minus_p_log_p(deepest, hangs) * of_entropy
            if not EVEN:
                beside = walk.minus_p_log_p(here, places >= CLASSES) * of_entropy
            if index_ptr is not None:
                chosen = tl.load(index_ptr + row).to(tl.int32) + CLASSES  # its place
                of_chosen = tl.load(gradient_ptr + row).to(tl.float32)
                below += tl.where(deeper == chosen, of_chosen, 0.0)
                if not EVEN:
                    beside += tl.where(places == chosen, of_chosen, 0.0)
    found = ()
    for step in tl.static_range(DEPTH):
        # the level is DEPTH - 1 - step; names for it cannot be kept in an unrolled loop
        if step == 0:
            left, right, both = _halves(below, HEIGHT, PART, THREADS)
            level_places = (root << (DEPTH - 1)) + moves.columns(PART)
        else:
            left, right, both = _halves(below, HEIGHT, 1 << (DEPTH - 1 - step), THREADS)
            level_places = (root << (DEPTH - 1 - step)) + moves.columns(1 << (DEPTH - 1 - step))
        ends = coins.ends_of_level(ends_ptr, level_places, ABOVE + DEPTH - 1 - step, coin, NODES, ENDS)
        x = loaded[DEPTH - 1 - step].to(tl.float32)
        slope = coins.pull(x, left, right, both, ends, coin, NATURAL, ENDS, SATURATION, EXACT)
        if step == 0 and not EVEN:
            tl.store(dx_ptr + (root << (DEPTH - 1)) + moves.offsets(to, PART), slope, level_places < CLASSES)
            below = tl.where(places < CLASSES, _widened(both, HEIGHT, WIDTH, PART), beside)
        else:
            if GATHER:
                found = (slope,) + found
            else:
                tl.store(dx_ptr + (root << (DEPTH - 1 - step)) + moves.offsets(to, 1 << (DEPTH - 1 - step)), slope)
            below = both
    if GATHER:
        heap = tl.zeros((HEIGHT, 1), tl.float32)
        for level in tl.static_range(len(found)):
            heap = _append(heap, found[level], HEIGHT, 1 << level)
        column = moves.columns(1 << len(found))
        tl.store(dx_ptr + moves.offsets(to, 1 << len(found)), heap, column > 0)
    if ABOVE:
        tl.store(sums_ptr + ((line << ABOVE) + (root - (1 << ABOVE))), below)


@triton.jit
def _pull_rows(
    x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, ends_ptr, rows, stride, outer_stride, inner, coin,
    FULL: tl.constexpr,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, ABOVE: tl.constexpr, HEIGHT: tl.constexpr, EVEN: tl.constexpr,
    PART: tl.constexpr, STRIDES: tl.constexpr, NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr,
    EXACT: tl.constexpr, OF: tl.constexpr, NODES: tl.constexpr, THREADS: tl.constexpr, GATHER: tl.constexpr,
):  # fmt: skip
    first = (tl.program_id(0) >> ABOVE).to(tl.int64) * HEIGHT
    root = (1 << ABOVE) + (tl.program_id(0) & ((1 << ABOVE) - 1))
    line = moves.lines(first, rows, HEIGHT, FULL)
    at = moves.row_starts(first, line, stride, outer_stride, inner, NODES, STRIDES)
    x_ptr = moves.base(x_ptr, first, stride, NODES, STRIDES)
    dx_ptr += first * NODES - 1
    if OF != HEAD:
        gradient_ptr += first * CLASSES - CLASSES
    if ABOVE:
        sums_ptr += first * (1 << ABOVE)
    if EVEN or ABOVE == 0:
        _pull_block(x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, first, line, root, ends_ptr,
                    coin, CLASSES, DEPTH, ABOVE, HEIGHT, EVEN, PART,
                    NATURAL, ENDS, ENDS, SATURATION, EXACT, OF, NODES, THREADS, GATHER)  # fmt: skip
    else:  # as in `walk`
        CENTERED: tl.constexpr = 0 if ENDS == 1 else ENDS
        start = root << (DEPTH - 1)
        if start + (1 << (DEPTH - 1)) <= CLASSES:
            _pull_block(x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, first, line, root, ends_ptr,
                        coin, CLASSES, DEPTH, ABOVE, HEIGHT, True, PART,
                        NATURAL, CENTERED, ENDS, SATURATION, EXACT, OF, NODES, THREADS, GATHER)  # fmt: skip
        elif start >= CLASSES:
            _pull_block(x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, first, line, root, ends_ptr,
                        coin, CLASSES, DEPTH - 1, ABOVE, HEIGHT, True, PART // 2,
                        NATURAL, CENTERED, ENDS, SATURATION, EXACT, OF, NODES, THREADS, GATHER)  # fmt: skip
        else:
            UNEVEN: tl.constexpr = CLASSES >> (DEPTH - 1)
            _pull_block(x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, first, line, UNEVEN,
                        ends_ptr, coin, CLASSES, DEPTH, ABOVE, HEIGHT, False, PART,
                        NATURAL, ENDS, ENDS, SATURATION, EXACT, OF, NODES, THREADS, GATHER)  # fmt: skip


@triton.jit(do_not_specialize=NUMBERS)
def pull(
    x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, ends_ptr, rows, stride, outer_stride, inner,
    half, rest, angle, least, period, period_rest,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, ABOVE: tl.constexpr, HEIGHT: tl.constexpr, EVEN: tl.constexpr,
    PART: tl.constexpr, STRIDES: tl.constexpr, NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr,
    EXACT: tl.constexpr, OF: tl.constexpr, NODES: tl.constexpr, THREADS: tl.constexpr, GATHER: tl.constexpr,
):  # fmt: skip
    """The gradient in the scores of what has this gradient in log p, in p, or in a head's two results (OF).

    The scores are those of a tree of NODES nodes, of which this one is the top. GATHER: write a row's gradient in one
    piece; by level, a short row would touch every sector of memory several times.
    """
    coin = (half, rest, angle, least, period, period_rest)
    if HEIGHT == 1 or moves.has_full_height(rows, ABOVE, HEIGHT):
        _pull_rows(x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, ends_ptr, rows, stride, outer_stride,
                   inner, coin, True, CLASSES, DEPTH, ABOVE, HEIGHT, EVEN, PART, STRIDES,
                   NATURAL, ENDS, SATURATION, EXACT, OF, NODES, THREADS, GATHER)  # fmt: skip
    else:
        _pull_rows(x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, ends_ptr, rows, stride, outer_stride,
                   inner, coin, False, CLASSES, DEPTH, ABOVE, HEIGHT, EVEN, PART, STRIDES,
                   NATURAL, ENDS, SATURATION, EXACT, OF, NODES, THREADS, GATHER)  # fmt: skip
