"""What float32 has in place of the library's functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from catnat import Natural, Parameterization
from catnat.jax import _node
from catnat.jax._dispatch import plan_for
from catnat_lab import reference
from tests.thinned import thinned


def test_exp_is_right_to_two_roundings() -> None:
    y = np.concatenate((-np.geomspace(1e-6, 87, 5001), np.geomspace(1e-6, 80, 501))).astype(np.float32)
    exact = np.exp(y.astype(np.float64))
    np.testing.assert_allclose(jax.jit(_node._exp)(y), exact, rtol=2.5e-7)
    assert (np.asarray(_node._exp(jnp.array([-1e9, -jnp.inf], jnp.float32))) < 2e-38).all()
    assert np.isnan(_node._exp(jnp.array(jnp.nan, jnp.float32)))


@pytest.mark.parametrize("tail", [0.5, 0.3, 0.1, 0.05, 0.02, 0.015, 0.01, 3e-3, 1e-3])
def test_the_logit_of_any_tail_is_right_by_fit_or_without(tail: float) -> None:
    natural = Natural(tail=tail)
    x = np.linspace(-5, 5, 20_001).astype(np.float32)
    found = jax.jit(lambda x: _node.logit(x, plan_for(Parameterization(2, natural), np.dtype(np.float32))))(x[:, None])[
        :, 0
    ]
    exact, slope = reference.logit(x.astype(np.float64), natural)
    # one rounding of the score, as steep as the slope makes it, and a few of the result
    error = np.abs(np.asarray(found) - exact) / (np.abs(x) * slope + np.abs(exact) + 1e-3)
    assert error.max() < 4e-7


def test_tail_one_half_is_the_sigmoid() -> None:
    x = np.linspace(-30, 30, 301).astype(np.float32)[:, None]
    both = [
        _node.log_branches(_node.logit(x, plan_for(Parameterization(2, a), np.dtype(np.float32))))
        for a in (Natural(tail=0.5), "sigmoid")
    ]
    np.testing.assert_allclose(*both, rtol=1e-6)


@pytest.mark.parametrize("tail", thinned([0.5, 0.05, 0.0], 2))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_derivatives_of_any_order_are_right_at_zero(tail: float, dtype: type) -> None:
    # d^n log a / dx^n at a = 1/2; |z| and the likelier branch have a corner there
    pi = Parameterization(2, Natural(tail=tail, floor=0.0 if tail == 0 else None))
    of = {0.5: [0.5, -0.25, 0.0, 0.125], 0.05: [0.5, -0.25, 0.125, -0.125], 0.0: [0.5, -0.25, 0.125, -0.125]}[tail]
    with jax.enable_x64(dtype is np.float64):
        plan = plan_for(pi, np.dtype(dtype))
        function = lambda x: _node.log_branches(_node.logit(x[None], plan))[1][0]  # noqa: E731
        for expected in of:
            function = jax.grad(function)
            assert float(jax.jit(function)(jnp.zeros((), dtype))) == pytest.approx(expected, abs=1e-5)
