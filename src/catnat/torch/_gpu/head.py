"""A policy's head in one launch: a draw a row (or given classes), its log p and the entropy of the row.

Its gradient is `pull.pull` of HEAD: that of the entropy in log p_k is -p_k log p_k, but for a multiple of p_k that
falls out since the probabilities sum to one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from catnat.torch._gpu import moves, path, walk

ENTROPY: tl.constexpr = tl.constexpr(0)
GIVEN: tl.constexpr = tl.constexpr(1)
DRAWN: tl.constexpr = tl.constexpr(2)


@triton.jit(do_not_specialize=moves.NUMBERS)
def head(
    x_ptr, index_ptr, seed_ptr, log_prob_ptr, entropy_ptr, ends_ptr, rows, stride, outer_stride, inner,
    half, rest, angle, least, period, period_rest,
    CLASSES: tl.constexpr, DEPTH: tl.constexpr, ABOVE: tl.constexpr, HEIGHT: tl.constexpr, EVEN: tl.constexpr,
    PART: tl.constexpr, STRIDES: tl.constexpr, NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr,
    EXACT: tl.constexpr, WHAT: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The whole tree in one program: ABOVE is 0."""
    coin = (half, rest, angle, least, period, period_rest)
    first = tl.program_id(0).to(tl.int64) * HEIGHT
    line = moves.lines(first, rows, HEIGHT, False)
    row = first + tl.reshape(line, (HEIGHT,))
    at = moves.row_starts(first, line, stride, outer_stride, inner, CLASSES - 1, STRIDES)
    base = moves.base(x_ptr, first, stride, CLASSES - 1, STRIDES)
    loaded = moves.load_levels(base, at, 1, CLASSES, DEPTH, EVEN, PART)
    start = path._row_start(row, stride, outer_stride, inner, STRIDES)
    if WHAT == DRAWN:
        index, log_p = path.toss(
            x_ptr, start, row, tl.load(seed_ptr), ends_ptr, coin, CLASSES, DEPTH, HEIGHT, NATURAL, ENDS, SATURATION
        )
        tl.store(index_ptr + row, index.to(tl.int64))
        tl.store(log_prob_ptr + row, log_p)
    elif WHAT == GIVEN:
        index = path._check(tl.load(index_ptr + row), CLASSES)
        log_p = path.log_of(x_ptr, start, index, ends_ptr, coin, CLASSES, DEPTH, STEPS, NATURAL, ENDS, SATURATION)
        tl.store(log_prob_ptr + row, log_p)
    here = tl.zeros((HEIGHT, 1), tl.float32)
    LAST: tl.constexpr = 1 << (DEPTH - 1)
    here = walk.descend(here, loaded, 1, ends_ptr, coin, CLASSES, DEPTH - 1, ABOVE, NATURAL, ENDS, SATURATION, EXACT)
    deepest = walk.last_level(
        here, loaded[DEPTH - 1], 1, ends_ptr, coin,
        CLASSES, DEPTH, ABOVE, HEIGHT, PART, NATURAL, ENDS, SATURATION, EXACT,
    )  # fmt: skip
    entropy = tl.sum(walk.minus_p_log_p(deepest, ((1 << DEPTH) + moves.columns(2 * PART)) >> 1 < CLASSES), 1)
    if not EVEN:
        entropy += tl.sum(walk.minus_p_log_p(here, LAST + moves.columns(LAST) >= CLASSES), 1)
    tl.store(entropy_ptr + row, entropy)
