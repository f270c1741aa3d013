"""Gradient estimators: unbiased where they say so, and each other one the gradient of what it says it is."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch.testing import assert_close

import catnat
import catnat.torch as ct
from tests.core.trees import make_tree

K = 5
PARAMETERIZATIONS = {
    "natural": catnat.Parameterization(K),
    "sigmoid": catnat.Parameterization(K, "sigmoid", make_tree("chain", K)),
    "clip": catnat.Parameterization(K, catnat.Natural(tail=0.0), make_tree("nested", K)),
}
EACH = pytest.mark.parametrize("pi", PARAMETERIZATIONS.values(), ids=PARAMETERIZATIONS)
ALLOWED = torch.tensor([True, False, True, True, False])
MASKED = pytest.mark.parametrize("masking", [{}, {"mask": ALLOWED}], ids=["free", "masked"])
COSTS = torch.tensor([3.0, -1.0, 0.5, 4.0, 2.0], dtype=torch.float64) + 10
SCORES = torch.tensor([0.4, -0.8, 1.1, 0.2], dtype=torch.float64)
BASELINES = {
    "none": lambda: None,
    "constant": lambda: 9.0,
    "moving average": lambda: ct.MovingAverage(0.9),
    "leave one out": lambda: ct.LeaveOneOut(),
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def estimates(baseline, pi, masking, groups=2000, samples=4, rounds=5):
    """[rounds * groups, K-1] gradient estimates, each from a few samples."""
    torch.manual_seed(0)
    found = []
    for _ in range(rounds):
        scores = SCORES.expand(groups, -1).clone().requires_grad_()
        policy = ct.CatnatCategorical(scores, pi, **masking)
        drawn = policy.sample((samples,))
        ct.score_function(COSTS[drawn], policy.log_prob(drawn), baseline).mean(0).sum().backward()
        found.append(scores.grad)
    return torch.cat(found)


# -- the score function ------------------------------------------------------------------------------------------


@EACH
@MASKED
@pytest.mark.parametrize("make_baseline", BASELINES.values(), ids=BASELINES)
def test_the_score_function_is_unbiased(pi, masking, make_baseline):
    scores = SCORES.clone().requires_grad_()
    (ct.catnat(scores, pi, **masking) * COSTS).sum().backward()
    found = estimates(make_baseline(), pi, masking)
    spread = found.std(0) / len(found) ** 0.5
    z = torch.where(spread > 1e-12, (found.mean(0) - scores.grad) / spread.clamp(min=1e-12), 0.0)
    assert_close(found.mean(0)[spread <= 1e-12], scores.grad[spread <= 1e-12])  # nodes that a mask made certain
    assert (2 * stats.norm.sf(z.abs().numpy()) > 1e-6).all()


@EACH
def test_a_baseline_lowers_the_variance_of_a_cost_with_an_offset(pi):
    bare, constant, left_out = (estimates(b, pi, {}).var(0).sum() for b in (None, 11.0, ct.LeaveOneOut()))
    assert left_out < 0.5 * bare and constant < 0.5 * bare
    # the first batch has no average yet; from then on it is as good as the constant
    assert estimates(ct.MovingAverage(), pi, {})[2000:].var(0).sum() < 0.5 * bare


@pytest.mark.parametrize("make_baseline", BASELINES.values(), ids=BASELINES)
def test_the_value_is_the_cost_and_the_costs_own_gradient_is_kept(make_baseline):
    scores, theta = SCORES.expand(3, -1).clone().requires_grad_(), torch.tensor(0.7, requires_grad=True)
    policy = ct.CatnatCategorical(scores, K)
    drawn = policy.sample((6,))
    cost = (drawn - theta) ** 2
    surrogate = ct.score_function(cost, policy.log_prob(drawn), make_baseline())
    assert_close(surrogate, cost, check_dtype=False)
    surrogate.sum().backward()
    assert_close(theta.grad, (2 * (theta - drawn)).sum())
    assert scores.grad.abs().sum() > 0


def test_one_sample_weighs_its_own_log_prob_by_cost_minus_baseline():
    log_prob = torch.tensor([[-1.0, -2.0], [-3.0, -4.0], [-5.0, -6.0]], requires_grad=True)
    cost = torch.tensor([[1.0, 10.0], [2.0, 20.0], [6.0, 60.0]])
    weights = {None: cost, 3: cost - 3, ct.LeaveOneOut(): cost - torch.tensor([[4.0, 40], [3.5, 35], [1.5, 15]])}
    weights[ct.LeaveOneOut(dim=-1)] = cost - cost.flip(-1)
    for baseline, weight in weights.items():
        (gradient,) = torch.autograd.grad(ct.score_function(cost, log_prob, baseline).sum(), log_prob)
        assert_close(gradient, weight)


def test_an_impossible_sample_leaves_the_rest_alone():
    scores = torch.zeros(3, requires_grad=True)
    log_prob = ct.log_prob(scores, torch.tensor([0, 1]), 4, mask=torch.tensor([False, True, True, True]))
    ct.score_function(torch.tensor([5.0, 7.0]), log_prob).sum().backward()
    (expected,) = torch.autograd.grad(7 * ct.log_catnat(scores, 4, mask=torch.arange(4) > 0)[1], scores)
    assert_close(scores.grad, expected)


@pytest.mark.parametrize("shape, dim", [((1, 4), 0), ((), 0), ((4, 1), 1)])
def test_leave_one_out_needs_two_samples(shape, dim):
    with pytest.raises(ValueError, match="at least 2 samples"):
        ct.LeaveOneOut(dim)(torch.zeros(shape))


def test_the_score_function_refuses_what_it_cannot_use():
    cost, log_prob = torch.zeros(3), torch.zeros(3, requires_grad=True)
    with pytest.raises(ValueError, match="one shape"):
        ct.score_function(cost, torch.zeros(3, 1))
    for baseline in ("mean", True, [0.0, 0.0, 0.0]):
        with pytest.raises(TypeError, match="baseline"):
            ct.score_function(cost, log_prob, baseline)
    for shape in ((4,), (3, 1), (1, 3)):
        with pytest.raises(ValueError, match=r"fit into the cost's shape \(3,\); got"):
            ct.score_function(cost, log_prob, torch.zeros(shape))


def test_log_probs_without_a_gradient_are_refused_where_one_is_wanted():
    cost, log_prob = torch.ones(3), torch.zeros(3, requires_grad=True)
    with pytest.raises(ValueError, match=r"log_prob must have a gradient.*got none: .*no_grad"):
        ct.score_function(cost, log_prob.detach())
    with pytest.raises(ValueError, match="are cost and log_prob swapped"):
        ct.score_function(log_prob, cost)
    with torch.no_grad():
        assert ct.score_function(cost, log_prob.detach()).equal(cost)
    # what differentiates in another way than by marking tensors is not held up
    torch.func.jvp(lambda p: ct.score_function(cost, p), (log_prob.detach(),), (cost,))
    assert_close(torch.func.grad(lambda p: ct.score_function(cost, p).sum())(log_prob.detach()), cost)


def test_a_value_network_is_a_baseline_that_the_policys_loss_does_not_train():
    cost, log_prob = torch.tensor([[1.0, 2.0], [4.0, 8.0]]), torch.zeros(2, 2, requires_grad=True)
    value = torch.tensor([0.5, 1.5], requires_grad=True)
    ct.score_function(cost, log_prob, value).sum().backward()
    assert_close(log_prob.grad, cost - value.detach())
    assert value.grad is None


# -- the moving average ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.6, 0.99])
def test_the_moving_average_is_set_by_the_first_batch_and_then_decays(decay):
    average, costs = ct.MovingAverage(decay), torch.randn(6, 4, generator=seeded())
    answers = [average(row) for row in costs]
    means = costs.mean(1)
    assert answers[0] == 0
    expected = means[0]
    for answer, mean in zip(answers[1:], means[1:], strict=True):
        assert_close(answer, expected)  # known before this batch was seen: else it would be biased
        expected = decay * expected + (1 - decay) * mean
    assert_close(average.value, expected)


def test_the_moving_average_travels_in_a_state_dict():
    average, restored = ct.MovingAverage(0.5), ct.MovingAverage(0.5)
    average(torch.tensor([4.0, 6.0]))
    restored.load_state_dict(average.state_dict())
    next_cost = torch.tensor([1.0], dtype=torch.float64)
    assert_close(restored(next_cost), torch.tensor(5.0, dtype=torch.float64))
    assert_close(restored.value, torch.tensor(3.0))
    assert not list(average.parameters())


def test_the_moving_average_leaves_out_costs_that_are_not_finite_and_counts_them():
    average = ct.MovingAverage(0.5)
    assert average(torch.tensor([torch.nan, torch.inf])) == 0 and not average.seen
    average(torch.tensor([2.0, torch.inf, 4.0]))
    average(torch.full((3,), torch.nan))
    assert average.value == 3 and average.skipped == 6
    average(torch.tensor([5.0]))
    assert average.value == 4
    ct.MovingAverage().load_state_dict({"value": torch.tensor(1.0), "seen": torch.tensor(True)})  # as of 0.2


def test_the_moving_average_passes_no_gradient():
    cost = torch.tensor([1.0, 2.0], requires_grad=True)
    average = ct.MovingAverage()
    average(cost)
    assert not average(cost).requires_grad and not average.value.requires_grad


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2.0])
def test_a_decay_outside_its_range_is_an_error(decay):
    with pytest.raises(ValueError, match="decay"):
        ct.MovingAverage(decay)


# -- through the sample ------------------------------------------------------------------------------------------


def vjp(output, scores, seed=2):
    weights = torch.randn(output.shape, dtype=output.dtype, generator=seeded(seed))
    return torch.autograd.grad(output, scores, weights)[0]


def gumbel_softmax(scores, pi, temperature, seed, masking):
    """F.gumbel_softmax's formula, with the noise that the seed gives."""
    log_p = ct.log_catnat(scores, pi, **masking)
    noise = -torch.empty_like(log_p).exponential_(generator=seeded(seed)).log()
    return torch.softmax((log_p + noise) / temperature, -1)


@EACH
@MASKED
def test_straight_through_is_one_hot_with_the_gradient_of_the_probabilities(pi, masking):
    scores = SCORES.expand(2, 3, -1).clone().requires_grad_()
    drawn = ct.straight_through(scores, pi, generator=seeded(), **masking)
    assert drawn.shape == (2, 3, K) and drawn.dtype == scores.dtype
    assert drawn.equal(F.one_hot(ct.sample(scores, pi, generator=seeded(), **masking), K).double())
    assert_close(vjp(drawn, scores), vjp(ct.catnat(scores, pi, **masking), scores))


@EACH
@MASKED
@pytest.mark.parametrize("temperature", [0.2, 1.0, 5])
def test_relaxed_samples_and_their_gradient_are_gumbel_softmax(pi, masking, temperature):
    scores = SCORES.expand(2, 3, -1).clone().requires_grad_()
    soft = ct.gumbel_softmax(scores, pi, tau=temperature, generator=seeded(1), **masking)
    expected = gumbel_softmax(scores, pi, temperature, 1, masking)
    assert_close(soft, expected)
    assert_close(soft.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    hard = ct.gumbel_softmax(scores, pi, tau=temperature, generator=seeded(1), hard=True, **masking)
    assert hard.detach().equal(F.one_hot(expected.argmax(-1), K).double())
    gradient = vjp(expected, scores)
    assert_close(vjp(soft, scores), gradient)
    assert_close(vjp(hard, scores), gradient)


def test_relaxed_samples_follow_torchs_own_gumbel_softmax():
    scores = SCORES.expand(50_000, -1)
    torch.manual_seed(0)
    mine = ct.gumbel_softmax(scores, K, tau=0.7)
    theirs = F.gumbel_softmax(ct.log_catnat(scores, K), tau=0.7)
    for k in range(K):
        assert stats.ks_2samp(mine[:, k].numpy(), theirs[:, k].numpy()).pvalue > 1e-6


@MASKED
def test_temperature_runs_from_one_hot_to_uniform(masking):
    scores = SCORES.expand(1000, -1)
    cold = ct.gumbel_softmax(scores, K, tau=1e-4, generator=seeded(), **masking)
    hard = ct.gumbel_softmax(scores, K, tau=1e-4, generator=seeded(), hard=True, **masking)
    assert (cold - hard).abs().amax(-1).median() == 0
    hot = ct.gumbel_softmax(scores, K, tau=1e6, generator=seeded(), **masking)
    uniform = ALLOWED.double() / ALLOWED.sum() if masking else torch.full((K,), 1 / K, dtype=torch.float64)
    assert_close(hot, uniform.expand_as(hot), atol=1e-4, rtol=0)


@pytest.mark.parametrize("estimator", [ct.straight_through, ct.gumbel_softmax, partial(ct.gumbel_softmax, hard=True)])
def test_a_forbidden_class_gets_nothing_and_breaks_no_gradient(estimator):
    scores = (3 * torch.randn(500, K - 1, generator=seeded())).requires_grad_()
    drawn = estimator(scores, K, generator=seeded(), mask=ALLOWED)
    assert not drawn[:, ~ALLOWED].any() and drawn.isfinite().all()
    assert vjp(drawn, scores).isfinite().all()


@pytest.mark.parametrize("estimator", [ct.gumbel_softmax, partial(ct.gumbel_softmax, hard=True)])
@pytest.mark.parametrize("temperature", [0, -1.0, float("inf"), float("nan")])
def test_a_temperature_must_be_a_finite_number_above_zero(estimator, temperature):
    with pytest.raises(ValueError, match="tau"):
        estimator(torch.zeros(3), 4, tau=temperature)


@pytest.mark.parametrize("estimator", [ct.gumbel_softmax, partial(ct.gumbel_softmax, hard=True)])
def test_a_temperature_may_be_learned(estimator):
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    weights = torch.arange(K, dtype=torch.float64)

    def value(t):
        return ct.gumbel_softmax(SCORES, K, tau=t, generator=seeded()) @ weights

    (estimator(SCORES, K, tau=temperature, generator=seeded()) @ weights).backward()
    assert_close(temperature.grad.item(), ((value(0.7 + 1e-6) - value(0.7 - 1e-6)) / 2e-6).item(), rtol=1e-6, atol=1e-8)
    each = torch.tensor([[0.5], [2.0]], dtype=torch.float64)
    assert estimator(SCORES.expand(2, -1), K, tau=each).shape == (2, K)
    for wrong in (torch.tensor(0.0), torch.tensor([1.0, -1.0]), torch.tensor(torch.nan)):
        with pytest.raises(ValueError, match="tau must be finite and above 0"):
            estimator(SCORES, K, tau=wrong)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("estimator", [ct.straight_through, ct.gumbel_softmax, partial(ct.gumbel_softmax, hard=True)])
def test_half_precision_stays_half_precision(estimator, dtype):
    scores = SCORES.to(dtype).requires_grad_()
    drawn = estimator(scores, K, generator=seeded())
    assert drawn.dtype == dtype and vjp(drawn.float(), scores).isfinite().all()
