"""Which classes are alike: the order of the leaves in `Tree.cluster`.

Every set of classes is cut across its first principal direction. Power iterations run on the smaller of two matrices:
the covariance [d, d] of a set with more than d classes, or the inner products [n, n] of its n centred vectors. Both
lead to the same direction, and a set's vectors are read a few times in place of twice an iteration. The vectors stay in
the dtype in which they came, are kept in the order of the leaves, and are widened to float64 a block at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.floating[Any]]

POWER_ITERATIONS = 40  # the variance along u is then within a few hundredths of the greatest, however near the second
AT_ONCE = 2**18  # numbers in one block of vectors, so that they stay near the processor
SMALL = 32  # with matrices of at most this width eight steps are taken at once, by the 8th power
FAINT = 1e-100  # the squares of smaller numbers may vanish


def check_vectors(given: npt.ArrayLike) -> Rows:
    """``vectors`` as [K, d] in float32, where that holds all their digits, or in float64; or raise."""
    expected = "vectors must be an array of numbers of shape [num_classes, dimension]"
    try:
        vectors = np.asarray(given)
    except (TypeError, ValueError) as error:  # rows of different lengths, or a tensor that is not on the CPU
        raise ValueError(f"{expected}; got a {type(given).__name__}: {error}") from None
    if not np.can_cast(vectors.dtype, np.float64, "same_kind"):
        raise TypeError(f"{expected}; got dtype {vectors.dtype}")
    if vectors.ndim != 2 or vectors.size == 0:
        raise ValueError(f"{expected}, neither of them 0; got shape {vectors.shape}")
    rows: Rows = vectors.astype(np.float32 if np.can_cast(vectors.dtype, np.float32) else np.float64, copy=False)
    if not np.isfinite(rows).all():
        k, i = np.argwhere(~np.isfinite(rows))[0].tolist()
        raise ValueError(f"vectors must be finite; vectors[{k}, {i}] is {vectors[k, i]}")
    if rows.dtype == np.float32:
        return rows
    _, exponent = np.frexp(max(-rows.min(), rows.max()))
    return np.ldexp(rows, -exponent)  # to entries of at most 1, so that no difference overflows


def sort_by_likeness(order: Ints, vectors: Rows, levels: Iterable[Ints]) -> Ints:
    """The classes of ``order``, sorted so that neighbours are alike.

    A level is the sizes of its sets, which follow one another from the left. Level by level every set is sorted by its
    projections; the next level cuts it.
    """
    order, rows = order.copy(), vectors[order]
    for sizes in levels:
        begin = 0
        # whole subtrees on the left, half as large ones on the right, one between: at most three sizes a level
        for size in dict.fromkeys(sizes.tolist()):
            end = begin + size * int(np.count_nonzero(sizes == size))
            step = size * max(1, AT_ONCE // (size * rows.shape[1]))
            for first in range(begin, end, step):
                some = slice(first, min(first + step, end))
                along = _projections(rows[some].reshape(-1, size, rows.shape[1]))
                ranks = np.argsort(along, axis=-1, kind="stable") + np.arange(first, some.stop, size)[:, None]
                order[some], rows[some] = order[ranks.ravel()], rows[ranks.ravel()]
            begin = end
    return order


def _projections(sets: Rows) -> Floats:
    """[sets, n] every vector of [sets, n, d] along the first principal direction of its set."""
    count, size, width = sets.shape
    step = max(1, AT_ONCE // (count * width))
    blocks = [sets[:, first : first + step] for first in range(0, size, step)]
    lowest, highest = (of(1, keepdims=True).astype(np.float64) for of in (sets.min, sets.max))
    reach = (highest - lowest).max(2, keepdims=True)
    reach = np.maximum(reach, np.finfo(np.float64).tiny) if (reach < FAINT).any() else None

    def read(block: Rows, origin: Floats | None = None) -> Floats:
        found = block - lowest  # first, so that equal vectors leave no roundings behind
        if reach is not None:
            found /= reach
        return found if origin is None else np.subtract(found, origin, out=found)

    # the mean, or with many blocks that of a sample: near enough to lose no digits when the rest is taken off
    origin = read(sets[:, :: len(blocks)]).mean(1, keepdims=True)
    # a start that is orthogonal to no data but by accident, and the same everywhere
    start = np.broadcast_to(np.cos(np.arange(1.0, width + 1)), (count, width))
    centred = read(blocks[0], origin)
    across = centred.swapaxes(1, 2)
    if len(blocks) == 1 and size <= width:
        # a copy: for a matrix times its own transpose BLAS has a routine that wakes its threads for the smallest set
        along = _power(centred.copy() @ across, _times(centred, start), POWER_ITERATIONS - 1)
        direction = _times(across, along)
    else:
        total, covariance = centred.sum(1, keepdims=True), across @ centred
        for block in blocks[1:]:
            centred = read(block, origin)
            total += centred.sum(1, keepdims=True)
            covariance += centred.swapaxes(1, 2) @ centred
        covariance -= total.swapaxes(1, 2) * (total / size)
        direction = _power(covariance, start, POWER_ITERATIONS)
    direction = _unit(direction)
    found = [_times(centred if block is blocks[-1] else read(block, origin), direction) for block in blocks]
    return np.concatenate(found, 1)


def _power(matrices: Floats, start: Floats, steps: int) -> Floats:
    """[sets, m] along matrices^steps @ start; 0 where that is 0: in a set of equal vectors any order will do."""
    matrices = _unit(matrices)
    if matrices.shape[1] <= SMALL:
        eighth = matrices
        for _ in range(3):
            eighth = _unit(eighth @ eighth)
        for _ in range(steps // 8):
            start = _unit(_times(eighth, start))
        steps %= 8
    for _ in range(steps):
        start = _unit(_times(matrices, start))
    return start


def _times(matrices: Floats, vectors: Floats) -> Floats:
    """[sets, m] every matrix times its vector.

    Not by BLAS: it would wake its threads for each, and round a row by where it stands, so that equal vectors might
    have different projections.
    """
    return np.einsum("smi,si->sm", matrices, vectors)


def _unit(matrices: Floats) -> Floats:
    """[sets, ...] with a largest entry of 1 in every set, unless all are 0."""
    largest = np.abs(matrices).max(tuple(range(1, matrices.ndim)), keepdims=True)
    return matrices / np.where(largest > 0, largest, 1.0)
