"""Between memory and registers: where a program's rows lie, and how scores and classes are loaded and stored."""

from __future__ import annotations

import triton
import triton.language as tl

NUMBERS = ("rows", "stride", "outer_stride", "inner")  # see `launcher`


@triton.jit
def columns(WIDTH: tl.constexpr):
    """[1, WIDTH] 0, 1, ..."""
    return tl.arange(0, WIDTH)[None, :]


@triton.jit
def has_full_height(rows, ABOVE: tl.constexpr, HEIGHT: tl.constexpr):
    """Whether the program has HEIGHT rows: all but the last of a ragged batch."""
    return (tl.program_id(0) >> ABOVE).to(tl.int64) * HEIGHT + HEIGHT <= rows


@triton.jit
def lines(first, rows, HEIGHT: tl.constexpr, FULL: tl.constexpr):
    """[HEIGHT, 1] a program's rows, counted from ``first``; if not FULL, past the end of the batch the last again."""
    if HEIGHT == 1:
        return tl.zeros((1, 1), tl.int32)
    elif FULL:
        return tl.arange(0, HEIGHT)[:, None]
    else:
        last = tl.minimum(rows - 1 - first, HEIGHT - 1).to(tl.int32)
        return tl.minimum(tl.arange(0, HEIGHT), last)[:, None]


@triton.jit
def offsets(start, WIDTH: tl.constexpr):
    """Rows' starts [HEIGHT, 1] and the columns from there on; in 64 bits, where constants fold into the addresses."""
    return start.to(tl.int64) + tl.arange(0, WIDTH)[None, :].to(tl.int64)


@triton.jit
def held(values):
    """The same values, worked out once: the compiler would else do it anew in every layout they are needed in."""
    return tl.sum(values[:, :, None], 2)


@triton.jit
def row_starts(first, line, stride, outer_stride, inner, NODES: tl.constexpr, STRIDES: tl.constexpr):
    """[HEIGHT, 1] where rows of scores start, seen from row ``first`` (two STRIDES: from the very first)."""
    if STRIDES == 0:
        return line * NODES
    elif STRIDES == 1:
        return line * stride
    else:
        row = first + line
        return (row // inner).to(tl.int64) * outer_stride + (row % inner).to(tl.int64) * stride


@triton.jit
def base(pointer, first, stride, NODES: tl.constexpr, STRIDES: tl.constexpr):
    """The row ``first`` of the scores, so that place 1 is in column 1."""
    if STRIDES == 0:
        return pointer + first * NODES - 1
    elif STRIDES == 1:
        return pointer + first * stride - 1
    else:
        return pointer - 1


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
def load_levels(x_ptr, at, root, CLASSES: tl.constexpr, DEPTH: tl.constexpr, EVEN: tl.constexpr, PART: tl.constexpr):
    """The scores of all levels of the block, one [HEIGHT, 2^l] each."""
    loaded = ()
    for level in tl.static_range(DEPTH - 1):
        loaded = loaded + (tl.load(x_ptr + (root << level) + offsets(at, 1 << level)),)
    if EVEN:
        loaded = loaded + (tl.load(x_ptr + (root << (DEPTH - 1)) + offsets(at, 1 << (DEPTH - 1))),)
    else:
        places = (root << (DEPTH - 1)) + columns(PART)
        loaded = loaded + (tl.load(x_ptr + (root << (DEPTH - 1)) + offsets(at, PART), places < CLASSES, other=0.0),)
    return loaded
