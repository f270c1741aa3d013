"""The GPU kernels against the oracle: by Pallas's interpreter, or on a GPU where there is one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat.jax as cj
from catnat import Natural, Parameterization, Sigmoid, Tree
from catnat.jax._dispatch import plan_for
from catnat.jax._gpu import walk as kernels
from catnat_lab import reference
from tests.contract.cases import scores_for
from tests.contract.judge import assert_close, expected_gradient
from tests.thinned import thinned

INTERPRET = jax.default_backend() != "gpu"
ACTIVATIONS = {
    "sigmoid": Sigmoid(),
    **{f"tail{tail:g}": Natural(tail=tail) for tail in (0.5, 0.1, 0.05, 0.01, 1e-3)},
    "amplitude": Natural(amplitude=3.0),
    "paper": Natural(tail=0.0),
    "paper-floor0": Natural(tail=0.0, floor=0.0),
    "paper-amplitude": Natural(amplitude=3.0, tail=0.0),
    "paper-floor": Natural(tail=0.0, floor=1e-6),
}
# Every kind of block: many rows a program, several programs a row, a tree above the block and one above that; full
# trees and ragged ones, batches that fill the last program and some that do not.
SHAPES = [(1, 2), (3, 3), (130, 8), (127, 18), (5, 64), (33, 65), (3, 200), (2, 513), (2, 5000)]


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# For `make test` the least, a ragged and a large tree; then each kind of block and of activation.
FEW = [(1, 2, "paper"), (33, 65, "paper-floor"), (2, 513, "tail0.001")]
MORE = [
    *((130, 8, "sigmoid"), (127, 18, "tail0.05"), (2, 5000, "amplitude")),
    *((*shape, name) for shape in SHAPES for name in ("sigmoid", "tail0.05")),
    *((*shape, name) for shape in ((7, 18), (2, 520)) for name in ACTIVATIONS if name not in ("sigmoid", "tail0.05")),
]


@pytest.mark.parametrize(("rows", "classes", "name"), thinned(dict.fromkeys([*FEW, *MORE]), quick=FEW))
def test_kernels_agree_with_the_oracle(rows: int, classes: int, name: str) -> None:
    pi = Parameterization(classes, ACTIVATIONS[name])
    plan = plan_for(pi, np.dtype(np.float32))
    walk = jax.jit(lambda x: kernels.walk(x, plan=plan, interpret=INTERPRET))
    pull = jax.jit(lambda x, g: kernels.pull(x, g, plan=plan, interpret=INTERPRET))
    for score_set in ("scale 1", "scale 10", "near the ends"):
        scores, upstream = scores_for(pi, score_set, rows, np.float32), numbers((rows, classes))
        assert kernels.applies(scores, plan)
        exact = scores.astype(np.float64)
        assert_close(np.asarray(walk(scores)), reference.log_catnat(exact, pi), 2e-6, score_set)
        expected, scale = expected_gradient(exact, upstream.astype(np.float64), pi)
        found = np.asarray(pull(scores, upstream))
        assert_close(found, expected, 2e-6, f"gradient, {score_set}", scale)


@pytest.mark.parametrize("classes", thinned([18, 8, 1024]))
def test_nan_stays_in_its_row(classes: int) -> None:
    plan = plan_for(classes, np.dtype(np.float32))
    scores, upstream = numbers((5, classes - 1)), numbers((5, classes))
    scores[2, 0] = np.nan  # the root: every class is below it
    value = np.asarray(kernels.walk(jnp.asarray(scores), plan=plan, interpret=INTERPRET))
    slope = np.asarray(kernels.pull(jnp.asarray(scores), jnp.asarray(upstream), plan=plan, interpret=INTERPRET))
    assert np.isnan(value[2]).all() and not np.isnan(np.delete(value, 2, 0)).any()
    assert not np.isnan(np.delete(slope, 2, 0)).any()


def test_leading_axes_are_rows() -> None:
    plan = plan_for(Parameterization(6, "sigmoid"), np.dtype(np.float32))
    scores = jnp.asarray(numbers((2, 3, 5)))
    whole = kernels.walk(scores, plan=plan, interpret=INTERPRET)
    assert whole.shape == (2, 3, 6)
    np.testing.assert_array_equal(whole[1], kernels.walk(scores[1], plan=plan, interpret=INTERPRET))


def for_cuda(pi: Parameterization, shape: tuple[int, ...], dtype: type = np.float32) -> int:
    """How many kernels a program of value and gradient has when it is compiled for an NVIDIA GPU."""
    with jax.enable_x64(dtype is np.float64):
        step = jax.jit(jax.value_and_grad(lambda x: cj.log_catnat(x, pi).sum()))
        lowered = step.trace(jax.ShapeDtypeStruct(shape, dtype)).lower(lowering_platforms=("cuda",))
        return lowered.as_text().count("triton_kernel_call") or lowered.as_text().count("xla.gpu.triton")


def test_a_program_for_a_gpu_has_them_and_any_other_case_falls_back() -> None:
    assert for_cuda(Parameterization(18), (4, 17)) > 0
    assert for_cuda(Parameterization(18, "sigmoid"), (2, 4, 17)) > 0
    assert for_cuda(Parameterization(18), (0, 17)) == 0
    assert for_cuda(Parameterization(1), (4, 0)) == 0
    assert for_cuda(Parameterization(18), (4, 17), np.float64) == 0
    assert for_cuda(Parameterization(18, tree=Tree.chain(18)), (4, 17)) == 0
    assert not kernels.applies(jax.ShapeDtypeStruct((2**20, 2047), np.float32), plan_for(2048, np.dtype("f4")))


@pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices")
def test_shard_map_has_them_unless_xla_has_to_spread_the_rest() -> None:
    kinds = (jax.sharding.AxisType.Auto,) * 2
    mesh, rows = jax.make_mesh((2, 2), ("i", "j"), axis_types=kinds), jax.sharding.PartitionSpec("i")
    for axes, has_kernels in (({"i", "j"}, True), ({"i"}, False)):
        for function in (lambda x: cj.log_catnat(x, 10), jax.grad(lambda x: cj.log_catnat(x, 10)[:, 0].sum())):
            mapped = jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows, axis_names=axes)
            lowered = jax.jit(mapped).trace(jnp.ones((8, 9))).lower(lowering_platforms=("cuda",))
            assert ("triton" in lowered.as_text()) == has_kernels


@pytest.mark.skipif(INTERPRET, reason="needs a GPU")
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
@pytest.mark.parametrize("classes", [2, 18, 1000, 1024, 8192, 50257])
def test_public_functions_on_a_gpu(classes: int, activation: Sigmoid | Natural) -> None:
    pi = Parameterization(classes, activation)
    scores, upstream = scores_for(pi, "scale 1", 3, np.float32), numbers((3, classes))
    value, pull = jax.vjp(lambda x: cj.log_catnat(x, pi), jnp.asarray(scores))
    assert_close(np.asarray(value), reference.log_catnat(scores.astype(np.float64), pi), 2e-6)
    expected, scale = expected_gradient(scores.astype(np.float64), upstream.astype(np.float64), pi)
    assert_close(np.asarray(pull(jnp.asarray(upstream))[0]), expected, 2e-6, "gradient", scale)
    again = jax.vjp(lambda x: cj.log_catnat(x, pi), jnp.asarray(scores))[1](jnp.asarray(upstream))[0]
    np.testing.assert_array_equal(again, pull(jnp.asarray(upstream))[0])
    if classes <= 18:
        jax.jvp(jax.grad(lambda x: cj.log_catnat(x, pi)[0, 0]), (jnp.asarray(scores),), (jnp.asarray(scores),))
    tree = jax.vmap(lambda x: cj.log_catnat(x, pi))(jnp.asarray(scores))
    np.testing.assert_array_equal(tree, value)
