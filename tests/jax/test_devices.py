"""Batches that lie on several devices: mapped, sharded and pushed through the derivatives."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import catnat.jax as cj
from tests.jax.cases import CASES, close, draw_scores, everything, make_case, weighted
from tests.thinned import thinned

BATCH = PartitionSpec("batch")


@pytest.fixture
def mesh():
    devices = jax.devices()
    assert len(devices) >= 4, "tests/conftest.py asks for four"
    return Mesh(np.array(devices[:4]), ("batch",))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_shard_map_over_the_batch_changes_nothing(case, mesh):
    function, x = everything(case), jnp.asarray(draw_scores(make_case(case)[0], 8, dtype=np.float32))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=BATCH, out_specs=BATCH)
    close(jax.jit(mapped)(x), jax.jit(function)(x), 1e-5)
    close(jax.jit(jax.grad(weighted(mapped)))(x), jax.jit(jax.grad(weighted(function)))(x), 1e-4)
    inside = jax.shard_map(
        jax.grad(lambda s: function(s).sum()), mesh=mesh, in_specs=BATCH, out_specs=BATCH
    )  # a gradient of every device's own
    close(jax.jit(inside)(x), jax.jit(jax.grad(lambda s: function(s).sum()))(x), 1e-4)


def test_pmap_changes_nothing():
    x = jnp.asarray(draw_scores(make_case("natural-5")[0], 4, 2, dtype=np.float32))
    log_catnat = partial(cj.log_catnat, parameterization=5)
    close(jax.pmap(log_catnat)(x), log_catnat(x), 1e-5)
    gradient = jax.grad(lambda s: log_catnat(s)[..., 0].sum())
    close(jax.pmap(gradient)(x), gradient(x), 1e-5)


@pytest.mark.slow  # XLA spreads the same functions where shardings are part of types, below
@pytest.mark.parametrize("case", CASES)
def test_a_sharded_batch_stays_sharded(case, mesh):
    function, x = everything(case), draw_scores(make_case(case)[0], 8, dtype=np.float32)
    placed = jax.device_put(x, NamedSharding(mesh, BATCH))
    for f in (function, jax.grad(weighted(function))):
        found = jax.jit(f)(placed)
        assert found.sharding.is_equivalent_to(NamedSharding(mesh, BATCH), 2)
        close(found, jax.jit(f)(x), 1e-4)
    assert cj.log_catnat(placed, make_case(case)[0]).sharding.spec[0] == "batch"


@pytest.mark.parametrize("case", thinned(["natural-5", "sigmoid-8", "paper-6", "masked-5"], quick=["masked-5"]))
def test_shardings_may_be_part_of_types(case):
    pi, masking = make_case(case)
    scores, index = draw_scores(pi, 8, dtype=np.float32), np.arange(8) % pi.num_classes
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Explicit,))
    functions = {
        "log_catnat": lambda x, k: cj.log_catnat(x, pi, **masking),
        "log_prob": lambda x, k: cj.log_prob(x, k, pi, **masking),
        "cross_entropy": lambda x, k: cj.cross_entropy(x, k, pi, reduction="none"),
        "entropy": lambda x, k: cj.entropy(x, pi, **masking),
        "gradient": lambda x, k: jax.grad(lambda y: cj.cross_entropy(y, k, pi).sum())(x),
        "sample": lambda x, k: cj.sample(jax.random.key(0), x, pi, **masking),
    }
    together = jax.jit(lambda x, k: {name: function(x, k) for name, function in functions.items()})
    alone = together(jnp.asarray(scores), jnp.asarray(index))
    with jax.set_mesh(mesh):
        spread = together(jax.device_put(scores, BATCH), jax.device_put(index, BATCH))
    for name, found in spread.items():
        assert found.sharding.spec[0] == "batch", name
        if name != "sample":
            close(found, alone[name], 1e-5)
