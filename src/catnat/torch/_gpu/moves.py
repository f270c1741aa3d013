"""Between memory and registers: where a program's rows lie, and how scores and classes are loaded and stored."""

from __future__ import annotations

import triton
import triton.language as tl

NUMBERS = ("rows", "stride", "items", "batch", "samples", "ignored", "programs")  # see `launcher`


@triton.jit
def columns(WIDTH: tl.constexpr):
    """[1, WIDTH] 0, 1, ..."""
    return tl.arange(0, WIDTH)[None, :]


@triton.jit
def first_row(F: tl.constexpr):
    """The first of the program's rows."""
    return (tl.program_id(0) >> F.above).to(tl.int64) * F.height


@triton.jit
def lines(rows, FULL: tl.constexpr, F: tl.constexpr):
    """[height, 1] a program's rows, counted from its first; if not FULL, past the end of the batch the last again."""
    if F.height == 1:
        return tl.zeros((1, 1), tl.int32)
    elif FULL:
        return tl.arange(0, F.height)[:, None]
    else:
        last = tl.minimum(rows - 1 - first_row(F), F.height - 1).to(tl.int32)
        return tl.minimum(tl.arange(0, F.height), last)[:, None]


@triton.jit
def offsets(start, WIDTH: tl.constexpr):
    """Rows' starts [height, 1] and the columns from there on; in 64 bits, where constants fold into the addresses."""
    return start.to(tl.int64) + tl.arange(0, WIDTH)[None, :].to(tl.int64)


@triton.jit
def held(values):
    """The same values, worked out once: the compiler would else do it anew in every layout they are needed in."""
    return tl.sum(values[:, :, None], 2)


@triton.jit
def gather(values, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """[HEIGHT, WIDTH] from the given columns [1, WIDTH]."""
    return tl.gather(values, tl.broadcast_to(column, (HEIGHT, WIDTH)), 1)


@triton.jit
def row_start(row, stride, F: tl.constexpr):
    """Where a row of scores starts."""
    return row * F.nodes if F.contiguous else row * stride


# Triton moves all blocks of one shape in one layout. Runs of classes are aligned, so a thread moves several at once;
# the scores' are not, and in that layout would be scattered. Hence long runs of classes go as [1, 1, WIDTH], which no
# scores are.


@triton.jit
def load_classes(pointer, start, mask, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """float32 [HEIGHT, WIDTH] from rows' starts [HEIGHT, 1] on, 0 where not in the mask."""
    cells = pointer + offsets(start, WIDTH)
    if HEIGHT == 1:
        cells = cells[:, None, :]
        mask = mask if mask is None else mask[:, None, :]
    values = tl.load(cells) if mask is None else tl.load(cells, mask, other=0.0)
    return tl.reshape(values, (HEIGHT, WIDTH)).to(tl.float32)


@triton.jit
def store_classes(pointer, start, values, mask, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Its counterpart."""
    cells = pointer + offsets(start, WIDTH)
    if HEIGHT == 1:
        cells, values = cells[:, None, :], values[:, None, :]
        mask = mask if mask is None else mask[:, None, :]
    tl.store(cells, values, mask)


@triton.jit
def load_levels(x_ptr, at, root, F: tl.constexpr):
    """The scores of all levels of the block, one [height, 2^l] each."""
    loaded = ()
    for level in tl.static_range(F.depth - 1):
        loaded = loaded + (tl.load(x_ptr + (root << level) + offsets(at, 1 << level)),)
    last = x_ptr + (root << (F.depth - 1)) + offsets(at, F.part)
    if F.even:
        return loaded + (tl.load(last),)
    else:
        return loaded + (tl.load(last, (root << (F.depth - 1)) + columns(F.part) < F.classes, other=0.0),)
