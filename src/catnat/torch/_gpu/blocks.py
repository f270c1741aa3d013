"""Which shape of program for which tree: of those tried, the fastest on an H200. `results/gpu/` has its times."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from catnat.core import fits
from catnat.torch._bernoulli import NATURAL, NONE, SIGMOID, UNEVEN, Bernoulli, uneven_place

NEAR = 0.1  # radians, at a tail of 0.01
TO_BASE_2 = -math.log2(math.e)  # of -z
SPAN = 4096  # cells that one program fills with zeros


class Block(NamedTuple):
    """What one program does: a subtree of so many levels at most, as many rows as give it so many elements."""

    depth: int
    elements: int
    warps: int
    registers: int | None = None  # a thread may have; fewer leave room for more programs at a time
    turn: int = 1  # programs that do one subtree before those of the next one: see `moves.first_and_root`


@dataclass(frozen=True)
class Polynomial:
    """Lowest power first; Triton would take a mere tuple apart when it is handed on."""

    coefficients: tuple[float, ...]


@dataclass(frozen=True)
class Short:
    """A node of 16-bit scores as polynomials of the offset x up to the joint: -z log2(e) = x P(x^2), dz/dx = Q(x^2)."""

    joint: float
    logit: Polynomial
    logit_past: float  # the first one's slope past the joint
    slope: Polynomial


@lru_cache(maxsize=256)
def short_of(activation: int, amplitude: float, least: float) -> Short | None:
    """None where they would be long, at the paper's end of the family, or have coefficients beyond float32."""
    if activation == SIGMOID:
        return Short(0.0, Polynomial((1.0,)), TO_BASE_2, Polynomial((1.0,)))
    if activation != NATURAL:
        return None
    tail, gain = math.sin(least) ** 2, 2 * math.pi / amplitude
    logit = fits.natural_logit(tail, fits.SHORT_ERROR, fits.MAX_SHORT_COEFFICIENTS)
    slope = fits.natural_slope(tail)
    if logit is None or slope is None or gain > 1e15:  # whose powers would leave float64
        return None
    of_scores = [
        tuple(factor * c * gain ** (2 * i + 1) for i, c in enumerate(coefficients))
        for coefficients, factor in (((1, *logit.coefficients), TO_BASE_2), (slope.coefficients, 1.0))
    ]
    if not all(1e-30 < abs(c) < 1e30 for c in (*of_scores[0], *of_scores[1])):
        return None
    past = TO_BASE_2 * gain / math.sin(2 * least)
    return Short(logit.range[1] / gain, Polynomial(of_scores[0]), past, Polynomial(of_scores[1]))


class Call(NamedTuple):
    """What all kernels of a call are compiled for; the nodes without their tensor, so that they can be looked up."""

    bernoulli: Bernoulli
    exact: bool
    contiguous: bool


@dataclass(frozen=True)
class Form:
    """What a kernel is compiled for, beside its dtypes: the nodes, and what one program does.

    A program takes ``height`` rows and a subtree of ``depth`` levels whose root lies ``above`` levels below the tree's.
    The scores are those of a tree of ``nodes`` nodes, of which the one with ``classes`` classes is the top.
    """

    nodes: int
    classes: int
    kind: int  # of the centres in the block
    kind_above: int  # and above it
    activation: int
    exact: bool
    near: bool  # the least angle is so small that what is left of it after a subtraction has too few digits
    contiguous: bool  # rows follow one another
    depth: int
    above: int
    height: int
    warps: int
    registers: int | None
    turn: int
    part: int  # a power of two that covers the nodes of the last level
    even: bool  # whether all classes of the block are at its deepest level
    short: Short | None  # how a gradient's nodes are computed; else by the GPU's own functions
    # whether a row's gradient is written in one piece; by level, a short row would touch every sector of memory often
    gather: bool = False

    @staticmethod
    def of(call: Call, block: Block, classes: int | None = None) -> Form:
        """For the whole tree, or for the top of it that has so many classes."""
        (bernoulli, exact, contiguous), classes = call, classes or call.bernoulli.classes
        levels = (classes - 1).bit_length()
        depth = min(levels, block.depth)
        above = levels - depth
        width = 1 << (depth - 1)
        nodes = classes - (1 << (levels - 1))  # at the last level
        part = width if above else min(width, 1 << (nodes - 1).bit_length())
        height = max(1, block.elements // (width + part))
        return Form(
            bernoulli.classes - 1, classes, bernoulli.kind, bernoulli.kind, bernoulli.activation,
            exact, exact and bernoulli.activation != SIGMOID and bernoulli.least < NEAR, contiguous,
            depth, above, 1 << (height.bit_length() - 1), block.warps, block.registers, block.turn,
            part, classes == 1 << levels, None if exact else short_of(*bernoulli[3:]),
        )  # fmt: skip

    @property
    def levels(self) -> int:
        """Of the whole tree."""
        return self.nodes.bit_length()

    @property
    def kinds(self) -> tuple[int, ...]:
        """The kind of the centres, level by level of the block: where no node is uneven, there are none."""
        places = (uneven_place(self.nodes, self.above + level) for level in range(self.depth))
        return tuple(NONE if self.kind == UNEVEN and not place else self.kind for place in places)

    @property
    def width(self) -> int:
        """Places at the block's last level."""
        return 1 << (self.depth - 1)

    @property
    def tan(self) -> Polynomial:
        return Polynomial((fits.TAN if self.exact else fits.TAN_SHORT).coefficients)

    @property
    def log2_tan(self) -> Polynomial:
        return Polynomial((fits.LOG2_TAN if self.exact else fits.LOG2_TAN_SHORT).coefficients)

    # Of several blocks all but one are even: left of that one a level deeper than right of it. Nodes with uneven sides
    # lie on the way to it.

    @property
    def left(self) -> Form:
        """A block whose classes are all at the deepest level."""
        return replace(self, even=True, kind=NONE if self.kind == UNEVEN else self.kind)

    @property
    def right(self) -> Form:
        """A block whose classes are all a level above that."""
        return replace(self.left, depth=self.depth - 1, part=self.part // 2)


def walk_block(classes: int, exact: bool) -> Block:
    even = classes & (classes - 1) == 0
    if not exact:
        if classes <= 64:
            return Block(6, 2048, 2)
        return Block(11, 2048, 2) if even or classes > 1024 else Block(10, 1024, 1)
    if classes <= 16:
        return Block(4, 1024, 4)
    if classes <= 64:
        return Block(6, 1024, 2 if even else 1)
    if classes <= 128:
        return Block(7, 512, 1)
    if classes <= 1024:
        return Block(10, 1024, 2) if even else Block(10, 1024, 1, registers=64)
    return Block(11, 2048, 2)


def pull_block(classes: int, exact: bool) -> Block:
    even = classes & (classes - 1) == 0
    if not exact:
        if classes <= 8:
            return Block(4, 1024, 2)
        registers = None if classes <= 64 or 256 < classes <= 1024 else 80
        return Block(10, 1024, 1, registers, 512 if not even and 1024 < classes <= 16384 else 1)
    if classes <= 16:
        return Block(4, 1024, 4)
    if classes <= 64:
        return Block(6, 512, 1)
    if classes <= 256:
        return Block(8, 512, 1, registers=72)
    if even:
        return Block(10, 1024, 2)
    return Block(10, 512, 1) if classes <= 1024 else Block(9, 512, 1)


TOP_BLOCK = Block(10, 256, 1)  # of a larger tree, whose rows are few


def writes_whole_rows(classes: int, exact: bool) -> bool:
    """Whether `walk.pull` writes a row's gradient in one piece."""
    return 2 < classes <= (320 if exact else 64)


def head_block(classes: int) -> Block:
    """For `path.head`: the whole tree in one program; few rows a program, since a policy's batch is small."""
    return Block(6, 256, 1) if classes <= 64 else Block(12, 1024, 2 if classes <= 1024 else 4)


def path_height(classes: int) -> int:
    """Rows a program of `path.log_path`: a row has as many steps as the tree has levels."""
    return max(1, 512 // _steps(classes))


def loss_shape(classes: int, rows: int) -> tuple[int, int, int]:
    """Rows, warps and programs of `path.loss`: a single one where that is soon done, which spares a second launch."""
    if rows <= 4096:
        return max(1, 4096 // _steps(classes)), 16, 1
    height = path_height(classes)
    return height, 4, -(-rows // height)


def path_span(classes: int) -> tuple[int, int]:
    """Cells a program of `path.pull_path`, so many that rows need not begin with a program; and the rows they touch."""
    height = 1 << max(1, (SPAN // (classes - 1) + 1).bit_length() - 1)
    return min(SPAN, (height - 1) * (classes - 1)) // 16 * 16, height


def _steps(classes: int) -> int:
    """A power of two that covers the levels."""
    return 1 << ((classes - 1).bit_length() - 1).bit_length()
