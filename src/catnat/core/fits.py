"""Every polynomial that stands in for a function, once: with its range and its error, for all that computes in float32.

A compiler makes vector code of a polynomial, often not of a library's function. Each is a minimax fit, lowest power
first. What it leaves out is exact and added last, so that its rounding is the only one that counts.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev

from catnat.core.parameterization import Natural


class Fit(NamedTuple):
    """A polynomial on a range: off by ``error`` at most in the value of the whole function, in exact arithmetic."""

    coefficients: tuple[float, ...]
    range: tuple[float, float]
    error: float


# exp(r) = 1 + r + r^2 P(r), what is left when whole powers of two are taken off
EXP = Fit((0.499999935, 0.166665207, 0.041668387, 0.00836871, 0.001381461), (-math.log(2) / 2, math.log(2) / 2), 4.3e-9)
# log(1+t) = t + t^2 P(t), with t = e^-|z|
LOG_ONE_PLUS = Fit(
    (-0.49999648, 0.333213226, -0.248571635, 0.191536543, -0.137538007, 0.0792045149, -0.0300657785, 0.00536482063),
    (0.0, 1.0),
    4e-8,
)
# tan(u) = u + u^3 P(u^2), with u the angle to the nearer end of the natural range
TAN = Fit(
    (0.333331395, 0.133392001, 0.0533812508, 0.0245282715, 0.00297443264, 0.00946560302), (0.0, math.pi / 4), 2e-8
)
# the same where the scores have 16 bits
TAN_SHORT = Fit((0.333139099, 0.136215802, 0.0409752489, 0.0434471382), (0.0, math.pi / 4), 4e-6)
# log2(tan(u) / u) = u^2 P(u^2), on the same range
LOG2_TAN = Fit((0.4809035, 0.11209598, 0.03235594, 0.00726754, 0.00625604), (0.0, math.pi / 4), 7.4e-8)
LOG2_TAN_SHORT = Fit((0.48158057, 0.10591109, 0.04737265), (0.0, math.pi / 4), 2.3e-5)

LOGIT_ERROR = 4e-8  # relative where z is above 1
MAX_LOGIT_COEFFICIENTS = 11  # more would be larger than what they sum to, and cancel in float32
SHORT_ERROR = 1e-4  # the same for scores of 16 bits
MAX_SHORT_COEFFICIENTS = 7  # more would take longer than what they stand for


@lru_cache(maxsize=256)
def natural_logit(tail: float, error: float = LOGIT_ERROR, most: int = MAX_LOGIT_COEFFICIENTS) -> Fit | None:
    """z = y + y^3 P(y^2) for 2 asinh(tan(y/2)), y up to the joint; None where it would be too long.

    That is below a tail of 0.018 or so by default, and below 0.006 or so for 16 bits.
    """
    joint = Natural(tail=tail).joint
    if tail == 0.5:
        return Fit((0.0,), (0.0, 0.0), 0.0)
    v, y = _squares(joint), np.sqrt(_squares(joint))
    z = 2 * np.arcsinh(np.tan(y / 2))
    series = 1 / 24 + v / 384 + v**2 * 61 / 322560  # where the difference has no digits left
    target = np.where(v < 1e-3, series, (z - y) / np.maximum(y, 1e-3) ** 3)
    return _shortest(joint, target, y**3 / np.maximum(1, z), error, most)


@lru_cache(maxsize=256)
def natural_slope(tail: float, error: float = SHORT_ERROR, most: int = MAX_SHORT_COEFFICIENTS) -> Fit | None:
    """dz/dy = P(y^2), on the same range; ``error`` is relative. None below a tail of 0.03 or so."""
    joint = Natural(tail=tail).joint
    if tail == 0.5:
        return Fit((1.0,), (0.0, 0.0), 0.0)
    slope = 1 / np.cos(np.sqrt(_squares(joint)) / 2)
    return _shortest(joint, slope, 1 / slope, error, most)


def _squares(joint: float) -> np.ndarray:
    """y^2 up to the joint, densest at both ends."""
    return joint**2 * (1 - np.cos(np.linspace(0, np.pi, 1001))) / 2


def _shortest(joint: float, target: np.ndarray, counts: np.ndarray, error: float, most: int) -> Fit | None:
    """The shortest polynomial in y^2 that is near enough to the target, whose error counts by ``counts``."""
    v = _squares(joint)
    for degree in range(most):
        found = chebyshev.Chebyshev.fit(v, target, degree, domain=(0, joint**2), w=counts)
        off = float(np.max(np.abs(found(v) - target) * counts))
        if off <= error:
            powers = found.convert(kind=np.polynomial.Polynomial)
            return Fit(tuple(float(c) for c in powers.coef), (0.0, joint), off)
    return None
