"""The oracle's activations against their formulas in 50 digits: values and slopes, to the last digits of both."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from catnat import Natural, Parameterization, Sigmoid
from catnat_lab import reference

TAILS = (0.5, 0.1, 0.05, 0.01, 1e-3, 1e-6)
FLOORS = (0.0, 1e-8, 1e-4)
AMPLITUDES = (2 * math.pi, 0.7, 100.0)
CENTERS = (0.0, 0.3, -2.5)
DISTANCES = [10.0**-n for n in range(1, 7)]
FAMILY = [Natural(amplitude=amplitude, tail=tail) for amplitude, tail in itertools.product(AMPLITUDES, TAILS)]
PAPER = [Natural(amplitude=a, tail=0.0, floor=f) for a, f in itertools.product(AMPLITUDES, FLOORS)]

# Every value is wanted to this *relative* error, however small it is: log a near a = 1 is as dear as log a near 0.
RELATIVE = 1e-12


def exact_sigmoid(x: float, center: float) -> tuple[mpf, mpf, mpf, mpf]:
    z = mpf(x) - mpf(center)
    return -mp.log1p(mp.exp(z)), -mp.log1p(mp.exp(-z)), -1 / (1 + mp.exp(-z)), 1 / (1 + mp.exp(z))


def exact_family(x: float, center: float, natural: Natural) -> tuple[mpf, mpf]:
    """z and its slope: the log-odds of (1 + sin(pi (x-C) / A)) / 2 up to the joint, and straight lines beyond."""
    amplitude, tail, y = mpf(natural.amplitude), mpf(natural.tail), mpf(x) - mpf(center)
    joint_z = mp.log((1 - tail) / tail)
    joint = amplitude / mp.pi * mp.asin(1 - 2 * tail)  # where a is 1 - tail
    steepest = mp.pi / amplitude / mp.sqrt(tail * (1 - tail))
    if abs(y) > joint:
        return mp.sign(y) * (joint_z + steepest * (abs(y) - joint)), steepest
    a = (1 + mp.sin(mp.pi * y / amplitude)) / 2
    return mp.log(a / (1 - a)), mp.pi / amplitude / mp.sqrt(a * (1 - a))


def exact_logit(x: float, center: float, natural: Natural) -> tuple[mpf, mpf, mpf, mpf]:
    z, slope = exact_family(x, center, natural)
    return (
        -mp.log1p(mp.exp(z)),
        -mp.log1p(mp.exp(-z)),
        -slope / (1 + mp.exp(-z)),
        slope / (1 + mp.exp(z)),
    )


def exact_paper(x: float, center: float, natural: Natural) -> tuple[mpf, mpf, mpf, mpf]:
    """The paper's (1 + sin(pi (x-C) / A)) / 2, held between the floor and one minus the floor.

    A, C, the floor and x are the float64 numbers as given; nothing else is rounded.
    """
    amplitude, floor, z = mpf(natural.amplitude), mpf(natural.floor), mpf(x) - mpf(center)
    z = max(min(z, amplitude / 2), -amplitude / 2)
    angle = mp.pi * z / amplitude
    a, slope = (1 + mp.sin(angle)) / 2, mp.pi / (2 * amplitude) * mp.cos(angle)
    if not (floor < a < 1 - floor and abs(z) < amplitude / 2):
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
            one = exact_logit if activation.tail else exact_paper
            rows = [one(x, center, activation) for x in scores]
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


def about_the_joints(natural: Natural, center: float) -> list[float]:
    """Scores at both joints, inside and beyond, near and far."""
    joint = natural.amplitude / math.pi * math.asin(1 - 2 * natural.tail)
    unit = joint or natural.amplitude / (2 * math.pi)  # the sigmoid's joints are at the centre
    inside = [0.0, *(joint * share for share in (1e-12, 1e-3, 0.3, 0.9, 0.999, 1 - 1e-6, 1 - 1e-12))]
    beyond = [joint, *(joint + unit * share for share in (1e-12, 1e-6, 1e-3, 0.1, 1.0, 10.0, 1000.0))]
    return [center + side * x for side in (-1, 1) for x in (*inside, *beyond)]


def near_the_ends(natural: Natural, center: float) -> list[float]:
    """Scores just inside and just outside of both ends."""
    half = natural.amplitude / 2
    return [center + end + side * d for end in (-half, half) for side in (-1, 1) for d in DISTANCES]


@pytest.mark.parametrize("center", CENTERS)
def test_sigmoid_at_every_size(center: float) -> None:
    sizes = [0.0, *(s * m * 10.0**n for s in (-1, 1) for m in (1, 3) for n in range(-6, 4)), 1e4, -1e4, 17.0, 37.5]
    assert_exact(sizes, center, Sigmoid())


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("natural", [*FAMILY, *PAPER], ids=repr)
def test_natural_where_its_formula_changes(natural: Natural, center: float) -> None:
    assert_exact((about_the_joints if natural.tail else near_the_ends)(natural, center), center, natural)


@given(
    st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=8),
    st.lists(st.floats(-1, 1), max_size=4),
    st.sampled_from(CENTERS),
    st.sampled_from([Sigmoid(), Natural(tail=0.5), *FAMILY, *PAPER]),
)
def test_any_anywhere(scores: list[float], shares: list[float], center: float, activation: Sigmoid | Natural) -> None:
    inside = [center + share * getattr(activation, "amplitude", 10.0) / 2 for share in shares]  # of the natural range
    assert_exact([*scores, *inside], center, activation)


@pytest.mark.parametrize("natural", FAMILY, ids=repr)
def test_logit_slope_and_inverse_of_the_class_and_of_the_oracle(natural: Natural) -> None:
    scores = about_the_joints(natural, 0.0)
    with mp.workdps(50):
        z, slope = np.array([[float(v) for v in exact_family(x, 0.0, natural)] for x in scores]).T
    x = np.array(scores)
    for found_z, found_slope in (reference.logit(x, natural), (natural.logit(x, np), natural.slope(x, np))):
        np.testing.assert_allclose(found_z, z, rtol=RELATIVE, atol=1e-15)
        np.testing.assert_allclose(found_slope, slope, rtol=RELATIVE)
    np.testing.assert_allclose(natural.inverse(z, np), x, rtol=RELATIVE, atol=1e-15 * natural.amplitude)


@pytest.mark.parametrize("natural", FAMILY, ids=repr)
def test_the_joint_is_where_the_less_likely_branch_has_the_tail(natural: Natural) -> None:
    at_joint = reference.activation(np.array([natural.joint / natural.gain]), Parameterization(2, natural))
    np.testing.assert_allclose(np.exp(at_joint[0]), natural.tail, rtol=1e-12)
    assert natural.joint_logit == pytest.approx(math.log((1 - natural.tail) / natural.tail), rel=1e-14)
    assert natural.steepest == pytest.approx(0.5 / math.sqrt(natural.tail * (1 - natural.tail)), rel=1e-14)


@pytest.mark.parametrize("natural", PAPER, ids=repr)
def test_logit_of_the_papers_up_to_the_ends_of_its_range(natural: Natural) -> None:
    x = np.linspace(-0.999, 0.999, 41) * natural.amplitude / 2
    log_0, log_1, _, slope_1 = judged(x.tolist(), 0.0, Natural(amplitude=natural.amplitude, tail=0.0, floor=0.0))
    np.testing.assert_allclose(natural.logit(x, np), log_1 - log_0, rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(natural.slope(x, np), slope_1 * np.exp(-log_0), rtol=1e-11)
    np.testing.assert_allclose(natural.inverse(log_1 - log_0, np), x, rtol=1e-11, atol=1e-15 * natural.amplitude)
    ends = np.array([-math.inf, math.inf])
    np.testing.assert_allclose(natural.inverse(ends, np), np.array([-0.5, 0.5]) * natural.amplitude, rtol=1e-15)


@pytest.mark.parametrize("natural", FAMILY, ids=repr)
def test_fisher_of_a_node_is_constant_up_to_the_joints_and_then_falls_as_a_sigmoids(natural: Natural) -> None:
    scores = np.array(about_the_joints(natural, 0.3))
    found = reference.fisher_of_node(scores, Parameterization(scores.size + 1, natural, center=0.3))
    log_0, log_1, _, _ = exact(scores.tolist(), 0.3, natural)
    beyond = np.exp(log_0 + log_1) * (natural.steepest * natural.gain) ** 2
    constant = (math.pi / natural.amplitude) ** 2
    inside = np.abs(scores - 0.3) < natural.joint / natural.gain
    np.testing.assert_allclose(found, np.where(inside, constant, beyond), rtol=1e-11, atol=1e-300)
    assert (found <= constant * (1 + 1e-11)).all()


@pytest.mark.parametrize("natural", PAPER, ids=repr)
def test_fisher_of_the_papers_is_constant_inside_and_zero_where_the_floor_holds(natural: Natural) -> None:
    scores = np.array([*near_the_ends(natural, 0.3), 0.3, 0.3 + natural.amplitude / 5])
    found = reference.fisher_of_node(scores, Parameterization(scores.size + 1, natural, center=0.3))
    slope = exact(scores.tolist(), 0.3, natural)[2]
    np.testing.assert_allclose(found, np.where(slope == 0, 0.0, (math.pi / natural.amplitude) ** 2), rtol=1e-11)


def test_this_test_can_fail() -> None:
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(
            judged([3.0], 1e-9, Natural()), exact([3.0], 0.0, Natural()), rtol=RELATIVE, atol=1e-300
        )
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(judged([3.0], 0.0, Natural()), exact([3.0], 0.0, Natural(tail=0.0500001)), rtol=1e-9)
