"""What autograd's users may rely on beyond values: hooks, caches, gates and the ends of the number range."""

import math

import pytest
import torch
from torch.distributions import Independent

import catnat
import catnat.torch as ct
from catnat import Natural, Parameterization

SHAPES = [(4, 7), (1000, 7), (1000, 99)]  # one for every way down on a CPU


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ["sigmoid", "natural", "paper"])
def test_a_hook_sees_one_gradient_once_also_when_the_graph_is_kept(shape, activation):
    x, pi = torch.randn(shape, requires_grad=True), Parameterization(shape[1] + 1, activation)
    seen = []
    x.register_hook(lambda gradient: seen.append(gradient.detach()))
    upstream = torch.randn(shape[0], shape[1] + 1)
    gradients = []
    for create_graph in (False, True):
        value = (ct.log_catnat(x, pi) * upstream).sum()
        gradients.append(torch.autograd.grad(value, x, create_graph=create_graph)[0])
    assert len(seen) == 2
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_a_retained_gradient_is_not_doubled_by_the_second_order():
    b = torch.randn(1000, 7, requires_grad=True)
    x = b * 1
    x.retain_grad()
    ct.log_catnat(x, Parameterization(8, "sigmoid"))[:, 0].sum().backward(create_graph=True)
    torch.testing.assert_close(x.grad, b.grad)


def test_reading_probabilities_in_inference_mode_costs_no_gradient_later():
    scores = torch.randn(3, 7, requires_grad=True)
    policy = ct.CatnatCategorical(scores, 8)
    with torch.inference_mode():
        assert policy.mode.shape == policy.probs.shape[:-1]
    for value in (policy.log_prob(torch.tensor([0, 1, 2])), policy.probs, policy.entropy()):
        assert value.requires_grad


@pytest.mark.parametrize("floor", [1e-100, 1e-60, 1e-39])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_floor_below_the_number_range_makes_no_nan(shape, floor):
    x = torch.full(shape, 0.3)
    x[:, 0] = 4.0
    x.requires_grad_()
    p = ct.catnat(x, Parameterization(shape[1] + 1, Natural(tail=0.0, floor=floor)))
    (gradient,) = torch.autograd.grad(p[:, 0].sum(), x)
    assert not p.isnan().any() and not gradient.isnan().any()


def test_kl_has_a_finite_gradient_where_p_never_comes_by():
    pi = Parameterization(4, Natural(tail=0.0, floor=0.0))
    p = torch.tensor([math.pi + 1, 0.2, 0.1], requires_grad=True)
    q = torch.tensor([0.5, math.pi + 1, 0.1], requires_grad=True)
    value = ct.kl_divergence(p, q, pi)
    assert value.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(value, (p, q)))


def test_a_coin_that_is_never_tossed_counts_for_nothing_in_a_kl():
    """The left half is never reached by p, and there p and q are infinitely far apart."""
    pi = catnat.Parameterization(4, "sigmoid")
    p, q = (ct.CatnatCategorical(torch.tensor(s), pi) for s in ([math.inf, math.inf, 0.3], [0.5, -math.inf, 0.3]))
    expected = torch.nn.functional.softplus(torch.tensor(-0.5))  # -log of q's share of the right half
    torch.testing.assert_close(torch.distributions.kl_divergence(p, q), expected)


@pytest.mark.parametrize("score", [-math.inf, -1e30, 1e30, math.inf])
def test_an_infinite_natural_score_is_drawn_at_its_floor(score):
    pi = Parameterization(2, Natural(tail=0.0, floor=0.1))
    scores = torch.tensor([score])
    share = ct.sample(scores, pi, sample_shape=(100_000,), generator=torch.Generator().manual_seed(0)).float().mean()
    assert abs(share - ct.catnat(scores, pi)[1]) < 0.01


@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
def test_shapes_come_without_values_on_the_meta_device(activation):
    pi = Parameterization(8, activation)
    assert ct.log_catnat(torch.zeros(3, 7, device="meta"), pi).shape == (3, 8)


@pytest.mark.parametrize("width", [7, 99])
@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
def test_a_jit_trace_is_the_plain_walk(width, activation):
    catnat.clear_caches()  # the constants made on the way must not become part of the trace
    pi = Parameterization(width + 1, activation)
    traced = torch.jit.trace(ct.LogCatnat(pi), torch.randn(4, width))
    fresh = torch.randn(4, width)
    fresh[0, 0] = math.inf
    torch.testing.assert_close(traced(fresh), ct.log_catnat(fresh, pi))


@pytest.mark.parametrize("activation", ["natural", "paper"])
def test_an_index_out_of_range_is_refused_under_vmap_too(activation):
    pi = Parameterization(8, activation)
    with pytest.raises((IndexError, RuntimeError), match=r"index|range"):
        torch.func.vmap(lambda s, k: ct.log_prob(s, k, pi))(torch.zeros(2, 7), torch.tensor([-1, 3]))


def test_a_nan_score_stays_visible_in_the_natural_gradient():
    scores = torch.tensor([math.nan, 0.0, 0.0], requires_grad=True)
    ct.log_catnat(ct.natural_gradient(scores, 4), 4)[0].backward()
    assert scores.grad.isnan().any()


def test_the_support_of_several_parts_has_their_event_shape():
    several = ct.MultiCatnat(torch.zeros(7, 6), [3, 5])
    assert several.support.event_dim == len(several.event_shape) == 1
    assert several.support.check(several.sample()).shape == (7,)
    assert Independent(several, 1).support.event_dim == 2


def test_validation_is_passed_on_to_the_inner_distribution():
    assert ct.OneHotCatnat(torch.full((3,), math.nan), 4, validate_args=False).probs.isnan().all()


@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
def test_a_forbidden_class_pulls_at_no_score(activation):
    scores = torch.randn(5, requires_grad=True)
    mask = torch.tensor([True, False, True, True, False, True])
    forbidden = ct.log_catnat(scores, Parameterization(6, activation), mask=mask)[~mask]
    assert (forbidden == -math.inf).all()
    (gradient,) = torch.autograd.grad(forbidden.sum(), scores)
    assert (gradient == 0).all()


@pytest.mark.parametrize("size", [10, 3000])  # all classes, and one path
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_class_weights_have_a_gradient_too(size, reduction):
    x, target = torch.randn(64, size - 1), torch.randint(size, (64,))
    weight = torch.rand(size, requires_grad=True)
    losses = -ct.log_prob(x, target, size) * weight[target]
    expected = losses.sum() / (weight[target].sum() if reduction == "mean" else 1)
    found = ct.cross_entropy(x, target, size, weight=weight, reduction=reduction)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, weight)[0] for loss in (found, expected)))
