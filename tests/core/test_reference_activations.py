"""The oracle's activations against the paper's formulas in 50 digits: values and slopes, to the last digits of both."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from catnat import Natural, Parameterization, Sigmoid
from catnat.core import reference
from catnat.core.errors import SATURATIONS

FLOORS = (0.0, 1e-8, 1e-4)
AMPLITUDES = (2 * math.pi, 0.7, 100.0)
CENTERS = (0.0, 0.3, -2.5)
DISTANCES = [10.0**-n for n in range(1, 7)]
NATURALS = [Natural(a, s, f) for a, s, f in itertools.product(AMPLITUDES, SATURATIONS, FLOORS)]

# Every value is wanted to this *relative* error, however small it is: log a near a = 1 is as dear as log a near 0.
RELATIVE = 1e-12


def exact_sigmoid(x: float, center: float) -> tuple[mpf, mpf, mpf, mpf]:
    z = mpf(x) - mpf(center)
    return -mp.log1p(mp.exp(z)), -mp.log1p(mp.exp(-z)), -1 / (1 + mp.exp(-z)), 1 / (1 + mp.exp(z))


def exact_natural(x: float, center: float, natural: Natural) -> tuple[mpf, mpf, mpf, mpf]:
    """The paper's (1 + sin(pi (x-C) / A)) / 2, held between the floor and one minus the floor.

    A, C, the floor and x are the float64 numbers as given; nothing else is rounded.
    """
    amplitude, floor, z = mpf(natural.amplitude), mpf(natural.floor), mpf(x) - mpf(center)
    if natural.saturation != "reflect":
        z = max(min(z, amplitude / 2), -amplitude / 2)
    angle = mp.pi * z / amplitude
    a, slope = (1 + mp.sin(angle)) / 2, mp.pi / (2 * amplitude) * mp.cos(angle)
    inside = floor < a < 1 - floor and (natural.saturation == "reflect" or abs(z) < amplitude / 2)
    if not inside:
        a, slope = min(max(a, floor), 1 - floor), mpf(0)
    logs = [mp.log(p) if p > 0 else -mp.inf for p in (1 - a, a)]
    slopes = [-slope / (1 - a), slope / a] if slope else [mpf(0), mpf(0)]
    return logs[0], logs[1], slopes[0], slopes[1]


def exact(scores: list[float], center: float, activation: Sigmoid | Natural) -> np.ndarray:
    """[4, N]: log(1-a), log(a) and their slopes."""
    with mp.workdps(50):
        if isinstance(activation, Sigmoid):
            rows = [exact_sigmoid(x, center) for x in scores]
        else:
            rows = [exact_natural(x, center, activation) for x in scores]
        return np.array([[float(v) for v in row] for row in rows]).reshape(-1, 4).T


def judged(scores: list[float], center: float, activation: Sigmoid | Natural) -> np.ndarray:
    """The same from the oracle: one node a score."""
    pi = Parameterization(len(scores) + 1, activation, center=center)
    return np.stack(reference.activation(np.array(scores), pi))


def assert_exact(scores: list[float], center: float, activation: Sigmoid | Natural) -> None:
    # below 1e-300 there are no digits left to ask for
    np.testing.assert_allclose(
        judged(scores, center, activation), exact(scores, center, activation), rtol=RELATIVE, atol=1e-300
    )


def near_the_ends(natural: Natural, center: float, periods: tuple[int, ...] = (0,)) -> list[float]:
    """Scores just inside and just outside of both ends, and of the ends that many periods away."""
    half = natural.amplitude / 2
    turns = [center + 2 * natural.amplitude * n for n in periods]
    return [t + end + side * d for t in turns for end in (-half, half) for side in (-1, 1) for d in DISTANCES]


@pytest.mark.parametrize("center", CENTERS)
def test_sigmoid_at_every_size(center: float) -> None:
    sizes = [0.0, *(s * m * 10.0**n for s in (-1, 1) for m in (1, 3) for n in range(-6, 4)), 1e4, -1e4, 17.0, 37.5]
    assert_exact(sizes, center, Sigmoid())


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=8), st.sampled_from(CENTERS))
def test_sigmoid_anywhere(scores: list[float], center: float) -> None:
    assert_exact(scores, center, Sigmoid())


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("natural", NATURALS, ids=repr)
def test_natural_near_both_ends(natural: Natural, center: float) -> None:
    assert_exact(near_the_ends(natural, center), center, natural)


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("natural", [n for n in NATURALS if n.saturation == "reflect"], ids=repr)
def test_reflecting_natural_near_ends_that_are_periods_away(natural: Natural, center: float) -> None:
    assert_exact(near_the_ends(natural, center, (1, -1, 2, -7, 40)), center, natural)


@given(
    st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=8),
    st.sampled_from(CENTERS),
    st.sampled_from(NATURALS),
)
def test_natural_anywhere(scores: list[float], center: float, natural: Natural) -> None:
    assert_exact(scores, center, natural)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.sampled_from(CENTERS), st.sampled_from(NATURALS))
def test_natural_inside(shares: list[float], center: float, natural: Natural) -> None:
    assert_exact([center + share * natural.amplitude / 2 for share in shares], center, natural)


@pytest.mark.parametrize("natural", NATURALS, ids=repr)
def test_fisher_of_a_node_is_constant_inside_and_zero_where_the_floor_holds(natural: Natural) -> None:
    scores = np.array([*near_the_ends(natural, 0.3), 0.3, 0.3 + natural.amplitude / 5])
    found = reference.fisher_of_node(scores, Parameterization(scores.size + 1, natural, center=0.3))
    slope = exact(scores.tolist(), 0.3, natural)[2]
    np.testing.assert_allclose(found, np.where(slope == 0, 0.0, (math.pi / natural.amplitude) ** 2), rtol=1e-11)


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=8))
def test_fisher_of_a_sigmoid_node_is_a_times_one_minus_a(scores: list[float]) -> None:
    log_0, log_1, _, _ = exact(scores, 0.0, Sigmoid())
    found = reference.fisher_of_node(np.array(scores), Parameterization(len(scores) + 1, Sigmoid(), center=0.0))
    np.testing.assert_allclose(found, np.exp(log_0 + log_1), rtol=RELATIVE)


def test_this_test_can_fail() -> None:
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(
            judged([3.0], 1e-9, Natural()), exact([3.0], 0.0, Natural()), rtol=RELATIVE, atol=1e-300
        )
