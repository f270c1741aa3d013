"""log p (or p) of every class and its gradient: each score is read once, and the levels stay in registers.

A program takes HEIGHT rows and one block of the tree: a subtree of DEPTH levels whose root lies ABOVE levels below the
tree's. Inside it, level l of a subtree rooted at place r is the contiguous slice r 2^l .. r 2^l + 2^l - 1, so the next
level is two vectors interleaved, and on the way back one vector split. What happened above the block is recomputed from
the few scores on the way to its root; on the way back every block leaves one sum a row for a second, small launch over
the top of the tree. Nothing is summed across programs: results are the same run to run.

Where the number of classes is no power of two (not EVEN), the last level holds nodes (places below CLASSES) and
classes. PART is a power of two that covers its nodes, so that a few of them do not cost a whole level.

All loads come first: the compiler does not move one across the barriers between the levels. The last program of a
ragged batch repeats the last row instead of masking every access.
"""

from __future__ import annotations

import triton
import triton.language as tl

from catnat.torch.kernels import coins

# What `pull` is given the gradient of.
LOG_P: tl.constexpr = tl.constexpr(0)
P: tl.constexpr = tl.constexpr(1)
HEAD: tl.constexpr = tl.constexpr(2)


NUMBERS = ("rows", "stride", "outer_stride", "inner")  # see `launcher`


@triton.jit
def _columns(WIDTH: tl.constexpr):
    return tl.arange(0, WIDTH)[None, :]


@triton.jit
def _lines(first, rows, HEIGHT: tl.constexpr):
    """[HEIGHT, 1] the program's rows, counted from ``first``; past the end of the batch the last row again."""
    if HEIGHT == 1:
        return tl.zeros((1, 1), tl.int32)
    else:
        last = tl.minimum(rows - 1 - first, HEIGHT - 1).to(tl.int32)
        return tl.minimum(tl.arange(0, HEIGHT), last)[:, None]


@triton.jit
def _offsets(start, WIDTH: tl.constexpr):
    """Rows' starts [HEIGHT, 1] and the columns from there on; in 64 bits, where constants fold into the addresses."""
    return start.to(tl.int64) + tl.arange(0, WIDTH)[None, :].to(tl.int64)


@triton.jit
def _first(values, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PART: tl.constexpr):
    """The first PART columns of [HEIGHT, WIDTH]."""
    if PART == WIDTH:
        return values
    return tl.gather(values, tl.broadcast_to(_columns(PART), (HEIGHT, PART)), 1)


@triton.jit
def _widened(values, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PART: tl.constexpr):
    """[HEIGHT, PART] as the first columns of [HEIGHT, WIDTH]; the others are arbitrary."""
    if PART == WIDTH:
        return values
    return tl.gather(values, tl.broadcast_to(tl.minimum(_columns(WIDTH), PART - 1), (HEIGHT, WIDTH)), 1)


@triton.jit
def _append(heap, level, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Two [HEIGHT, WIDTH] side by side."""
    return tl.reshape(tl.permute(tl.join(heap, level), (0, 2, 1)), (HEIGHT, 2 * WIDTH))


@triton.jit
def _row_starts(first, line, stride, outer_stride, inner, SPLIT: tl.constexpr):
    """[HEIGHT, 1] where the rows of the scores start, seen from row ``first`` (SPLIT: from the very first)."""
    if SPLIT:
        row = first + line
        return (row // inner).to(tl.int64) * outer_stride + (row % inner).to(tl.int64) * stride
    else:
        return line * stride


@triton.jit
def _base(pointer, first, stride, SPLIT: tl.constexpr):
    """The row ``first`` of the scores, so that place 1 is in column 1."""
    return pointer - 1 if SPLIT else pointer + first * stride - 1


@triton.jit
def _load_levels(x_ptr, at, root, CLASSES: tl.constexpr, DEPTH: tl.constexpr, EVEN: tl.constexpr, PART: tl.constexpr):
    """The scores of all levels of the block, one [HEIGHT, 2^l] each."""
    loaded = ()
    for level in tl.static_range(DEPTH - 1):
        loaded = loaded + (tl.load(x_ptr + (root << level) + _offsets(at, 1 << level)),)
    if EVEN:
        loaded = loaded + (tl.load(x_ptr + (root << (DEPTH - 1)) + _offsets(at, 1 << (DEPTH - 1))),)
    else:
        places = (root << (DEPTH - 1)) + _columns(PART)
        loaded = loaded + (tl.load(x_ptr + (root << (DEPTH - 1)) + _offsets(at, PART), places < CLASSES, other=0.0),)
    return loaded


@triton.jit
def _above(
    x_ptr, at, root, ends_ptr, coin, CLASSES: tl.constexpr, ABOVE: tl.constexpr, HEIGHT: tl.constexpr,
    NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """[HEIGHT, 1] log of the probability to reach the block's root."""
    here = tl.zeros((HEIGHT, 1), tl.float32)
    for step in tl.static_range(ABOVE):
        place = root >> (step + 1)
        x = tl.load(x_ptr + place + at).to(tl.float32)
        ends = coins.ends_of(ends_ptr, place, ABOVE - 1 - step, coin, CLASSES - 1, ENDS)
        left, right = coins.log_branches(x, ends, coin, NATURAL, ENDS, SATURATION, EXACT)
        here += tl.where((root >> step) & 1 == 1, right, left)
    return here


@triton.jit
def _descend(
    here, loaded, root, ends_ptr, coin, CLASSES: tl.constexpr, LEVELS: tl.constexpr, ABOVE: tl.constexpr,
    NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """From the block's root through its first LEVELS levels: [HEIGHT, 1] to [HEIGHT, 2^LEVELS]."""
    for level in tl.static_range(LEVELS):
        places = (root << level) + _columns(1 << level)
        ends = coins.ends_of(ends_ptr, places, ABOVE + level, coin, CLASSES - 1, ENDS)
        x = loaded[level].to(tl.float32)
        left, right = coins.log_branches(x, ends, coin, NATURAL, ENDS, SATURATION, EXACT)
        here = tl.interleave(here + left, here + right)
    return here


@triton.jit
def _last_level(
    here, x, root, ends_ptr, coin, CLASSES: tl.constexpr, DEPTH: tl.constexpr, ABOVE: tl.constexpr,
    HEIGHT: tl.constexpr, PART: tl.constexpr,
    NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The nodes of the last level, which has classes too: [HEIGHT, 2^(DEPTH-1)] to [HEIGHT, 2 PART]."""
    places = (root << (DEPTH - 1)) + _columns(PART)
    ends = coins.ends_of(ends_ptr, places, ABOVE + DEPTH - 1, coin, CLASSES - 1, ENDS)
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
    loaded = _load_levels(x_ptr, at, root, CLASSES, DEPTH, EVEN, PART)
    here = _above(x_ptr, at, root, ends_ptr, coin, CLASSES, ABOVE, HEIGHT, NATURAL, ENDS_ABOVE, SATURATION, EXACT)
    if EVEN:
        here = _descend(here, loaded, root, ends_ptr, coin, CLASSES, DEPTH, ABOVE, NATURAL, ENDS, SATURATION, EXACT)
        here = tl.exp(here) if EXP else here
        tl.store(out_ptr + (root << DEPTH) + _offsets(to, 1 << DEPTH), here)
    else:
        here = _descend(here, loaded, root, ends_ptr, coin, CLASSES, DEPTH - 1, ABOVE, NATURAL, ENDS, SATURATION, EXACT)
        deepest = _last_level(
            here, loaded[DEPTH - 1], root, ends_ptr, coin,
            CLASSES, DEPTH, ABOVE, HEIGHT, PART, NATURAL, ENDS, SATURATION, EXACT,
        )  # fmt: skip
        if EXP:
            here, deepest = tl.exp(here), tl.exp(deepest)
        WIDTH: tl.constexpr = 1 << (DEPTH - 1)
        is_class = (root << (DEPTH - 1)) + _columns(WIDTH) >= CLASSES
        tl.store(out_ptr + (root << (DEPTH - 1)) + _offsets(to, WIDTH), here, is_class)
        hangs = (root << DEPTH) + _columns(2 * PART) < 2 * CLASSES  # its parent is a node
        tl.store(out_ptr + (root << DEPTH) + _offsets(to, 2 * PART), deepest, hangs)


@triton.jit(do_not_specialize=NUMBERS)
def walk(
    x_ptr, out_ptr, ends_ptr, rows, stride, outer_stride, inner, half, rest, angle, least, period, period_rest,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, ABOVE: tl.constexpr, HEIGHT: tl.constexpr, EVEN: tl.constexpr,
    PART: tl.constexpr, SPLIT: tl.constexpr, NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr,
    EXACT: tl.constexpr, EXP: tl.constexpr,
):  # fmt: skip
    """log p of every class, or p itself (EXP)."""
    coin = (half, rest, angle, least, period, period_rest)
    first = (tl.program_id(0) >> ABOVE).to(tl.int64) * HEIGHT
    root = (1 << ABOVE) + (tl.program_id(0) & ((1 << ABOVE) - 1))
    line = _lines(first, rows, HEIGHT)
    at = _row_starts(first, line, stride, outer_stride, inner, SPLIT)
    x_ptr = _base(x_ptr, first, stride, SPLIT)
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
            _walk_block(x_ptr, at, out_ptr, to, root, ends_ptr, coin, CLASSES, DEPTH, ABOVE, HEIGHT, False, PART,
                        NATURAL, ENDS, ENDS, SATURATION, EXACT, EXP)  # fmt: skip


@triton.jit
def minus_p_log_p(log_p, counted):
    """- p log p, 0 where p is 0 and where it does not count."""
    return tl.where(counted & (log_p != float("-inf")), -tl.exp(log_p) * log_p, 0.0)


@triton.jit
def _halves(below, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, NARROW: tl.constexpr):
    """The left and the right of [HEIGHT, 2 WIDTH] pairs; NARROW where there are fewer pairs than threads."""
    pairs = tl.reshape(below, (HEIGHT, WIDTH, 2))
    if NARROW:  # to split would bring every pair to every thread
        odd = tl.arange(0, 2)[None, None, :]
        return tl.sum(tl.where(odd == 0, pairs, 0.0), 2), tl.sum(tl.where(odd == 1, pairs, 0.0), 2)
    return tl.split(pairs)


@triton.jit
def _pull_block(
    x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, first, line, root, ends_ptr, coin,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, ABOVE: tl.constexpr, HEIGHT: tl.constexpr, EVEN: tl.constexpr,
    PART: tl.constexpr, NATURAL: tl.constexpr, ENDS: tl.constexpr, ENDS_ABOVE: tl.constexpr, SATURATION: tl.constexpr,
    EXACT: tl.constexpr, OF: tl.constexpr, NODES: tl.constexpr, THREADS: tl.constexpr, GATHER: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = 1 << (DEPTH - 1)  # of the last level
    places = (root << (DEPTH - 1)) + _columns(WIDTH)
    deeper = (root << DEPTH) + _columns(2 * PART)
    hangs = deeper < 2 * CLASSES  # its parent is a node
    of, to = line * CLASSES, line * NODES
    loaded = _load_levels(x_ptr, at, root, CLASSES, DEPTH, EVEN, PART)
    if OF != HEAD:  # after the scores: what is loaded last is needed first
        if EVEN:
            below = tl.load(gradient_ptr + (root << DEPTH) + _offsets(of, 2 * PART)).to(tl.float32)
        else:
            below = tl.load(gradient_ptr + (root << DEPTH) + _offsets(of, 2 * PART), hangs, other=0.0).to(tl.float32)
            beside = tl.load(gradient_ptr + (root << (DEPTH - 1)) + _offsets(of, WIDTH), places >= CLASSES, other=0.0)
            beside = beside.to(tl.float32)
    if OF != LOG_P:
        here = _above(x_ptr, at, root, ends_ptr, coin, CLASSES, ABOVE, HEIGHT, NATURAL, ENDS_ABOVE, SATURATION, EXACT)
        here = _descend(here, loaded, root, ends_ptr, coin, CLASSES, DEPTH - 1, ABOVE, NATURAL, ENDS, SATURATION, EXACT)
        deepest = _last_level(
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
            below = minus_p_log_p(deepest, hangs) * of_entropy
            if not EVEN:
                beside = minus_p_log_p(here, places >= CLASSES) * of_entropy
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
            left, right = _halves(below, HEIGHT, PART, HEIGHT * PART < THREADS)
            level_places = (root << (DEPTH - 1)) + _columns(PART)
        else:
            left, right = _halves(below, HEIGHT, 1 << (DEPTH - 1 - step), (HEIGHT << (DEPTH - 1 - step)) < THREADS)
            level_places = (root << (DEPTH - 1 - step)) + _columns(1 << (DEPTH - 1 - step))
        ends = coins.ends_of(ends_ptr, level_places, ABOVE + DEPTH - 1 - step, coin, NODES, ENDS)
        x = loaded[DEPTH - 1 - step].to(tl.float32)
        slope = coins.pull(x, left, right, ends, coin, NATURAL, ENDS, SATURATION, EXACT)
        if step == 0 and not EVEN:
            tl.store(dx_ptr + (root << (DEPTH - 1)) + _offsets(to, PART), slope, level_places < CLASSES)
            below = tl.where(places < CLASSES, _widened(left + right, HEIGHT, WIDTH, PART), beside)
        else:
            if GATHER:
                found = (slope,) + found
            else:
                tl.store(dx_ptr + (root << (DEPTH - 1 - step)) + _offsets(to, 1 << (DEPTH - 1 - step)), slope)
            below = left + right
    if GATHER:
        heap = tl.zeros((HEIGHT, 1), tl.float32)
        for level in tl.static_range(len(found)):
            heap = _append(heap, found[level], HEIGHT, 1 << level)
        column = _columns(1 << len(found))
        tl.store(dx_ptr + _offsets(to, 1 << len(found)), heap, column > 0)
    if ABOVE:
        tl.store(sums_ptr + ((line << ABOVE) + (root - (1 << ABOVE))), below)


@triton.jit(do_not_specialize=NUMBERS)
def pull(
    x_ptr, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, ends_ptr, rows, stride, outer_stride, inner,
    half, rest, angle, least, period, period_rest,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, ABOVE: tl.constexpr, HEIGHT: tl.constexpr, EVEN: tl.constexpr,
    PART: tl.constexpr, SPLIT: tl.constexpr, NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr,
    EXACT: tl.constexpr, OF: tl.constexpr, NODES: tl.constexpr, THREADS: tl.constexpr, GATHER: tl.constexpr,
):  # fmt: skip
    """The gradient in the scores of what has this gradient in log p, in p, or in a head's two results (OF).

    The scores are those of a tree of NODES nodes, of which this one is the top. GATHER: write a row's gradient in one
    piece; by level, a short row would touch every sector of memory several times.
    """
    coin = (half, rest, angle, least, period, period_rest)
    first = (tl.program_id(0) >> ABOVE).to(tl.int64) * HEIGHT
    root = (1 << ABOVE) + (tl.program_id(0) & ((1 << ABOVE) - 1))
    line = _lines(first, rows, HEIGHT)
    at = _row_starts(first, line, stride, outer_stride, inner, SPLIT)
    x_ptr = _base(x_ptr, first, stride, SPLIT)
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
            _pull_block(x_ptr, at, gradient_ptr, index_ptr, entropy_ptr, dx_ptr, sums_ptr, first, line, root, ends_ptr,
                        coin, CLASSES, DEPTH, ABOVE, HEIGHT, False, PART,
                        NATURAL, ENDS, ENDS, SATURATION, EXACT, OF, NODES, THREADS, GATHER)  # fmt: skip
