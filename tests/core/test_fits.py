"""Every polynomial of `catnat.core.fits` keeps its promise, judged in 50 digits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from catnat import Natural
from catnat.core import fits
from catnat.core.fits import Fit
from catnat.core.parameterization import DEFAULT_TAIL

# what stands in for what: the whole function from x and the polynomial, and the function
SHAPES: dict[str, tuple[Callable[[mpf, Callable], mpf], Callable[[mpf], mpf]]] = {
    "EXP": (lambda x, p: 1 + x + x**2 * p(x), mp.exp),
    "LOG_ONE_PLUS": (lambda x, p: x + x**2 * p(x), mp.log1p),
    "TAN": (lambda x, p: x + x**3 * p(x**2), mp.tan),
    "TAN_SHORT": (lambda x, p: x + x**3 * p(x**2), mp.tan),
    "LOG2_TAN": (lambda x, p: x**2 * p(x**2), lambda x: mp.log(mp.tan(x) / x, 2) if x else mpf(0)),
}
SHAPES["LOG2_TAN_SHORT"] = SHAPES["LOG2_TAN"]
LOGIT = (SHAPES["TAN"][0], lambda y: 2 * mp.asinh(mp.tan(y / 2)))
SLOPE = (lambda y, p: p(y**2), lambda y: mp.sec(y / 2))
TAILS = (0.5, 0.499, 0.4, 0.25, 0.1, 0.05, 0.03, 0.02, 0.01, 1e-3, 1e-6)


def largest_error(fit: Fit, shape: tuple[Callable, Callable], points: int = 201, relative: bool = False) -> float:
    """Over a grid that is dense near both ends, where a minimax error is reached; relative where values exceed 1."""
    whole, function = shape
    with mp.workdps(50):
        low, high = (mpf(end) for end in fit.range)
        polynomial = lambda x: mp.polyval([mpf(c) for c in reversed(fit.coefficients)], x)  # noqa: E731
        grid = [low + (high - low) * (1 - mp.cos(mp.pi * i / (points - 1))) / 2 for i in range(points)]
        size = lambda x: max(1, abs(function(x))) if relative else 1  # noqa: E731
        return float(max(abs(whole(x, polynomial) - function(x)) / size(x) for x in grid))


def test_every_fit_is_judged() -> None:
    assert {name for name, thing in vars(fits).items() if isinstance(thing, Fit)} == set(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_a_fit_errs_no_more_than_it_says_and_not_much_less(name: str) -> None:
    fit = getattr(fits, name)
    assert 0.3 * fit.error <= largest_error(fit, SHAPES[name]) <= fit.error


def test_the_ranges_are_those_that_the_walks_need() -> None:
    half = math.log(2) / 2  # what is left of an exponent when whole powers of two are taken off
    assert fits.EXP.range == (-half, half)
    assert fits.LOG_ONE_PLUS.range == (0.0, 1.0)
    for name in ("TAN", "TAN_SHORT", "LOG2_TAN", "LOG2_TAN_SHORT"):
        assert getattr(fits, name).range == (0.0, math.pi / 4)


@pytest.mark.parametrize("tail", TAILS)
def test_the_logit_of_a_tail_errs_no_more_than_it_says(tail: float) -> None:
    fit = fits.natural_logit(tail)
    if fit is None:
        assert tail < 0.018  # so near to the end of the range the slope is too steep for a polynomial
        return
    assert fit.range == (0.0, Natural(tail=tail).joint if tail < 0.5 else 0.0)
    assert fit.error <= fits.LOGIT_ERROR and len(fit.coefficients) <= fits.MAX_LOGIT_COEFFICIENTS
    # its error was measured in float64, on another grid
    assert largest_error(fit, LOGIT, relative=True) <= 1.01 * fit.error + 1e-15


@pytest.mark.parametrize("tail", TAILS)
def test_the_short_fits_of_a_tail_err_no_more_than_they_say(tail: float) -> None:
    logit = fits.natural_logit(tail, fits.SHORT_ERROR, fits.MAX_SHORT_COEFFICIENTS)
    slope = fits.natural_slope(tail)
    assert (slope is not None) == (tail >= 0.03) and (logit is not None or slope is None)
    for fit, shape in ((logit, LOGIT), (slope, SLOPE)):
        if fit is not None:
            assert fit.error <= fits.SHORT_ERROR and len(fit.coefficients) <= fits.MAX_SHORT_COEFFICIENTS
            assert largest_error(fit, shape, relative=True) <= 1.01 * fit.error + 1e-15


@given(st.floats(0.018, 0.5))
def test_the_logit_of_any_tail_that_is_not_tiny_has_a_fit(tail: float) -> None:
    fit = fits.natural_logit(tail)
    assert fit is not None
    assert largest_error(fit, LOGIT, 41, relative=True) <= 1.01 * fit.error + 1e-15 <= 1.02 * fits.LOGIT_ERROR


def test_the_default_has_a_short_fit_and_the_papers_has_none() -> None:
    fit = fits.natural_logit(DEFAULT_TAIL)
    assert fit is not None and len(fit.coefficients) <= 8  # what the C++ walk has room for
    assert fits.natural_logit(0.0) is None


def test_a_wrong_coefficient_is_seen() -> None:
    logit = fits.natural_logit(DEFAULT_TAIL)
    for fit, shape in [*((getattr(fits, name), SHAPES[name]) for name in SHAPES), (logit, LOGIT)]:
        assert fit is not None
        moved = fit._replace(coefficients=(fit.coefficients[0] + 20 * fit.error, *fit.coefficients[1:]))
        assert largest_error(moved, shape, relative=shape is LOGIT) > fit.error
