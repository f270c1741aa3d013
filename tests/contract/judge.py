"""How close is close enough."""

from __future__ import annotations

import numpy as np

from catnat import Parameterization
from catnat_lab import reference


def assert_close(
    found: np.ndarray, expected: np.ndarray, tolerance: float, what: str = "", scale: np.ndarray | None = None
) -> None:
    """|found - expected| <= tolerance * max(1, |scale|), the expected value itself unless said; infinities alike."""
    assert found.shape == expected.shape, f"{what}: shape {found.shape} for {expected.shape}"
    assert not np.isnan(found).any(), f"{what}: NaN"
    finite = np.isfinite(expected)
    assert (np.isfinite(found) == finite).all(), f"{what}: infinite in other places"
    assert (found[~finite] == expected[~finite]).all(), f"{what}: other infinities"
    size = np.abs(expected if scale is None else scale)
    error = np.abs(found[finite] - expected[finite]) / np.maximum(1, size[finite])
    assert error.max(initial=0) <= tolerance, f"{what}: off by {error.max():.3g}"


def sides(values: np.ndarray, pi: Parameterization) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the classes' values on the left and on the right of every node."""
    below = reference.mass_below(values, pi)
    return below[..., 2::2], below[..., 3::2]


def condition(slopes: tuple[np.ndarray, np.ndarray], upstream: np.ndarray, pi: Parameterization) -> np.ndarray:
    """The gradient's formula with absolute values throughout.

    A gradient is a sum of upstream values times slopes. Each term is rounded, so where large terms cancel, no sum of
    floats can be closer to the truth than one rounding of the terms' size: that size, not the result's, is the measure.
    """
    left, right = sides(np.abs(upstream), pi)
    return left * np.abs(slopes[0]) + right * np.abs(slopes[1])


def expected_gradient(scores: np.ndarray, upstream: np.ndarray, pi: Parameterization) -> tuple[np.ndarray, np.ndarray]:
    """The oracle's gradient and its condition."""
    condition_of = condition(reference.activation(scores, pi)[2:], upstream, pi)
    return reference.log_catnat_gradient(scores, upstream, pi), condition_of
