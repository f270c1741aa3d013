"""Every polynomial that stands in for a function, once: with its range and its error, for all that computes in float32.

A compiler turns a polynomial into vector code, and a library's function often not. Each is a minimax fit, lowest power
first. What it leaves out is exact and added last, so that its rounding is the only one that counts. Float64 goes
through the library's functions.
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
    (
        -0.49999648,
        0.333213226,
        -0.248571635,
        0.191536543,
        -0.137538007,
        0.0792045149,
        -0.0300657785,
        0.00536482063,
    ),
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


@lru_cache(maxsize=256)
def natural_logit(tail: float) -> Fit | None:
    """z = y + y^3 P(y^2) for 2 asinh(tan(y/2)), y up to the joint; None where the tail is below 0.018 or so."""
    natural = Natural(tail=tail)
    most = natural.joint**2
    if tail == 0.5:
        return Fit((0.0,), (0.0, 0.0), 0.0)
    if tail == 0:
        return None
    v = most * (1 - np.cos(np.linspace(0, np.pi, 1001))) / 2  # y^2, densest at both ends
    y = np.sqrt(v)
    z = 2 * np.arcsinh(np.tan(y / 2))
    series = 1 / 24 + v / 384 + v**2 * 61 / 322560  # where the difference has no digits left
    target = np.where(v < 1e-3, series, (z - y) / np.maximum(y, 1e-3) ** 3)
    counts = y**3 / np.maximum(1, z)  # what the target's error does to z
    for degree in range(MAX_LOGIT_COEFFICIENTS):
        found = chebyshev.Chebyshev.fit(v, target, degree, domain=(0, most), w=counts)
        error = float(np.max(np.abs(found(v) - target) * counts))
        if error <= LOGIT_ERROR:
            powers = found.convert(kind=np.polynomial.Polynomial)
            return Fit(tuple(float(c) for c in powers.coef), (0.0, natural.joint), error)
    return None
