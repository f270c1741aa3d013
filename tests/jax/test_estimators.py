"""Gradient estimators: unbiased where they say so, each other one the gradient of what it says it is, as in PyTorch."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import catnat
import catnat.jax as cj
import catnat.torch as ct
from catnat.jax._noise import gumbel
from tests.core.trees import make_tree
from tests.jax.beside_torch import draw
from tests.thinned import thinned

K = 5
LEAST_P = 1e-6
ALLOWED = np.array([True, False, True, True, False])
MASKINGS = [{}, {"mask": ALLOWED}]
MASKED = [  # `make test` has one of them a test, by turns
    pytest.mark.parametrize("masking", thinned(MASKINGS, turn), ids=["free", "masked"]) for turn in range(2)
]
PI = catnat.Parameterization(K, "sigmoid", make_tree("chain", K))
COSTS = np.array([3.0, -1.0, 0.5, 4.0, 2.0], np.float32) + 10
SCORES = np.array([0.4, -0.8, 1.1, 0.2], np.float32)
BASELINES = {
    "none": None,
    "constant": 9.0,
    "moving average": cj.MovingAverage(0.9).update(jnp.array([10.0, 12.0])),
    "leave one out": cj.LeaveOneOut(),
}
EACH_BASELINE = pytest.mark.parametrize("baseline", BASELINES.values(), ids=BASELINES)
KEY = jax.random.key(0)


# -- the score function ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("masking", "baseline"),
    thinned(
        [*((MASKINGS[0], baseline) for baseline in BASELINES.values()), *((m, cj.LeaveOneOut()) for m in MASKINGS[1:])],
        1,
        every=6,
    ),
    ids=[*BASELINES, "masked"],
)
def test_the_score_function_is_unbiased(masking, baseline):
    @jax.jit
    def estimates(baseline):
        def loss(rows):
            drawn, log_prob = cj.CatnatCategorical(rows, PI, **masking).sample_and_log_prob(KEY, (4,))
            return cj.score_function(jnp.asarray(COSTS)[drawn], log_prob, baseline).mean(0).sum()

        return jax.grad(loss)(jnp.broadcast_to(SCORES, (5000, K - 1)))

    found = np.asarray(estimates(baseline), np.float64)
    exact = np.asarray(jax.grad(lambda s: cj.catnat(s, PI, **masking) @ COSTS)(jnp.asarray(SCORES)))
    spread = found.std(0) / len(found) ** 0.5
    z = np.where(spread > 1e-9, (found.mean(0) - exact) / np.maximum(spread, 1e-9), 0.0)
    assert_allclose(found.mean(0)[spread <= 1e-9], exact[spread <= 1e-9], atol=1e-6)  # what a mask made certain
    assert (2 * stats.norm.sf(np.abs(z)) > LEAST_P).all()


@EACH_BASELINE
def test_values_and_gradients_are_pytorchs(baseline):
    cost, log_prob = draw(6, 3).astype(np.float32), -np.abs(draw(6, 3, seed=1)).astype(np.float32)
    log_prob[0, 0] = -np.inf  # an impossible sample leaves the rest alone
    if isinstance(baseline, cj.MovingAverage):
        theirs = ct.MovingAverage(0.9)
        theirs(torch.tensor([10.0, 12.0]))
    else:
        theirs = ct.LeaveOneOut() if isinstance(baseline, cj.LeaveOneOut) else baseline
    leaves = [torch.from_numpy(a.copy()).requires_grad_() for a in (cost, log_prob)]
    expected = ct.score_function(*leaves, theirs)
    value = cj.score_function(jnp.asarray(cost), jnp.asarray(log_prob), baseline)
    assert_allclose(value, expected.detach(), rtol=1e-6)
    assert_allclose(value, cost, rtol=1e-6)
    gradients = jax.grad(lambda c, p: (cj.score_function(c, p, baseline) ** 2).sum(), (0, 1))(cost, log_prob)
    for mine, wanted in zip(gradients, torch.autograd.grad((expected**2).sum(), leaves), strict=True):
        assert_allclose(mine, wanted, rtol=1e-5)


@pytest.mark.parametrize("shape, axis", [((1, 4), 0), ((), 0), ((4, 1), 1)])
def test_leave_one_out_needs_two_samples(shape, axis):
    with pytest.raises(ValueError, match="at least 2 samples"):
        cj.LeaveOneOut(axis)(jnp.zeros(shape))


def test_leave_one_out_takes_any_axis_and_is_static():
    cost = jnp.asarray(draw(2, 5), jnp.float32)
    assert_allclose(cj.LeaveOneOut(-1)(cost), cj.LeaveOneOut()(cost.T).T, rtol=1e-6)
    assert jax.tree.leaves(cj.LeaveOneOut()) == [] and cj.LeaveOneOut() == cj.LeaveOneOut(0)
    assert_allclose(jax.jit(lambda b, c: b(c))(cj.LeaveOneOut(1), cost), cj.LeaveOneOut(1)(cost), rtol=1e-6)


def test_the_score_function_refuses_what_it_cannot_use():
    with pytest.raises(ValueError, match="one shape"):
        cj.score_function(jnp.zeros(3), jnp.zeros((3, 1)))
    for baseline in ("mean", True, [0.0]):
        with pytest.raises(TypeError, match="baseline"):
            cj.score_function(jnp.zeros(3), jnp.zeros(3), baseline)


def test_an_array_of_baselines_is_taken_without_its_gradient():
    cost, log_prob, critic = (jnp.asarray(draw(6, 3, seed=s), jnp.float32) for s in range(3))
    for baseline in (critic, critic[0], critic[:, :1], np.asarray(critic), np.float32(2), jnp.float32(2)):
        of_log_prob, of_baseline = jax.grad(lambda p, b: cj.score_function(cost, p, b).sum(), (0, 1))(
            log_prob, jnp.asarray(baseline)
        )
        assert_allclose(of_log_prob, cost - baseline, rtol=1e-6)
        assert not of_baseline.any()
    for wrong in (critic[:, 0], critic[None]):  # never a batch that nobody asked for
        with pytest.raises(ValueError, match=r"baseline must broadcast to the costs' shape \(6, 3\); got \("):
            cj.score_function(cost, log_prob, wrong)


WAYS = {"plain": lambda f: jax.grad(f), "jit": lambda f: jax.jit(jax.grad(f)), "of jit": lambda f: jax.grad(jax.jit(f))}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_log_prob_without_a_gradient_is_refused_and_so_are_swapped_arguments(way):
    policy = lambda s: cj.CatnatCategorical(s, PI)  # noqa: E731
    cost = jnp.asarray(COSTS)[1]
    for wrong in (
        lambda s: cj.score_function(policy(s).log_prob(1), cost),
        lambda s: cj.score_function(cost * s.sum(), jax.lax.stop_gradient(policy(s).log_prob(1))),
        lambda s: cj.score_function(cost * s.sum(), policy(jnp.asarray(SCORES)).log_prob(1)),
    ):
        with pytest.raises(ValueError, match="log_prob must have a gradient where cost has one"):
            way(wrong)(jnp.asarray(SCORES))
        assert jnp.isfinite(wrong(jnp.asarray(SCORES)))  # nothing to see
    right = way(lambda s: cj.score_function(cost, policy(s).log_prob(1)))(jnp.asarray(SCORES))
    assert_allclose(right, cost * jax.grad(lambda s: policy(s).log_prob(1))(jnp.asarray(SCORES)), rtol=1e-5)
    with pytest.raises(TypeError, match="log_prob must be floating point; got int32"):
        cj.score_function(cost, jnp.array(1))


def test_second_derivatives_are_those_of_the_formula():
    def formula(cost, log_prob):
        return cost + jax.lax.stop_gradient(cost) * (log_prob - jax.lax.stop_gradient(log_prob))

    def loss(s, of):
        return of((s**3).sum(), cj.log_prob(s, jnp.array(2), PI))

    found, wanted = (
        jax.jit(jax.hessian(partial(loss, of=of)))(jnp.asarray(SCORES)) for of in (cj.score_function, formula)
    )
    assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


# -- the moving average ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.6])
def test_the_moving_average_is_carried_by_scan_as_pytorchs_module_carries_itself(decay):
    costs, theirs = draw(6, 4).astype(np.float32), ct.MovingAverage(decay)
    first = cj.MovingAverage(decay)
    assert first(costs[0]) == 0
    last, answers = jax.lax.scan(lambda average, cost: (average.update(cost), average(cost)), first, costs)
    assert_allclose(answers, [theirs(torch.from_numpy(cost)).item() for cost in costs], rtol=1e-5, atol=1e-6)
    assert_allclose(last.value, theirs.value, rtol=1e-5)
    assert (first.value, bool(first.seen), bool(last.seen), last.decay) == (0, False, True, decay)


def test_the_moving_average_passes_no_gradient_and_keeps_its_dtype():
    def value_after(cost):
        average = cj.MovingAverage().update(cost)
        return cj.score_function(cost, cost - 2, average).sum() + average.value

    cost = jnp.array([1.0, 2.0])
    assert_allclose(jax.grad(value_after)(cost), [0.5, 1.5])  # 1 + cost - the mean
    half = cj.MovingAverage().update(cost.astype(jnp.bfloat16))
    assert half.value.dtype == jnp.float32 and half(cost.astype(jnp.float16)).dtype == jnp.float16
    with pytest.raises(AttributeError):
        half.value = 0


@pytest.mark.parametrize("jit", [False, True])
def test_costs_that_are_not_finite_are_skipped_and_counted(jit):
    update = jax.jit(lambda average, cost: average.update(cost)) if jit else cj.MovingAverage.update
    first = update(cj.MovingAverage(0.5), jnp.array([jnp.nan, jnp.inf]))
    assert (first.value, bool(first.seen), int(first.skipped)) == (0, False, 2)
    after = update(update(first, jnp.array([2.0, 4.0])), jnp.array([1.0, -jnp.inf, jnp.nan]))
    assert (after.value, bool(after.seen), int(after.skipped)) == (2, True, 4)
    same = update(after, jnp.full(3, jnp.inf, jnp.float16))  # as mixed precision overflows
    assert (same.value, int(same.skipped)) == (2, 7)


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2.0])
def test_a_decay_outside_its_range_is_an_error(decay):
    with pytest.raises(ValueError, match="decay"):
        cj.MovingAverage(decay)


# -- through the sample ------------------------------------------------------------------------------------------


def vjp(function, scores):
    """Value, and the gradient under weights that any backend can make again."""
    value, pull_back = jax.vjp(function, scores)
    return value, pull_back(jnp.linspace(-1, 2, value.size).reshape(value.shape).astype(value.dtype))[0]


@MASKED[0]
def test_straight_through_is_one_hot_with_the_gradient_of_the_probabilities(masking):
    scores = jnp.broadcast_to(SCORES, (6, K - 1))
    drawn, gradient = vjp(lambda s: cj.straight_through(KEY, s, PI, **masking), scores)
    assert_array_equal(drawn, np.eye(K)[cj.sample(KEY, scores, PI, **masking)])
    assert_allclose(gradient, vjp(lambda s: cj.catnat(s, PI, **masking), scores)[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("masking, temperature", thinned([(MASKINGS[0], 0.2), (MASKINGS[1], 5), (MASKINGS[1], 1.0)]))
def test_relaxed_samples_and_their_gradient_are_gumbel_softmax(masking, temperature):
    scores = jnp.broadcast_to(SCORES, (6, K - 1))

    def formula(s):
        noise = gumbel(KEY, (6, K), jnp.float32)
        return jax.nn.softmax((cj.log_catnat(s, PI, **masking) + noise) / temperature, axis=-1)

    settings = {"tau": temperature, **masking}
    expected, gradient = vjp(formula, scores)
    soft, soft_gradient = vjp(lambda s: cj.gumbel_softmax(KEY, s, PI, **settings), scores)
    hard, hard_gradient = vjp(lambda s: cj.gumbel_softmax(KEY, s, PI, hard=True, **settings), scores)
    assert_allclose(soft, expected, rtol=1e-5)
    assert_array_equal(hard.argmax(-1), expected.argmax(-1))
    assert_allclose(hard, np.eye(K)[hard.argmax(-1)], atol=1e-6)
    assert_allclose(soft_gradient, gradient, rtol=1e-4, atol=1e-6)
    assert_allclose(hard_gradient, gradient, rtol=1e-4, atol=1e-6)
    assert not soft[:, ~ALLOWED].any() or not masking


@MASKED[1]
def test_gumbel_straight_through_and_straight_through_are_exact_samples(masking):
    scores, probs = jnp.broadcast_to(SCORES, (50_000, K - 1)), np.asarray(cj.catnat(SCORES, K, **masking), np.float64)
    for estimator in (cj.straight_through, partial(cj.gumbel_softmax, tau=4.0, hard=True)):
        counts = np.asarray(estimator(KEY, scores, K, **masking).sum(0).round())
        assert not counts[probs == 0].any()
        expected = 50_000 * probs[probs > 0] / probs.sum()
        assert stats.chisquare(counts[probs > 0], expected, sum_check=False).pvalue > LEAST_P


@pytest.mark.parametrize("estimator", thinned([cj.gumbel_softmax, partial(cj.gumbel_softmax, hard=True)]))
def test_a_temperature_may_be_annealed_under_jit_and_has_a_gradient(estimator):
    scores = jnp.broadcast_to(SCORES, (3, K - 1))
    for masking in (MASKINGS[0], MASKINGS[1]):

        def soft(t, masking=masking):
            return (estimator(KEY, scores, K, tau=t, **masking) * jnp.arange(K)).sum()

        slope = jax.jit(jax.grad(soft))(0.8)
        assert jnp.isfinite(slope) and slope != 0
    rows = estimator(KEY, scores, K, tau=jnp.array([0.1, 1.0, 10.0]))
    for row, t in enumerate([0.1, 1.0, 10.0]):
        assert_allclose(rows[row], estimator(KEY, scores, K, tau=t)[row], rtol=1e-5)


@pytest.mark.parametrize("estimator", [cj.gumbel_softmax, partial(cj.gumbel_softmax, hard=True)])
@pytest.mark.parametrize("temperature", [0, -1.0, float("inf"), float("nan"), np.zeros(()), jnp.zeros(())])
def test_a_temperature_must_be_a_finite_number_above_zero(estimator, temperature):
    with pytest.raises(ValueError, match="tau"):
        estimator(KEY, jnp.zeros(3), 4, tau=temperature)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("estimator", [cj.straight_through, cj.gumbel_softmax, partial(cj.gumbel_softmax, hard=True)])
def test_half_precision_stays_half_precision(estimator, dtype):
    drawn, gradient = vjp(lambda s: estimator(KEY, s, K), SCORES.astype(dtype))
    assert drawn.dtype == gradient.dtype == dtype and jnp.isfinite(gradient).all()


# -- without replacement -----------------------------------------------------------------------------------------


@MASKED[1]
@pytest.mark.parametrize("length", [1, 3])
def test_the_order_is_that_of_sequential_sampling(masking, length):
    probs, draws = np.asarray(cj.catnat(SCORES, PI, **masking), np.float64), 50_000
    probs /= probs.sum()
    drawn = cj.sample_without_replacement(KEY, jnp.broadcast_to(SCORES, (draws, K - 1)), length, PI, **masking)
    assert drawn.shape == (draws, length) and drawn.dtype == jnp.int32
    places = K ** np.arange(length)
    counts = np.bincount(np.asarray(drawn) @ places, minlength=K**length)
    orders = list(itertools.permutations(np.flatnonzero(probs), length))
    expected = []
    for order in orders:
        left = 1 - np.concatenate(([0.0], np.cumsum(probs[list(order)])[:-1]))
        expected.append(draws * np.prod(probs[list(order)] / left))
    found = [counts[np.array(order) @ places] for order in orders]
    assert sum(found) == draws
    assert len(orders) == 1 or stats.chisquare(found, expected).pvalue > LEAST_P


@MASKED[0]
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_drawing_all_is_a_permutation_of_what_is_allowed(masking, dtype):
    allowed = np.flatnonzero(masking.get("mask", np.ones(K, bool)))
    scores = jnp.asarray(draw(300, 2, K - 1, spread=2), dtype)
    drawn = cj.sample_without_replacement(KEY, scores, len(allowed), K, **masking)
    assert_array_equal(np.sort(drawn), np.broadcast_to(allowed, (300, 2, len(allowed))))


def test_classes_without_mass_come_last_and_forbidden_ones_never():
    pi = catnat.Parameterization(4, catnat.Natural(tail=0.0, floor=0.0))
    scores = jnp.broadcast_to(jnp.array([100.0, 0.0, 0.0]), (500, 3))  # all mass on the right half
    drawn = np.asarray(cj.sample_without_replacement(KEY, scores, 4, pi))
    assert (drawn[:, :2] >= 2).all() and (np.sort(drawn) == np.arange(4)).all()
    assert 150 < drawn[:, 3].sum() < 350  # and the two that have none, in any order
    mask = np.array([False, True, True, True])
    drawn = cj.sample_without_replacement(KEY, scores, 3, pi, mask=mask)
    assert (drawn[:, 2] == 1).all() and (drawn[:, :2] >= 2).all()


def test_it_goes_through_jit_vmap_and_empty_batches():
    scores, keys = jnp.asarray(draw(4, K - 1), jnp.float32), jax.random.split(KEY, 4)
    mapped = jax.jit(jax.vmap(lambda k, s: cj.sample_without_replacement(k, s, 3, K, mask=ALLOWED)))(keys, scores)
    rows = [cj.sample_without_replacement(k, s, 3, K, mask=ALLOWED) for k, s in zip(keys, scores, strict=True)]
    assert_array_equal(mapped, rows)
    assert cj.sample_without_replacement(KEY, jnp.zeros((0, 4)), 2, K, mask=np.ones((0, 5), bool)).shape == (0, 2)
    assert_array_equal(cj.sample_without_replacement(KEY, jnp.zeros((3, 0)), 1, 1), np.zeros((3, 1)))


@pytest.mark.parametrize("num_samples", [0, -1, 6])
def test_more_than_there_are_is_an_error(num_samples):
    with pytest.raises(ValueError, match=rf"num_samples must lie in \[1, 5\].*got {num_samples}"):
        cj.sample_without_replacement(KEY, SCORES, num_samples, K)


def test_more_than_a_row_allows_is_an_error_and_so_is_no_whole_number():
    mask = np.array([[True] * 5, [True, True, False, False, False]])
    with pytest.raises(ValueError, match="num_samples must not exceed the classes that a row allows, 2; got 3"):
        cj.sample_without_replacement(KEY, SCORES, 3, K, mask=mask)
    with pytest.raises(TypeError, match="num_samples"):
        cj.sample_without_replacement(KEY, SCORES, 2.0, K)
