"""The paper's theory: Theorem 1, Corollary 1, Proposition 1, natural gradients and the pull-back, beside PyTorch's."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.flatten_util import ravel_pytree
from numpy.testing import assert_allclose
from scipy import stats

import catnat
import catnat.jax as cj
import catnat.torch as ct
from catnat.core import reference
from tests.core.trees import make_tree
from tests.jax.beside_torch import draw
from tests.thinned import thinned

A, K = 5.0, 6
PARAMETERIZATIONS = {
    "sigmoid": catnat.Parameterization(K, "sigmoid", make_tree("nested", K)),
    "natural": catnat.Parameterization(K, catnat.Natural(amplitude=A)),
    "clip": catnat.Parameterization(K, catnat.Natural(amplitude=A, tail=0.0)),
    "reflect": catnat.Parameterization(
        K, catnat.Natural(amplitude=A, tail=0.0, saturation="reflect"), make_tree("chain", K)
    ),
}
EACH = pytest.mark.parametrize("pi", thinned(PARAMETERIZATIONS.values(), every=2), ids=PARAMETERIZATIONS)
MASK = np.array([True, True, False, False, True, True])
KEY = jax.random.key(0)


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


@pytest.mark.parametrize("name", ["clip", "reflect"])
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
            assert cj.saturation(x, none) == 0
        y = jnp.array([3.0, 3.14, 3.15, -9.0])
        for of, share in [("clip", 0.5), ("revive", 0.5), ("reflect", 0.0)]:
            pi = catnat.Parameterization(5, catnat.Natural(tail=0.0, saturation=of), center=0.0)
            assert cj.saturation(y, pi) == share, of
        floor = catnat.Parameterization(5, catnat.Natural(tail=0.0, floor=1e-5), center=0.0)
        assert cj.saturation(y, floor) == 0.75
        assert cj.saturation(jnp.zeros((0, 4))) == 0
        found = jax.jit(lambda s: cj.saturation(s, axis=0))(jnp.ones((3, 7), jnp.bfloat16))
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
    across = cj.fisher_diagonal(np.swapaxes(scores, 1, 2))
    assert_allclose(cj.fisher_diagonal(scores, axis=1), np.swapaxes(across, 1, 2), rtol=1e-9)
    through = jax.grad(lambda s: (cj.natural_gradient(s, axis=1) ** 2).sum())(jnp.asarray(scores))
    expected = jax.grad(lambda s: (cj.natural_gradient(s) ** 2).sum())(jnp.asarray(np.swapaxes(scores, 1, 2)))
    assert_allclose(through, np.swapaxes(expected, 1, 2), rtol=1e-9)


@pytest.mark.parametrize("pi", thinned(PARAMETERIZATIONS.values(), every=4), ids=PARAMETERIZATIONS)
def test_a_pruned_catnat_keeps_a_diagonal_fisher_matrix_and_a_renormalised_one_does_not(pi):
    scores = jnp.asarray(inside_scores(pi))
    dense = {
        mode: jax.jit(partial(cj.fisher_matrix, partial(cj.log_catnat, parameterization=pi, mask=MASK, mask_mode=mode)))
        for mode in ("prune", "renormalize")
    }
    diagonal = cj.fisher_diagonal(scores, pi, mask=MASK)
    assert_allclose(dense["prune"](scores), np.diag(diagonal), rtol=1e-9, atol=1e-12)
    assert (diagonal == 0).any() and (diagonal > 0).any()
    assert_allclose(diagonal, ct.fisher_diagonal(torch.tensor(scores), pi, mask=torch.from_numpy(MASK)), atol=1e-13)
    found = np.asarray(dense["renormalize"](scores))
    assert np.abs(found - np.diag(np.diag(found))).max() > 1e-3


# -- the natural gradient ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "damping", "mask"),
    thinned([("sigmoid", 0.0, None), ("clip", 0.0, None), ("clip", 0.1, None), ("reflect", 0.0, MASK)], 1),
    ids=["sigmoid", "clip", "damped", "masked"],
)
def test_the_natural_gradient_solves_with_the_fisher_matrix_in_both_modes(name, damping, mask):
    pi = PARAMETERIZATIONS[name]
    scores, cost = inside_scores(pi), draw(K, seed=3)
    if pi.activation == catnat.Natural(amplitude=A, tail=0.0):
        scores[-1] += 1.5 * A  # saturated: no information, no gradient
    masking = {"mask": mask, "mask_mode": "prune"}

    def loss(s, natural):
        s = cj.natural_gradient(s, pi, damping=damping, mask=mask) if natural else s
        return cj.catnat(s, pi, **masking) @ cost

    plain, natural = (np.asarray(jax.jit(jax.grad(partial(loss, natural=n)))(scores)) for n in (False, True))
    information = np.asarray(cj.fisher_diagonal(scores, pi, mask=mask)) + damping
    expected = np.where(information == 0, 0, plain / np.where(information == 0, 1, information))
    assert_allclose(natural, expected, rtol=1e-9, atol=1e-12)
    directions = np.eye(K - 1)
    forward = jax.jit(jax.vmap(lambda d: jax.jvp(partial(loss, natural=True), (jnp.asarray(scores),), (d,))[1]))
    assert_allclose(forward(directions), expected, rtol=1e-9, atol=1e-12)
    assert_allclose(cj.natural_gradient(scores, pi, damping=damping, mask=mask), scores, rtol=0)
    leaf = torch.from_numpy(scores).requires_grad_()
    given = None if mask is None else torch.from_numpy(mask)
    through = ct.natural_gradient(leaf, pi, damping=damping, mask=given)
    value = ct.catnat(through, pi, mask=given, mask_mode="prune") @ torch.from_numpy(cost)
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
    second = jax.hessian(lambda s: (cj.natural_gradient(s, "sigmoid") * 3.0).sum())(jnp.asarray(draw(3)))
    assert_allclose(second, np.zeros((3, 3)), atol=1e-12)
    half = jnp.zeros(3, jnp.bfloat16)
    assert cj.natural_gradient(half).dtype == cj.fisher_diagonal(half).dtype == jnp.bfloat16
    assert jax.grad(lambda s: cj.natural_gradient(s, damping=0.1).sum())(half).dtype == jnp.bfloat16


@pytest.mark.parametrize("damping", [-0.1, float("nan"), np.array(-1.0), jnp.array(-1.0)])
def test_damping_must_not_be_negative(damping):
    with pytest.raises(ValueError, match="damping"):
        cj.natural_gradient(jnp.zeros(3), damping=damping)


# -- by draws ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", thinned(["natural", "sigmoid"], 1))
def test_the_monte_carlo_fisher_matrix_is_unbiased(head):
    scores = jnp.array([0.3, -0.7, 0.5, 0.1])
    distribution = partial(cj.CatnatCategorical, parameterization=head)
    estimate = jax.jit(jax.vmap(lambda key: cj.monte_carlo_fisher(key, distribution, scores, 100)))
    found = np.asarray(estimate(jax.random.split(KEY, 200)))
    exact = np.diag(cj.fisher_diagonal(scores, head))
    error = found.std(0) / len(found) ** 0.5
    z = np.where(error > 1e-12, (found.mean(0) - exact) / np.maximum(error, 1e-12), 0.0)
    assert (2 * stats.norm.sf(np.abs(z)) > 1e-6).all()
    assert_allclose(found.mean(0), exact, atol=0.05)


def test_the_monte_carlo_fisher_matrix_makes_no_square_table_of_its_draws():
    draws = 4096
    made = jax.make_jaxpr(lambda s: cj.monte_carlo_fisher(KEY, cj.CatnatCategorical, s, draws))(jnp.zeros(3))
    sizes = [v.aval.size for eqn in walk(made.jaxpr) for v in eqn.outvars if hasattr(v.aval, "size")]
    assert draws <= max(sizes) < draws**2


def walk(jaxpr):
    """Every equation, those of inner functions too."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(inner, "eqns"):
                yield from walk(inner)


def test_the_monte_carlo_fisher_matrix_refuses_what_it_cannot_use():
    with pytest.raises(ValueError, match="num_samples"):
        cj.monte_carlo_fisher(KEY, cj.CatnatCategorical, jnp.zeros(3), 0)
    with pytest.raises(ValueError, match="scores"):
        cj.monte_carlo_fisher(KEY, cj.CatnatCategorical, jnp.zeros((2, 3)), 5)
    with pytest.raises(ValueError, match="one log_prob a draw"):
        cj.monte_carlo_fisher(KEY, lambda s: cj.CatnatCategorical(s[None]), jnp.zeros(3), 5)


# -- a network below ---------------------------------------------------------------------------------------------


def network(parameters, inputs):
    hidden = jnp.tanh(inputs @ parameters["first"]["weight"] + parameters["first"]["bias"])
    return hidden @ parameters["last"]


def small_network(width):
    parameters = {"first": {"weight": draw(3, 4), "bias": draw(4, seed=1)}, "last": draw(4, width, seed=2)}
    return jax.tree.map(jnp.asarray, parameters), jnp.asarray(draw(6, 3, seed=3))


def brute_force(parameters, inputs, log_p_of):
    """The mean over inputs of E[grad log p grad log p^T] in all parameters, class by class."""
    flat, unravel = ravel_pytree(parameters)

    def of_flat(values):
        return log_p_of(network(unravel(values), inputs))  # [B, K]

    gradients = np.asarray(jax.jit(jax.jacrev(of_flat))(flat))  # [B, K, P]
    weights = np.exp(np.asarray(of_flat(flat)))
    return np.einsum("bk,bkp,bkq->pq", weights, gradients, gradients) / len(inputs)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
def test_the_network_fisher_matrix_of_a_catnat_head_is_the_brute_force_one(activation):
    parameters, inputs = small_network(4)
    head = partial(cj.log_catnat, parameterization=activation)
    found = cj.network_fisher(network, parameters, inputs, partial(cj.fisher_diagonal, parameterization=activation))
    assert_allclose(found, brute_force(parameters, inputs, head), rtol=1e-8, atol=1e-11)
    dense = cj.network_fisher(network, parameters, inputs, partial(cj.fisher_matrix, head))
    assert_allclose(dense, found, rtol=1e-8, atol=1e-11)  # nothing is lost with the cross terms


@pytest.mark.slow
def test_the_network_fisher_matrix_of_a_softmax_head_needs_its_cross_terms():
    parameters, inputs = small_network(5)
    found = cj.network_fisher(network, parameters, inputs, cj.softmax_fisher)
    assert_allclose(found, brute_force(parameters, inputs, jax.nn.log_softmax), rtol=1e-8, atol=1e-11)
    without = cj.network_fisher(
        network, parameters, inputs, lambda s: jnp.diagonal(cj.softmax_fisher(s), axis1=-2, axis2=-1)
    )
    assert jnp.abs(without - found).max() > 1e-3


# -- conditioning ------------------------------------------------------------------------------------------------


def test_condition_number_is_largest_by_smallest_eigenvalue_on_the_support():
    values = np.array([4.0, 1.0, 2.0, 0.5])
    basis = np.linalg.qr(draw(4, 4))[0]
    turned = basis @ np.diag(values) @ basis.T
    for matrix in (values, np.diag(values), turned, 1e-5 * turned):
        assert_allclose(cj.condition_number(jnp.asarray(matrix)), 8)
    with_zero = np.append(values, 0)
    assert cj.condition_number(jnp.asarray(with_zero)) == 8 and cj.condition_number(jnp.diag(with_zero)) == 8
    assert_allclose(cj.condition_number(jnp.stack((turned, turned @ turned))), [8, 64])
    assert cj.condition_number(jnp.asarray(values), rtol=0.2) == 4
    for matrix in (values, turned):
        assert_allclose(cj.condition_number(jnp.asarray(matrix)), ct.condition_number(torch.from_numpy(matrix)))


@pytest.mark.slow
def test_condition_numbers_at_the_uniform_distribution():
    assert_allclose(cj.condition_number(cj.softmax_fisher(jnp.zeros(8))), 1)
    # in a full balanced tree the deepest nodes are reached with probability 2 / K
    assert_allclose(cj.condition_number(cj.fisher_diagonal(jnp.zeros(7))), 4)
