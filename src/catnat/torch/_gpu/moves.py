"""Between memory and registers: where a program's rows lie, and how scores and classes are loaded and stored."""

from __future__ import annotations

import triton
import triton.language as tl

NUMBERS = ("rows", "stride", "items", "batch", "samples", "ignored", "programs", "chunks", "nodes")
kernel = triton.jit(do_not_specialize=NUMBERS)  # see `launch.Launcher`


@triton.jit
def columns(WIDTH: tl.constexpr):
    """[1, WIDTH] 0, 1, ..."""
    return tl.arange(0, WIDTH)[None, :]


@triton.jit
def first_and_root(rows, F: tl.constexpr):
    """The first of the program's rows, and its block's root.

    ``turn`` programs do one block before those of the next block: where blocks differ, the code of one fits the
    instruction cache. They are few enough that a row's blocks, which share sectors of memory, meet in the L2 cache.
    """
    if F.above == 0:
        program, block = tl.program_id(0), 0
    else:
        turn = tl.program_id(0) // (F.turn << F.above)
        within = tl.program_id(0) % (F.turn << F.above)
        count = tl.minimum(tl.cdiv(rows, F.height) - turn * F.turn, F.turn).to(tl.int32)  # fewer in the last
        block = within // count
        program = turn * F.turn + within % count
    return program.to(tl.int64) * F.height, (1 << F.above) + block


@triton.jit
def lines(rows, first, FULL: tl.constexpr, F: tl.constexpr):
    """[height, 1] a program's rows, counted from its first; if not FULL, past the end of the batch the last again."""
    if F.height == 1:
        return tl.zeros((1, 1), tl.int32)
    elif FULL:
        return tl.arange(0, F.height)[:, None]
    else:
        last = tl.minimum(rows - 1 - first, F.height - 1).to(tl.int32)
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
def row_start(row, stride, F: tl.constexpr):
    """Where a row of scores starts."""
    return row * F.nodes if F.contiguous else row * stride


@triton.jit
def pairs(start, WIDTH: tl.constexpr):
    """[1, WIDTH, 2] start, start + 1, ...: places of children side by side."""
    return start + (2 * tl.arange(0, WIDTH)[:, None] + tl.arange(0, 2)[None, :])[None, :, :]


# Classes are moved as [height, WIDTH, 2], a pair of children a thread. So a level of scores, which are moved one a
# thread since their rows are not aligned, meets its children without a move between threads. In memory's eye the axes
# are [WIDTH, height, 2]: of two axes without contiguous numbers Triton gives threads to the first one first.


@triton.jit
def _pair_cells(pointer, start, WIDTH: tl.constexpr):
    column = tl.permute(pairs(0, WIDTH), (1, 0, 2))
    return pointer + (tl.trans(start)[:, :, None].to(tl.int64) + column.to(tl.int64))


@triton.jit
def load_pairs(pointer, start, first, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, F: tl.constexpr):
    """float32 [HEIGHT, WIDTH, 2] from rows' starts [HEIGHT, 1] on; 0 where half the place is no node."""
    if F.exact:
        cells, places = _pair_cells(pointer, start, WIDTH), tl.permute(pairs(first, WIDTH), (1, 0, 2))
    else:  # a pair of 16-bit numbers is too little for a thread; as [HEIGHT, 1, 2 WIDTH], a shape that no scores have
        cells, places = pointer + offsets(start, 2 * WIDTH)[:, None, :], first + columns(2 * WIDTH)[:, None, :]
    values = tl.load(cells) if F.even else tl.load(cells, places < 2 * F.classes, other=0.0)
    return (tl.permute(values, (1, 0, 2)) if F.exact else tl.reshape(values, (HEIGHT, WIDTH, 2))).to(tl.float32)


@triton.jit
def store_pairs(pointer, start, values, first, WIDTH: tl.constexpr, F: tl.constexpr):
    """Its counterpart."""
    cells, values = _pair_cells(pointer, start, WIDTH), tl.permute(values, (1, 0, 2))
    if F.even:
        tl.store(cells, values)
    else:
        tl.store(cells, values, tl.permute(pairs(first, WIDTH), (1, 0, 2)) < 2 * F.classes)


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
