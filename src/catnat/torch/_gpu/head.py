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
    x_ptr, index_ptr, seed_ptr, log_prob_ptr, entropy_ptr, centers_ptr, rows, stride,
    half, half_rest, angle, least, steepness, WHAT: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """The whole tree in one program."""
    numbers = (half, half_rest, angle, least, steepness)
    first, root = moves.first_and_root(rows, F)
    line = moves.lines(rows, first, False, F)
    row = first + tl.sum(line, 1)
    base = x_ptr + moves.row_start(first, stride, F) - 1
    loaded = moves.load_levels(base, moves.row_start(line, stride, F), root, F)
    start = moves.row_start(row, stride, F)
    if WHAT == DRAWN:
        index, log_p = path.toss(x_ptr, start, row, tl.load(seed_ptr), centers_ptr, numbers, F)
        tl.store(index_ptr + row, index.to(tl.int64))
        tl.store(log_prob_ptr + row, log_p)
    elif WHAT == GIVEN:
        index = path.checked(tl.load(index_ptr + row), F)
        tl.store(log_prob_ptr + row, path.log_of(x_ptr, start, index, centers_ptr, numbers, F))
    here = walk.descend(tl.zeros_like(line).to(tl.float32), loaded, root, centers_ptr, numbers, F.depth - 1, F)
    deepest = walk.last_level(here, loaded[F.depth - 1], root, centers_ptr, numbers, F)
    hangs = moves.pairs(2 * F.width, F.part) < 2 * F.classes  # its parent is a node
    entropy = tl.sum(tl.sum(walk.minus_p_log_p(deepest, hangs), 2), 1)
    if not F.even:
        entropy += tl.sum(walk.minus_p_log_p(here, F.width + moves.columns(F.width) >= F.classes), 1)
    tl.store(entropy_ptr + row, entropy)
