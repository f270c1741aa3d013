"""Latent variables: the estimators against enumeration and others' code, and what the module promises."""

from __future__ import annotations

import copy
import io
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Independent, OneHotCategorical, kl_divergence

import catnat
import catnat.torch as ct
from catnat.torch import latents

HEADS = ("softmax", "natural", "sigmoid", "paper")
PULL = torch.randn(3 * 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
seeded = torch.Generator().manual_seed


def slope_of(module: ct.CategoricalLatent) -> Tensor:
    found = module.linear.weight.grad
    assert found is not None
    return found


def cost(z: Tensor) -> Tensor:
    return torch.tanh(z.flatten(-2) @ PULL[: z.shape[-2] * z.shape[-1]]).square().sum(-1)


def exact(log_p: Tensor) -> Tensor:
    """The expected cost of one row of variables, by enumeration."""
    variables, classes = log_p.shape
    total = log_p.new_zeros(())
    for ids in itertools.product(range(classes), repeat=variables):
        z = F.one_hot(torch.tensor(ids), classes).double()
        total = total + (log_p * z).sum().exp() * cost(z)
    return total


def test_exact_samples_are_one_hot_and_distributed_as_q() -> None:
    log_p = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01]).log().expand(20_000, 5)
    for name, estimator in latents.ESTIMATORS.items():
        z = estimator(log_p, 0.7, generator=seeded(1))
        shares = z.mean(0)
        if name != "gumbel-relaxed":
            assert ((z == 0) | ((z - 1).abs() < 1e-6)).all(), name
            error = (shares - log_p[0].exp()) / (log_p[0].exp() / 20_000).sqrt()
            assert error.abs().max() < 4.5, name
        assert torch.allclose(z.sum(-1), torch.ones(()), atol=1e-5), name


@pytest.mark.parametrize("head", ["softmax", "natural"])
def test_unbiased_estimators_are_unbiased(head: str) -> None:
    scores = torch.randn(2, 5 - (head != "softmax"), dtype=torch.float64, generator=seeded(2)).requires_grad_()

    def log_p(s: Tensor) -> Tensor:
        return s.log_softmax(-1) if head == "softmax" else ct.log_catnat(s, 5)

    (want,) = torch.autograd.grad(exact(log_p(scores)), scores)
    many = scores.detach().expand(100_000, -1, -1).clone().requires_grad_()
    pair = latents.antithetic_pair(log_p(many), generator=seeded(3))
    estimate = latents.antithetic_cost(cost(pair.z), pair)
    (got,) = torch.autograd.grad(estimate.sum(), many)
    assert ((got.mean(0) - want) / got.std(0) * math.sqrt(len(got))).abs().max() < 4.5
    costs = estimate.detach()
    assert abs(costs.mean() - exact(log_p(scores)).detach()) < 4.5 * costs.std() / math.sqrt(len(costs))


def test_reinmax_is_exact_for_quadratic_costs() -> None:
    # Liu and others, 2023: at tau = 1
    scores = torch.randn(1, 5, dtype=torch.float64, generator=seeded(4)).requires_grad_()
    form = torch.randn(5, 5, dtype=torch.float64, generator=seeded(5))

    def quadratic(z: Tensor) -> Tensor:
        return ((z @ form) * z).sum((-1, -2))

    p = scores.softmax(-1)
    (want,) = torch.autograd.grad((p[0] * form.diagonal()).sum(), scores)
    many = scores.detach().expand(100_000, 1, 5).clone().requires_grad_()
    z = latents.reinmax(many.log_softmax(-1), generator=seeded(6))
    (got,) = torch.autograd.grad(quadratic(z).sum(), many)
    assert ((got.mean(0) - want) / got.std(0) * math.sqrt(len(got))).abs().max() < 4.5


def test_reinmax_gradient_is_the_formula() -> None:
    # the backward pass of the authors' package `reinmax` 0.1.0, written out
    logits = torch.randn(6, 2, 5, dtype=torch.float64, generator=seeded(7)).requires_grad_()
    z = latents.reinmax(logits.log_softmax(-1), 1.3, generator=seeded(8))
    (got,) = torch.autograd.grad(cost(z).sum(), logits)
    at_z = torch.autograd.grad(cost(own := z.detach().requires_grad_()).sum(), own)[0]

    def pulled(g: Tensor, p: Tensor) -> Tensor:
        return g * p - p * (g * p).sum(-1, keepdim=True)

    middle = (own.detach() + (logits / 1.3).softmax(-1)) / 2
    want = pulled(2 * at_z, middle) + pulled(-at_z / 2, logits.softmax(-1))
    torch.testing.assert_close(got, want)


def test_gumbel_samples_are_those_of_torch_under_the_same_noise() -> None:
    logits = torch.randn(6, 3, 5, dtype=torch.float64, generator=seeded(9)).requires_grad_()
    for name, hard in (("gumbel", True), ("gumbel-relaxed", False)):
        torch.manual_seed(10)
        theirs = F.gumbel_softmax(logits, tau=0.7, hard=hard)
        torch.manual_seed(10)
        ours = latents.ESTIMATORS[name](logits.log_softmax(-1), 0.7, generator=None)
        torch.testing.assert_close(ours, theirs)
        (a,), (b,) = (torch.autograd.grad(cost(z).sum(), logits, retain_graph=True) for z in (ours, theirs))
        torch.testing.assert_close(a, b)


def test_gumbel_rao_is_the_mean_of_gumbel_softmax_given_the_sample() -> None:
    log_p = torch.randn(1, 4, dtype=torch.float64, generator=seeded(11)).log_softmax(-1)
    many = log_p.expand(200_000, 4).clone().requires_grad_()
    pull = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    means = []
    for estimator in (latents.gumbel_softmax, lambda *a, **k: latents.gumbel_rao(*a, samples=2, **k)):
        z = estimator(many, 0.8, generator=seeded(12))
        (got,) = torch.autograd.grad((z * pull).sum(), many)
        drawn = z.detach().argmax(-1) == 1
        means.append((got[drawn].mean(0), got[drawn].std(0) / math.sqrt(int(drawn.sum()))))
    (a, e), (b, f) = means
    assert ((a - b) / (e.square() + f.square()).sqrt()).abs().max() < 4.5
    assert (f < e).all()


@pytest.mark.parametrize("head", HEADS)
def test_the_module_is_what_it_is_made_of(head: str) -> None:
    torch.manual_seed(0)
    module = ct.CategoricalLatent(8, 3, 5, head=head, prior=torch.tensor([0.4, 0.3, 0.1, 0.1, 0.1]), unimix=0.05)
    h = torch.randn(64, 8, requires_grad=True)
    q = module(h, generator=seeded(1))
    assert q.z.shape == q.log_q.shape == (64, 3, 5) and q.indices.shape == q.kl.shape == (64, 3)
    assert torch.equal(module.decode(q.indices), q.z.detach().round())
    torch.testing.assert_close(q.log_q.exp().sum(-1), torch.ones(64, 3))
    assert q.log_q.exp().min() >= 0.05 / 5 * 0.999
    ours, theirs = module.distribution(h), Independent(OneHotCategorical(logits=module.log_prior.expand(64, 3, 5)), 1)
    torch.testing.assert_close(q.kl.sum(-1), kl_divergence(ours, theirs))
    torch.testing.assert_close(q.log_prob, ours.log_prob(q.z.detach().round()))
    counts = torch.stack([torch.bincount(column, minlength=5) for column in q.indices.T]) / 64
    stats = q.stats()
    torch.testing.assert_close(stats.usage, counts)
    torch.testing.assert_close(stats.perplexity, torch.special.entr(counts).sum(-1).exp())
    torch.testing.assert_close(stats.entropy, ours.base_dist.entropy().mean(0))
    torch.testing.assert_close(stats.dead, (counts == 0).float().mean(-1))
    assert torch.equal(module.argmax(h), q.log_q.argmax(-1))
    (q.z.square().sum() + q.loss().mean()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_draws_follow_q_and_the_prior() -> None:
    torch.manual_seed(0)
    prior = torch.tensor([0.7, 0.2, 0.1])
    module = ct.CategoricalLatent(4, 2, 3, prior=prior)
    h = torch.randn(1, 4).expand(20_000, 4)
    for ids, want in (
        (module.sample(h, generator=seeded(1)), module.log_probs(h[:1])[0].exp()),
        (module.sample_prior((20_000,), generator=seeded(2)), prior.expand(2, 3)),
    ):
        shares = F.one_hot(ids, 3).double().mean(0)
        assert ((shares - want) / (want / 20_000).sqrt()).abs().max() < 4.5


def test_feature_maps_and_codes() -> None:
    torch.manual_seed(0)
    module = ct.CategoricalLatent(6, 2, 16, embed=5, channel_first=True)
    images = torch.randn(3, 6, 7, 4)
    q = module(images)
    assert q.z.shape == (3, 2 * 5, 7, 4) and q.indices.shape == (3, 7, 4, 2) and q.loss().shape == (3, 7, 4)
    torch.testing.assert_close(module.decode(q.indices), q.z.detach(), atol=1e-5, rtol=1e-5)
    rows = copy.deepcopy(module)
    rows.channel_first = False
    torch.testing.assert_close(rows.log_probs(images.movedim(1, -1)), q.log_q)


def test_kl_is_balanced_and_freed() -> None:
    torch.manual_seed(0)
    post, prior = ct.CategoricalLatent(4, 3, 5), ct.CategoricalLatent(4, 3, 5, head="softmax")
    h = torch.randn(6, 4)

    def slopes(balance: float | None) -> list[Tensor]:
        loss = post(h, prior(h).log_q).loss(beta=2.0, balance=balance).sum()
        return list(torch.autograd.grad(loss, [post.linear.weight, prior.linear.weight]))

    both, mixed = slopes(None), slopes(0.8)
    torch.testing.assert_close(mixed, [0.2 * both[0], 0.8 * both[1]])
    q = post(h, prior(h).log_q)
    free = q.kl.sum(-1).max().item()
    assert torch.autograd.grad(q.loss(free_nats=free + 1).sum(), post.linear.weight)[0].abs().max() == 0
    assert (q.loss(free_nats=free + 1) == free + 1).all()


def test_tau_follows_a_schedule_that_is_saved() -> None:
    module = ct.CategoricalLatent(4, 2, 3, estimator="gumbel-relaxed", tau=lambda step: (1 - step / 4).clamp(min=0.25))
    h = torch.randn(5, 4)
    warm = module(h, generator=seeded(0)).z.detach()
    for _ in range(5):
        module(h)
    module.eval()
    cold, steps = module(h, generator=seeded(0)).z.detach(), module.steps.clone()
    assert steps == 6 and (cold.amax(-1) > warm.amax(-1)).all()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    again = ct.CategoricalLatent(4, 2, 3, tau=0.5)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again.steps == steps


def test_casts_touch_neither_steps_nor_the_prior() -> None:
    module = ct.CategoricalLatent(4, 32, 16, head="softmax", tau=lambda step: (1 - step / 1000).clamp(min=0.5))
    module.reset_parameters()
    module.steps.fill_(600)
    module = module.bfloat16()
    h = torch.zeros(2, 4, dtype=torch.bfloat16)
    torch.nn.init.zeros_(module.linear.weight)
    torch.nn.init.zeros_(module.linear.bias)
    assert module(h).loss().abs().max() < 1e-5 and int(module.steps) == 601
    module(h, tau=0.7)
    assert int(module.steps) == 601  # a temperature of one's own counts nothing


def test_a_learned_temperature_has_a_finite_gradient_where_classes_are_forbidden() -> None:
    log_p = torch.tensor([[0.5, 0.5, 0.0, 0.0]]).log()
    for name, estimator in latents.ESTIMATORS.items():
        tau = torch.tensor(0.7, requires_grad=True)
        z = estimator(log_p, tau, generator=seeded(3))
        assert not z[0, 2:].detach().any(), name
        if z.requires_grad:
            (z * torch.arange(4.0)).sum().backward()
            assert tau.grad is not None and tau.grad.isfinite(), name


def test_what_two_costs_must_look_like() -> None:
    pair = latents.antithetic_pair(torch.zeros(6, 3, 4).log_softmax(-1))
    for wrong in ((2, 6, 1), (3, 6), (6,), (2, 1)):
        with pytest.raises(ValueError, match=r"cost must be \[2, ...\]"):
            latents.antithetic_cost(torch.zeros(wrong), pair)
    assert latents.antithetic_cost(torch.zeros(2, 6), pair).shape == (6,)


def test_score_function_goes_through_the_log_probability() -> None:
    torch.manual_seed(0)
    module = ct.CategoricalLatent(4, 2, 3, estimator="score-function")
    q = module(torch.randn(8, 4))
    assert not q.z.requires_grad
    ct.score_function(q.z[..., 0].sum(-1), q.log_prob).mean().backward()
    assert slope_of(module).abs().sum() > 0


@pytest.mark.parametrize("estimator", latents.ESTIMATORS)
def test_extreme_scores_have_finite_gradients(estimator: str) -> None:
    for head in ("softmax", "paper"):
        module = ct.CategoricalLatent(1, 2, 6, head=head, estimator=estimator)
        q = module(torch.full((4, 1), 1e4))
        (q.z.sum() + q.loss().sum()).backward()
        assert slope_of(module).isfinite().all(), head


@pytest.mark.parametrize("estimator", ["relaxed-descent", "gumbel-rao"])
def test_estimators_compile_whole(estimator: str) -> None:
    program = torch.compile(ct.CategoricalLatent(4, 2, 6, estimator=estimator), fullgraph=True, backend="eager")
    assert program(torch.zeros(3, 4)).z.shape == (3, 2, 6)


def test_compiled_as_eager() -> None:
    torch.manual_seed(0)
    module = ct.CategoricalLatent(6, 3, 5, prior="learned", embed=4, unimix=0.01)
    program = torch.compile(module, fullgraph=True, backend="aot_eager")
    h = torch.randn(7, 6)
    for q in (module(h), program(h)):
        module.zero_grad()
        torch.testing.assert_close(q.log_q, module.log_probs(h))
        assert torch.equal(q.z.detach(), q.z.detach()) and q.z.shape == (7, 3, 4)
        q.loss().mean().backward()
        slope = slope_of(module).clone()
    module.zero_grad()
    module(h).loss().mean().backward()
    torch.testing.assert_close(module.linear.weight.grad, slope)


def test_exports_copies_casts_and_meta() -> None:
    module = ct.CategoricalLatent(6, 3, 5).eval()
    program = torch.export.export(module, (torch.randn(2, 6),))
    assert program.module()(torch.randn(2, 6)).z.shape == (2, 3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        q = module(torch.randn(2, 6))
    assert q.log_q.dtype == torch.float32
    assert module.bfloat16()(torch.randn(2, 6, dtype=torch.bfloat16)).z.dtype == torch.bfloat16
    with torch.device("meta"):
        empty = ct.CategoricalLatent(6, 3, 5, prior=[0.5, 0.2, 0.1, 0.1, 0.1], embed=2)
    empty.to_empty(device="cpu").reset_parameters()
    made = ct.CategoricalLatent(6, 3, 5, prior=[0.5, 0.2, 0.1, 0.1, 0.1], embed=2)
    torch.testing.assert_close(empty.log_prior, made.log_prior)
    made.load_state_dict(empty.state_dict())
    with pytest.raises(RuntimeError, match="another parameterization"):
        ct.CategoricalLatent(6, 3, 5, head="sigmoid").load_state_dict(ct.CategoricalLatent(6, 3, 5).state_dict())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"classes": 1}, "classes must be at least 2"),
        ({"variables": 0}, "variables must be a whole number above 0; got 0"),
        ({"tau": 0.0}, "tau must be a finite number above 0; got 0.0"),
        ({"unimix": 1.0}, "unimix must be below 1"),
        ({"head": "natral"}, "head must be"),
        ({"head": catnat.Parameterization(4)}, "head must have as many classes as the latent, 5"),
        ({"estimator": "gumble"}, "estimator must be"),
        ({"prior": "gauss"}, "prior must be"),
        ({"prior": torch.zeros(5)}, "prior must be .* above 0"),
        ({"embed": 1.5}, "embed must be a whole number above 0; got 1.5"),
    ],
)
def test_bad_settings_are_named(wrong: dict[str, object], message: str) -> None:
    settings: dict[str, object] = {"in_features": 4, "variables": 2, "classes": 5} | wrong
    with pytest.raises((ValueError, TypeError), match=message):
        ct.CategoricalLatent(**settings)  # type: ignore[arg-type]


def test_bad_inputs_are_named() -> None:
    module = ct.CategoricalLatent(4, 2, 5)
    with pytest.raises(ValueError, match=r"h must be 4 wide along dim -1; got shape \(3, 5\)"):
        module(torch.zeros(3, 5))
    with pytest.raises(TypeError, match=r"h must be a floating-point tensor; got torch.int64"):
        module(torch.zeros(3, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"prior must be \[\.\.\., 2, 5\]; got \(2, 6\)"):
        module(torch.zeros(3, 4), torch.zeros(2, 6))
    with pytest.raises(ValueError, match="prior must be log-probabilities; got 5"):
        module(torch.zeros(3, 4), torch.full((2, 5), 5.0))
    with pytest.raises(ValueError, match="prior must be None where the module learns one"):
        ct.CategoricalLatent(4, 2, 5, prior="learned")(torch.zeros(3, 4), module.log_prior)
    with pytest.raises(ValueError, match="tau must be a finite number above 0; got 0"):
        latents.reinmax(torch.zeros(2, 3), 0.0)
    with pytest.raises(ValueError, match=r"indices must be \[\.\.\., 2\], the variables last; got shape \(2, 7\)"):
        module.decode(torch.zeros(2, 7, dtype=torch.long))
    with pytest.raises(TypeError, match="indices must be an integer"):
        module.decode(torch.zeros(3, 2))
