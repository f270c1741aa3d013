"""JAX's transformations, alone and one upon another, see one and the same function."""

from __future__ import annotations

import importlib.util
import math
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import catnat
import catnat.jax as cj
from catnat.jax._walk import Walk
from tests.jax.cases import CASES, close, draw_scores, everything, make_case, operations, weighted
from tests.thinned import thinned


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def numerical(function, x, step=1e-5):
    """Central differences of order four: [..., n] more than the function's value."""

    def along(unit):
        near = function(x + step * unit) - function(x - step * unit)
        far = function(x + 2 * step * unit) - function(x - 2 * step * unit)
        return (8 * near - far) / (12 * step)

    return jnp.stack([along(unit) for unit in np.eye(x.size)], -1)


# -- derivatives -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", thinned(CASES, 0, every=9))
def test_first_derivatives_are_those_of_finite_differences(case):
    pi, _ = make_case(case)
    function, x = jax.jit(everything(case)), draw_scores(pi)
    expected = numerical(function, x)
    close(jax.jacfwd(function)(x), expected, 1e-8)
    close(jax.jacrev(function)(x), expected, 1e-8)
    direction = draw_scores(pi, seed=1)
    close(jax.jvp(function, (x,), (direction,)), (function(x), expected @ direction), 1e-8)
    close(jax.grad(weighted(function))(x), jnp.linspace(-1, 2, expected.shape[0]) @ expected, 1e-8)


@pytest.mark.parametrize(
    ("case", "outer", "inner"),
    thinned(
        product(CASES, [jax.jacfwd, jax.jacrev], [jax.jacfwd, jax.jacrev]),
        quick=[("masked-5", jax.jacfwd, jax.jacrev), ("natural-5", jax.jacrev, jax.jacfwd)],
    ),
)
def test_second_derivatives_agree_however_they_are_taken(case, outer, inner):
    x = draw_scores(make_case(case)[0])
    total = weighted(everything(case, "log_catnat", "log_prob", "entropy"))
    expected = numerical(jax.jit(jax.grad(total)), x)
    close(jax.jit(outer(inner(total)))(x), expected, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["natural-5", "chain-9"])
def test_third_derivatives_are_those_of_finite_differences(case):
    x, total = draw_scores(make_case(case)[0]), weighted(operations(case)["log_catnat"])
    third = jax.jit(jax.jacfwd(jax.jacrev(jax.grad(total))))(x)
    close(third, numerical(jax.jit(jax.hessian(total)), x), 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_pushing_forward_and_pulling_back_are_each_others_transpose(case):
    pi, _ = make_case(case)
    function, x, v = jax.jit(everything(case)), draw_scores(pi, 3), draw_scores(pi, 3, seed=1)
    value, push = jax.linearize(function, x)
    g = np.random.default_rng(2).normal(size=value.shape)
    pulled = jax.linear_transpose(push, x)(g)[0]
    close((push(v) * g).sum(), (v * pulled).sum(), 1e-11)
    close(pulled, jax.vjp(function, x)[1](g)[0], 1e-12)
    twice = jax.linear_transpose(lambda g: jax.linear_transpose(push, x)(g)[0], g)(v)[0]
    close(twice, push(v), 1e-12)


@pytest.mark.parametrize("activation", ["natural", "sigmoid", catnat.Natural(tail=0.0)], ids=str)
def test_gradients_at_zero_are_right_and_at_the_ends_finite(activation):
    pi = catnat.Parameterization(4, activation)
    at_zero = jax.jacrev(lambda s: cj.catnat(s, pi))(jnp.zeros(3))
    close(at_zero, np.array([[-1, -1, 0], [-1, 1, 0], [1, 0, -1], [1, 0, 1]]) / 8)  # a = 1/2 and a' = 1/4
    for end in (math.pi, -math.pi, 1e3, np.inf, -np.inf):
        scores = jnp.array([end, 0.1, 0.2])
        assert jnp.isfinite(jax.jacrev(lambda s: cj.catnat(s, pi))(scores)).all()
        assert jnp.isfinite(jax.grad(lambda s: cj.entropy(s, pi))(scores)).all()


# -- batches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", thinned(CASES, 1, every=9))
def test_vmap_is_a_loop(case):
    pi, _ = make_case(case)
    function = everything(case, "log_catnat", "log_prob", "entropy", "kl_divergence")
    planes = draw_scores(pi, 2, 3)
    gradient = jax.grad(weighted(function))
    one = jax.jit(lambda s: (function(s), gradient(s)))
    loop = jax.tree.map(lambda *rows: jnp.stack(rows), *[one(row) for row in planes[0]])
    close(jax.vmap(one, in_axes=1)(planes[0].T), loop, 1e-12)
    close(jax.vmap(jax.vmap(one), in_axes=2, out_axes=1)(np.moveaxis(planes, 0, 2))[0][:, 0], loop[0], 1e-12)


@pytest.mark.slow
def test_vmap_over_some_operands_and_not_others():
    pi = catnat.Parameterization(6)
    scores, index = draw_scores(pi, 4), np.array([0, 5, 2, 3])
    masks = np.random.default_rng(0).random((4, 6)) < 0.7
    masks[:, 3] = True
    masked = partial(cj.catnat, parameterization=pi)
    both, one = masked(scores, mask=masks), masked(scores[0], mask=masks)
    close(jax.vmap(lambda s, m: masked(s, mask=m))(scores, masks), both, 1e-12)
    close(jax.vmap(lambda s, m: masked(s, mask=m), in_axes=(None, 0))(scores[0], masks), one, 1e-12)
    rows = cj.log_prob(scores, index, pi)
    log_prob = partial(cj.log_prob, parameterization=pi)
    close(jax.vmap(log_prob)(scores, index), rows, 1e-12)
    close(jax.vmap(log_prob, in_axes=(None, 0))(scores[0], index), log_prob(scores[0], index), 1e-12)
    close(jax.vmap(log_prob, in_axes=(0, None))(scores, index[0]), log_prob(scores, np.full(4, index[0])), 1e-12)
    close(jax.vmap(partial(cj.cross_entropy, parameterization=pi))(scores, index), -rows, 1e-12)


@pytest.mark.parametrize("axis", thinned([None, 0, 1], 2))
def test_the_derivative_is_batched_over_tangents_and_points_alike(axis):
    pi = catnat.Parameterization(5, tree=catnat.Tree.chain(5))
    points, tangents = draw_scores(pi, 4), draw_scores(pi, 4, seed=1)
    push = jax.vmap(lambda s, v: jax.jvp(lambda t: cj.log_catnat(t, pi), (s,), (v,))[1], in_axes=(axis, 0))
    given = {None: points[0], 0: points, 1: points.T}[axis]
    jacobian = jax.jacrev(lambda t: cj.log_catnat(t, pi))
    rows = [points[0 if axis is None else i] for i in range(4)]
    close(push(given, tangents), jnp.stack([jacobian(r) @ v for r, v in zip(rows, tangents, strict=True)]), 1e-12)
    pull = jax.vmap(lambda s, g: jax.vjp(lambda t: cj.log_catnat(t, pi), s)[1](g)[0], in_axes=(axis, 0))
    cotangents = np.random.default_rng(2).normal(size=(4, 5))
    close(pull(given, cotangents), jnp.stack([g @ jacobian(r) for r, g in zip(rows, cotangents, strict=True)]), 1e-12)


# -- compiling ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_jit_remat_and_no_jit_at_all_give_the_same(case):
    x, total = draw_scores(make_case(case)[0], 3), weighted(operations(case)["log_catnat"])
    expected = jax.value_and_grad(total)(x)
    close(jax.jit(jax.value_and_grad(total))(x), expected, 1e-12)
    close(jax.jit(jax.value_and_grad(jax.checkpoint(total)))(x), expected, 1e-12)
    with jax.disable_jit():
        close(jax.value_and_grad(total)(x), expected, 1e-12)


def test_a_training_loop_inside_a_scan_learns_what_one_outside_does():
    target = jnp.array([0.1, 0.2, 0.3, 0.4])

    def step(scores, _):
        loss, gradient = jax.value_and_grad(lambda s: cj.cross_entropy(s, target, 4))(scores)
        return scores - 0.5 * gradient, loss

    final, losses = jax.jit(lambda s: lax.scan(step, s, None, length=300))(jnp.zeros(3))
    close(cj.catnat(final, 4), target, 1e-3)
    scores = jnp.zeros(3)
    for loss in losses[:5]:
        scores, found = step(scores, None)
        close(found, loss, 1e-12)


def test_nothing_is_traced_again_when_only_values_change():
    traces = []

    @partial(jax.jit, static_argnames="pi")
    def user(s, k, pi):
        traces.append(1)
        return cj.log_prob(s, k, pi) + cj.entropy(s, pi)

    compiled = (Walk.log_probs, Walk.log_prob, Walk.entropy, Walk.sample)

    def visit(seed):
        pi = catnat.Parameterization(7, catnat.Natural(), catnat.Tree.chain(7))  # equal, not identical
        x, k = draw_scores(pi, 3, seed=seed), np.array([seed, 1, 2])
        user(x, k, pi)
        cj.log_catnat(x, pi), cj.log_prob(x, k, pi), cj.entropy(x, pi), cj.sample(jax.random.key(seed), x, pi)
        return len(traces), [f._cache_size() for f in compiled]

    first = visit(0)
    assert first[0] == 1 and visit(1) == visit(2) == first


@pytest.mark.slow
def test_shapes_jaxprs_donation_and_nan_checks():
    pi = catnat.Parameterization(6)
    x = jnp.asarray(draw_scores(pi, 3))
    shaped = jax.eval_shape(partial(cj.log_catnat, parameterization=pi), x)
    assert (shaped.shape, shaped.dtype) == ((3, 6), x.dtype)
    assert "catnat_walk" in str(jax.make_jaxpr(partial(cj.log_catnat, parameterization=pi))(x))
    expected = np.asarray(cj.reach(x, pi))
    close(jax.jit(lambda s: cj.reach(s, pi), donate_argnums=0)(x + 0), expected, 1e-12)
    mask = np.arange(6) % 2 == 0
    with jax.debug_nans(True):
        jax.grad(lambda s: cj.catnat(s, pi, mask=mask)[..., 0].sum())(10 * x)
        jax.grad(lambda s: cj.entropy(s, pi, mask=mask).sum())(10 * x)


@pytest.mark.parametrize("case", thinned(["natural-5", "chain-9", "masked-7"], 1))
def test_an_exported_program_comes_back_whole(case):
    x, total = draw_scores(make_case(case)[0], 3), weighted(operations(case)["log_catnat"])
    program = export.export(jax.jit(jax.value_and_grad(total)))(x)
    expected = jax.jit(jax.value_and_grad(total))(x)
    close(program.call(x), expected, 1e-12)
    if importlib.util.find_spec("flatbuffers"):  # JAX writes programs by it, and asks for it nowhere
        close(export.deserialize(program.serialize()).call(x), expected, 1e-12)


@pytest.mark.slow
def test_a_program_for_any_batch_may_be_exported():
    from jax import export

    (rows,) = export.symbolic_shape("b")
    scores, ids = jax.ShapeDtypeStruct((rows, 9), jnp.float32), jax.ShapeDtypeStruct((rows,), jnp.int32)
    for function, arguments in (
        (lambda s: jax.vjp(lambda x: cj.log_catnat(x, 10), s)[1](cj.log_catnat(s, 10))[0], (scores,)),
        (lambda s, k: cj.cross_entropy(s, k, 10), (scores, ids)),
        (lambda s: cj.sample(jax.random.key(0), s, 10), (scores,)),
    ):
        exported = export.export(jax.jit(function))(*arguments)
        for size in (3, 700):  # on both sides of what is treated as small
            given = [jnp.zeros((size, *a.shape[1:]), a.dtype) for a in arguments]
            np.testing.assert_allclose(exported.call(*given), function(*given), atol=1e-5)
