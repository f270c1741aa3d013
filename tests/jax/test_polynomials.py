"""The short polynomials of float32 against the functions they stand for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial.polynomial import polyval

from catnat.jax import activations as a
from catnat.jax import kernel_coins as k

U = np.linspace(1e-3, np.pi / 4, 2001)
S = np.linspace(1e-3, 1 / 3, 2001)
N = np.linspace(1e-3, (2**0.5 - 1) / (2**0.5 + 1), 2001)
T = np.linspace(0, 1, 2001)
R = np.linspace(-np.log(2) / 2, np.log(2) / 2, 2001)
FITS = {
    "2 atanh": (S**3 * polyval(S**2, a.ATANH) + 2 * S, 2 * np.arctanh(S)),
    "2 atanh near 0": (N**3 * polyval(N**2, a.ATANH_NEAR) + 2 * N, 2 * np.arctanh(N)),
    "log cos^2": (U**4 * polyval(U**2, a.LOG_COS) - U**2, 2 * np.log(np.cos(U))),
    "tan": (U**3 * polyval(U**2, a.TAN) + U, np.tan(U)),
    "log tan": (U**2 * polyval(U**2, a.LOG_TAN) + np.log(U), np.log(np.tan(U))),
    "log cos^2 in a kernel": (U**2 * polyval(U**2, k.LOG_COS), 2 * np.log(np.cos(U))),
    "log sin^2 in a kernel": (U**2 * polyval(U**2, k.LOG_SIN) + 2 * np.log(U), 2 * np.log(np.sin(U))),
    "tan in a kernel": (U**3 * polyval(U**2, k.TAN) + U, np.tan(U)),
    "log(1+t) in a kernel": (T**2 * polyval(T, k.LOG_ONE_PLUS) + T, np.log1p(T)),
    "exp": (R**2 * polyval(R, a.EXP) + R + 1, np.exp(R)),
}


@pytest.mark.parametrize("name", FITS)
def test_a_fit_is_closer_than_float32_can_tell(name: str) -> None:
    found, expected = FITS[name]
    assert np.abs(found - expected).max() < 3.5e-8


def test_exp_and_log_of_float32_are_right_to_two_roundings() -> None:
    y = -np.geomspace(1e-6, 87, 5001).astype(np.float32)
    exact = np.exp(y.astype(np.float64))
    np.testing.assert_allclose(jax.jit(lambda y: a._exp(y, library=False))(y), exact, rtol=2.5e-7)
    assert (np.asarray(a._exp(jnp.array([-1e9, -jnp.inf], jnp.float32), library=False)) < 2e-38).all()
    assert np.isnan(a._exp(jnp.array(jnp.nan, jnp.float32), library=False))
    u = np.geomspace(1e-19, 0.8, 5001).astype(np.float32)
    power, m = jax.jit(a._split_log)(u)
    found = np.asarray(power, np.float64) + np.log1p(np.asarray(m, np.float64))
    np.testing.assert_allclose(found, np.log(u.astype(np.float64)), rtol=2.5e-7)
