"""Which shape of program for which tree: of those tried, the fastest on an H200. `results/gpu/` has its times."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Block(NamedTuple):
    """What one program does: so many rows of a subtree of so many levels."""

    classes: int
    depth: int
    above: int  # levels of the tree above the subtree's root
    height: int  # rows a program
    warps: int
    part: int  # a power of two that covers the nodes of the last level

    @property
    def even(self) -> bool:
        """Whether all classes are at the deepest level."""
        return self.classes == 1 << (self.depth + self.above)

    @property
    def threads(self) -> int:
        """Threads a program."""
        return 32 * self.warps

    @staticmethod
    def of(classes: int, depth: int, elements: int, warps: int) -> Block:
        """A block of so many levels at most, as high as gives a program so many elements."""
        levels = (classes - 1).bit_length()
        depth = min(levels, depth)
        above = levels - depth
        width = 1 << (depth - 1)
        nodes = classes - (1 << (levels - 1))  # at the last level
        part = width if above else min(width, 1 << (nodes - 1).bit_length())
        height = max(1, elements // (width + part))
        return Block(classes, depth, above, 1 << (height.bit_length() - 1), warps, part)


@lru_cache(maxsize=4096)
def walk_block(classes: int, sixteen_bits: bool) -> Block:
    """For `walk.walk`."""
    even = _is_power_of_two(classes)
    if classes <= 64 and sixteen_bits:
        return Block.of(classes, 6, 2048, 2)
    if classes <= 16:
        return Block.of(classes, 4, 1024, 4)
    if classes <= 64:
        return Block.of(classes, 6, 1024, 2 if even else 1)
    if classes <= 1024:
        return Block.of(classes, 10, 1024, 1) if sixteen_bits else Block.of(classes, 10, 1024 if even else 2048, 2)
    return Block.of(classes, 11, 2048, 2) if even or not sixteen_bits else Block.of(classes, 10, 1024, 1)


@lru_cache(maxsize=4096)
def pull_block(classes: int, sixteen_bits: bool) -> Block:
    """For `pull.pull`."""
    even = _is_power_of_two(classes)
    if sixteen_bits:
        if classes <= 8:
            return Block.of(classes, 4, 1024, 2)
        return Block.of(classes, 10, 512 if 64 < classes <= 256 else 1024, 1)
    if classes <= 16:
        return Block.of(classes, 4, 1024, 4)
    if classes <= 64:
        return Block.of(classes, 6, 512, 1)
    if classes <= 1024:
        return Block.of(classes, 10, 1024, 2)
    return Block.of(classes, 10, 1024, 2) if even else Block.of(classes, 9, 512, 1)


def writes_whole_rows(classes: int, sixteen_bits: bool) -> bool:
    """Whether `pull.pull` writes a row's gradient in one piece."""
    return 2 < classes <= (64 if sixteen_bits else 128)


def _is_power_of_two(classes: int) -> bool:
    return classes & (classes - 1) == 0


@lru_cache(maxsize=4096)
def head_block(classes: int) -> Block:
    """For `head.head`: the whole tree in one program; few rows a program, since a policy's batch is small."""
    if classes <= 64:
        return Block.of(classes, 6, 256, 1)
    return Block.of(classes, 12, 1024, 2 if classes <= 1024 else 4)


def path_height(depth: int) -> tuple[int, int]:
    """Rows and warps a program of `path.log_path`: a row has as many steps as the tree has levels."""
    steps = 1 << (depth - 1).bit_length()
    return max(1, 512 // steps), 4
