"""The C++ loops in XLA's programs: the reference's values and gradients, under every transformation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, export

import catnat
import catnat.jax as cj
from catnat import Natural, Parameterization, Sigmoid
from catnat._native import build
from catnat.jax import _classes, _cpu
from catnat.jax._dispatch import plan_for
from catnat_lab import reference
from tests.core.trees import KINDS, make_tree
from tests.thinned import thinned

NAMES = ("catnat_value", "catnat_gradient")


@pytest.fixture(autouse=True)
def _needs_the_operator() -> None:
    if build.load_if_wanted(_cpu._operator, _cpu._register) is None:
        pytest.skip("there is no C++ compiler, or none is wanted")


def rows(count: int, width: int, dtype: type = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(dtype)


def calls(function: Callable[..., Array], *arguments: Array) -> list[str]:
    text = jax.jit(function).lower(*arguments).as_text()
    return [name for name in NAMES if name in text]


@pytest.mark.parametrize(
    ("kind", "activation"), thinned(product(KINDS, [Sigmoid(), Natural(), Natural(tail=0.02)]), every=8), ids=str
)
def test_values_and_gradients_are_the_references(kind: str, activation: catnat.Activation) -> None:
    for size, dtype in product((2, 6, 33, 500 if kind == "chain" else 1100), (np.float32, np.float64)):
        pi = Parameterization(size, activation, make_tree(kind, size))
        close = 2e-6 if dtype == np.float32 else 1e-12
        x, upstream = 2 * rows(5, size - 1, dtype), rows(5, size, dtype, seed=1)
        with jax.enable_x64(True):
            plan = plan_for(pi, np.dtype(dtype))
            found = jax.jit(lambda x, plan=plan: _classes.walk.bind(x, plan=plan))(x)
            slope = jax.jit(lambda x, g, plan=plan: _classes.pull.bind(x, g, plan=plan))(x, upstream)
        assert found.dtype == slope.dtype == dtype
        there = x.astype(np.float64)
        np.testing.assert_allclose(found, reference.log_catnat(there, pi), rtol=close, atol=close)
        expected = reference.log_catnat_gradient(there, upstream.astype(np.float64), pi)
        np.testing.assert_allclose(slope, expected, rtol=20 * close, atol=20 * close)


def test_programs_call_it_under_every_transformation() -> None:
    pi, x = Parameterization(6), jnp.asarray(rows(4, 5))

    def total(x: Array) -> Array:
        return (cj.log_catnat(x, pi) ** 2).sum()

    assert calls(lambda x: cj.log_catnat(x, pi), x) == ["catnat_value"]
    assert calls(jax.grad(total), x) == list(NAMES)
    one_by_one = jnp.stack([cj.log_catnat(row, pi) for row in x])
    for axis in (0, 1):
        mapped = jax.vmap(lambda row: cj.log_catnat(row, pi), in_axes=axis)
        moved = jnp.moveaxis(x, 0, axis)
        assert calls(mapped, moved) == ["catnat_value"]
        np.testing.assert_array_equal(mapped(moved), one_by_one)
    second = jax.hessian(total)(x[0])
    np.testing.assert_allclose(second, second.T, rtol=1e-4, atol=1e-5)
    assert cj.log_catnat(jnp.zeros((0, 5)), pi).shape == (0, 6)


def test_many_rows_are_shared_among_threads() -> None:
    pi = Parameterization(1000)
    x, upstream = rows(300, 999), rows(300, 1000, seed=1)
    value, pull = jax.vjp(lambda x: cj.log_catnat(x, pi), x)
    (slope,) = pull(upstream)
    for row in range(0, 300, 23):
        alone, pull_alone = jax.vjp(lambda x: cj.log_catnat(x, pi), x[row])
        np.testing.assert_array_equal(value[row], alone)
        np.testing.assert_array_equal(slope[row], pull_alone(upstream[row])[0])


def test_what_it_does_not_serve_is_plain_code() -> None:
    x = jnp.zeros((2, 5))
    assert calls(lambda x: cj.log_catnat(x, Parameterization(6, "paper")), x) == []
    exported = export.export(jax.jit(lambda x: cj.log_catnat(x, 6)), platforms=("cpu",))(x)
    np.testing.assert_allclose(exported.call(x), cj.log_catnat(x, 6), rtol=1e-6)
    assert not any(name in exported.mlir_module() for name in NAMES)  # which could not be run elsewhere


def test_who_goes_without_has_plain_code(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jnp.asarray(rows(3, 20))
    found = cj.log_catnat(x, 21)
    monkeypatch.setattr(catnat._native, "_wanted", None)
    try:
        catnat.compile_operators(False)
        assert calls(lambda x: cj.log_catnat(x, 21), x) == []
        np.testing.assert_allclose(cj.log_catnat(x, 21), found, rtol=1e-6, atol=1e-6)
    finally:
        catnat.compile_operators(True)
    assert calls(lambda x: cj.log_catnat(x, 21), x) == ["catnat_value"]
