"""The paper's theory: Theorem 1, Corollary 1, Proposition 1, and natural gradients, beside PyTorch's."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import catnat
import catnat.jax as cj
import catnat.torch as ct
from catnat_lab import reference
from tests.core.trees import make_tree
from tests.jax.beside_torch import draw
from tests.thinned import thinned

A, K = 5.0, 6
PARAMETERIZATIONS = {
    "sigmoid": catnat.Parameterization(K, "sigmoid", make_tree("nested", K)),
    "natural": catnat.Parameterization(K, catnat.Natural(amplitude=A)),
    "clip": catnat.Parameterization(K, catnat.Natural(amplitude=A, tail=0.0)),
    "chain": catnat.Parameterization(K, catnat.Natural(amplitude=A, tail=0.0), make_tree("chain", K)),
}
EACH = pytest.mark.parametrize("pi", thinned(PARAMETERIZATIONS.values(), every=2), ids=PARAMETERIZATIONS)
MASK = np.array([True, True, False, False, True, True])


@pytest.fixture(autouse=True)
def in_double():
    with jax.enable_x64(True):
        yield


def inside_scores(pi, *batch, seed=0):
    """Scores inside the natural range, the 2% at both ends left out."""
    uniform = np.random.default_rng(seed).uniform(-0.48, 0.48, (*batch, pi.num_nodes))
    return uniform * A + pi.centers


# -- Theorem 1, Corollary 1, Proposition 1 -----------------------------------------------------------------------


@EACH
def test_the_fisher_matrix_is_diagonal_and_is_the_formulas(pi):
    scores = np.concatenate((inside_scores(pi, 4), 4 * inside_scores(pi, 4)))
    dense = jax.jit(partial(cj.fisher_matrix, partial(cj.log_catnat, parameterization=pi)))(scores)
    diagonal = cj.fisher_diagonal(scores, pi)
    assert_allclose(dense, np.asarray(diagonal)[..., None] * np.eye(K - 1), rtol=1e-9, atol=1e-12)
    assert_allclose(diagonal, reference.fisher_diagonal(scores, pi), rtol=1e-9, atol=1e-13)
    assert_allclose(diagonal, ct.fisher_diagonal(torch.from_numpy(scores), pi), rtol=1e-9, atol=1e-13)
    assert diagonal.sum() > 0


@pytest.mark.parametrize("name", ["clip", "chain"])
def test_natural_nodes_have_constant_information(name):
    pi = PARAMETERIZATIONS[name]
    scores = inside_scores(pi, 4)
    assert_allclose(cj.fisher_diagonal(scores, pi), cj.reach(scores, pi) * (math.pi / A) ** 2, rtol=1e-9)


@pytest.mark.parametrize("tail", [0.1, 0.05, 1e-3])
def test_beyond_the_joint_information_falls_off(tail):
    natural = catnat.Natural(amplitude=A, tail=tail)
    pi = catnat.Parameterization(2, natural)
    x = np.linspace(-2 * A, 2 * A, 81)[:, None]
    a, s = np.asarray(cj.catnat(x, pi)), natural.steepest * 2 * math.pi / A
    expected = np.where(a.min(-1) > tail, (math.pi / A) ** 2, a[:, 0] * a[:, 1] * s**2)
    assert_allclose(cj.fisher_diagonal(x, pi)[:, 0], expected, rtol=1e-9)


def test_saturation_counts_the_nodes_beyond_the_natural_range():
    with jax.enable_x64(False):
        joint = catnat.Natural().joint
        x = jnp.array([0.0, joint - 0.01, joint + 0.01, -9.0, jnp.nan])
        assert cj.saturation(x, catnat.Parameterization(6, center=0.0)) == jnp.float32(0.4)
        assert cj.saturation(x, catnat.Parameterization(6, catnat.Natural(amplitude=1.0), center=0.0)) == jnp.float32(
            0.6
        )
        moved = catnat.Parameterization(6, center=10.0)
        assert cj.saturation(x + 10, moved) == jnp.float32(0.4)
        for none in ("sigmoid", catnat.Natural(tail=0.5)):
            assert cj.saturation(x, catnat.Parameterization(6, none)) == 0
        y = jnp.array([3.0, 3.14, 3.15, -9.0])
        assert cj.saturation(y, catnat.Parameterization(5, catnat.Natural(tail=0.0), center=0.0)) == 0.5
        floor = catnat.Parameterization(5, catnat.Natural(tail=0.0, floor=1e-5), center=0.0)
        assert cj.saturation(y, floor) == 0.75
        assert cj.saturation(jnp.zeros((0, 4)), 5) == 0
        found = jax.jit(lambda s: cj.saturation(s, 4, axis=0))(jnp.ones((3, 7), jnp.bfloat16))
        assert found.shape == () and found.dtype == jnp.bfloat16


def test_softmaxs_fisher_matrix_is_proposition_1():
    logits = draw(5, 4)
    expected = ct.softmax_fisher(torch.from_numpy(logits))
    assert_allclose(cj.softmax_fisher(logits), expected, rtol=1e-9, atol=1e-12)
    assert_allclose(cj.fisher_matrix(jax.nn.log_softmax, jnp.asarray(logits)), expected, rtol=1e-9, atol=1e-12)


@EACH
def test_kl_is_half_the_squared_fisher_length_of_a_small_step(pi):
    scores = inside_scores(pi, 5)
    step = 1e-4 * draw(5, K - 1, seed=1)
    quadratic = (cj.fisher_diagonal(scores, pi) * step**2).sum(-1) / 2
    assert_allclose(cj.kl_divergence(scores, scores + step, pi), quadratic, rtol=0.02, atol=1e-15)


def test_axis_chooses_the_axis():
    scores = draw(2, 5, 3)
    across = cj.fisher_diagonal(np.swapaxes(scores, 1, 2), 6)
    assert_allclose(cj.fisher_diagonal(scores, 6, axis=1), np.swapaxes(across, 1, 2), rtol=1e-9)
    through = jax.grad(lambda s: (cj.natural_gradient(s, 6, axis=1) ** 2).sum())(jnp.asarray(scores))
    expected = jax.grad(lambda s: (cj.natural_gradient(s, 6) ** 2).sum())(jnp.asarray(np.swapaxes(scores, 1, 2)))
    assert_allclose(through, np.swapaxes(expected, 1, 2), rtol=1e-9)


@pytest.mark.parametrize("pi", thinned(PARAMETERIZATIONS.values(), every=4), ids=PARAMETERIZATIONS)
def test_given_a_mask_the_fisher_matrix_is_not_diagonal(pi):
    dense = jax.jit(partial(cj.fisher_matrix, partial(cj.log_catnat, parameterization=pi, mask=MASK)))
    found = np.asarray(dense(jnp.asarray(inside_scores(pi))))
    assert np.abs(found - np.diag(np.diag(found))).max() > 1e-3


# -- the natural gradient ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "damping"),
    thinned([("sigmoid", 0.0), ("clip", 0.0), ("clip", 0.1), ("chain", 0.0)], 1),
    ids=["sigmoid", "clip", "damped", "chain"],
)
def test_the_natural_gradient_solves_with_the_fisher_matrix_in_both_modes(name, damping):
    pi = PARAMETERIZATIONS[name]
    scores, cost = inside_scores(pi), draw(K, seed=3)
    if pi.activation == catnat.Natural(amplitude=A, tail=0.0):
        scores[-1] += 1.5 * A  # saturated: no information, no gradient

    def loss(s, natural):
        s = cj.natural_gradient(s, pi, damping=damping) if natural else s
        return cj.catnat(s, pi) @ cost

    plain, natural = (np.asarray(jax.jit(jax.grad(partial(loss, natural=n)))(scores)) for n in (False, True))
    information = np.asarray(cj.fisher_diagonal(scores, pi)) + damping
    expected = np.where(information == 0, 0, plain / np.where(information == 0, 1, information))
    assert_allclose(natural, expected, rtol=1e-9, atol=1e-12)
    directions = np.eye(K - 1)
    forward = jax.jit(jax.vmap(lambda d: jax.jvp(partial(loss, natural=True), (jnp.asarray(scores),), (d,))[1]))
    assert_allclose(forward(directions), expected, rtol=1e-9, atol=1e-12)
    assert_allclose(cj.natural_gradient(scores, pi, damping=damping), scores, rtol=0)
    leaf = torch.from_numpy(scores).requires_grad_()
    through = ct.natural_gradient(leaf, pi, damping=damping)
    value = ct.catnat(through, pi) @ torch.from_numpy(cost)
    assert_allclose(natural, torch.autograd.grad(value, leaf)[0], rtol=1e-7, atol=1e-9)
    assert np.abs(plain).max() > 1e-3


@pytest.mark.slow
def test_a_natural_step_moves_the_probabilities_by_the_replicator_equation():
    # a small natural step changes the probabilities alike, whatever the coordinates: F^-1 is a metric's inverse
    probs, cost = np.array([0.1, 0.3, 0.15, 0.05, 0.4]), np.array([1.0, -2.0, 0.5, 3.0, 0.0])
    for pi in (catnat.Parameterization(5, "sigmoid"), catnat.Parameterization(5, tree=make_tree("chain", 5))):
        scores = cj.scores_from_probs(probs, pi)
        step = jax.grad(lambda s, pi=pi: cj.catnat(cj.natural_gradient(s, pi), pi) @ cost)(scores)
        move = jax.jvp(partial(cj.catnat, parameterization=pi), (scores,), (step,))[1]
        assert_allclose(move, probs * (cost - probs @ cost), rtol=1e-7)


@pytest.mark.slow
def test_the_divisor_is_a_constant_and_half_precision_stays():
    # d/ds of s / stop(F(s)) has no term in F'
    second = jax.hessian(lambda s: (cj.natural_gradient(s, 4) * 3.0).sum())(jnp.asarray(draw(3)))
    assert_allclose(second, np.zeros((3, 3)), atol=1e-12)
    half = jnp.zeros(3, jnp.bfloat16)
    assert cj.natural_gradient(half, 4).dtype == cj.fisher_diagonal(half, 4).dtype == jnp.bfloat16
    assert jax.grad(lambda s: cj.natural_gradient(s, 4, damping=0.1).sum())(half).dtype == jnp.bfloat16


@pytest.mark.parametrize("damping", [-0.1, float("nan"), np.array(-1.0), jnp.array(-1.0)])
def test_damping_must_not_be_negative(damping):
    with pytest.raises(ValueError, match="damping"):
        cj.natural_gradient(jnp.zeros(3), 4, damping=damping)
