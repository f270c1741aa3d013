"""An activation of a user's own, written outside of the library, obeys the contract on the plain walks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

from catnat import Activation, Parameterization
from tests.contract.backends import BACKENDS, ORACLE, Backend
from tests.contract.judge import assert_close, condition
from tests.core.trees import KINDS, make_tree
from tests.thinned import thinned


@dataclass(frozen=True)
class Arctan(Activation):
    """a(x) = 1/2 + atan(pi x / 2) / pi: heavy tails, z = log(a / (1-a))."""

    def logit(self, offset: Any, xp: Any) -> Any:
        # 1-a at x is a at -x; atan(1/v)/pi keeps its digits in the tail
        size = xp.abs(offset) * (math.pi / 2)
        small = xp.arctan2(xp.ones_like(size), size) / math.pi
        return xp.sign(offset) * (xp.log1p(-small) - xp.log(small))

    def slope(self, offset: Any, xp: Any) -> Any:
        size = xp.abs(offset) * (math.pi / 2)
        small = xp.arctan2(xp.ones_like(size), size) / math.pi
        return 0.5 / (1 + size**2) / (small * (1 - small))

    def inverse(self, logit: Any, xp: Any) -> Any:
        small = 1 / (1 + xp.exp(xp.abs(logit)))
        return xp.sign(logit) / xp.tan(small * math.pi) * (2 / math.pi)


@pytest.mark.parametrize(
    ("backend", "kind"), thinned(product(BACKENDS, KINDS), every=25), ids=lambda value: getattr(value, "name", value)
)
def test_values_gradients_and_the_way_back(backend: Backend, kind: str) -> None:
    pi, rng = Parameterization(6, Arctan(), make_tree(kind, 6)), np.random.default_rng(0)
    scores = rng.normal(size=(40, 5)).astype(backend.dtype) * 4
    upstream = rng.normal(size=(40, 6)).astype(backend.dtype)
    wide = scores.astype(np.float64)
    assert_close(backend.log_catnat(scores, pi), ORACLE.log_catnat(wide, pi), backend.tolerance, backend.name)
    slopes = (np.full_like(wide, 2.0), np.full_like(wide, 2.0))
    expected = ORACLE.gradient(wide, upstream.astype(np.float64), pi)
    scale = condition(slopes, upstream, pi)
    assert_close(backend.gradient(scores, upstream, pi), expected, backend.tolerance, backend.name, scale)
    assert_close(backend.entropy(scores, pi), ORACLE.entropy(wide, pi), backend.tolerance, backend.name)
    assert_close(backend.fisher_diagonal(scores, pi), ORACLE.fisher_diagonal(wide, pi), backend.tolerance, backend.name)
    p = rng.dirichlet(np.ones(6), 20).astype(backend.dtype)
    back = np.exp(backend.log_catnat(backend.scores_from_probs(p, pi), pi))
    np.testing.assert_allclose(back, p, atol=30 * backend.tolerance)
    np.testing.assert_allclose(np.exp(backend.log_catnat(np.zeros((1, 5), backend.dtype), pi)), 1 / 6, rtol=1e-5)


def test_the_oracle_knows_its_derivative() -> None:
    x, step = np.linspace(-30, 30, 61) + 0.1, 1e-5
    numeric = (Arctan().logit(x + step, np) - Arctan().logit(x - step, np)) / (2 * step)
    np.testing.assert_allclose(Arctan().slope(x, np), numeric, rtol=1e-6)
