"""Latent variables: the estimators against enumeration and others' code, and what the module promises."""

from __future__ import annotations

import copy
import io
import math
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributions import Independent, OneHotCategorical, kl_divergence
from torch.nn.parallel import DistributedDataParallel

import catnat
import catnat.torch as ct
from catnat.torch import latents
from tests import latents as judge
from tests.latents import CLASSES, ESTIMATORS, HEADS, TAU, cost, is_level

seeded = torch.Generator().manual_seed


def made(head: str = "natural", estimator: str = "gumbel", **settings: Any) -> ct.CategoricalLatent:
    torch.manual_seed(0)
    return ct.CategoricalLatent(6, 3, CLASSES, head=HEADS[head], estimator=estimator, tau=TAU, **settings)


def slope_of(module: ct.CategoricalLatent) -> Tensor:
    found = module.linear.weight.grad
    assert found is not None
    return found


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_samples_and_gradients_are_the_formulas(estimator: str, head: str) -> None:
    module, h = made(head, estimator).double(), 0.4 * torch.randn(41, 6, dtype=torch.float64, generator=seeded(2))
    leaves = [module.linear.weight, module.linear.bias]
    q = module(h, generator=seeded(1))
    log_p = judge.log_probs(module.linear(h).unflatten(-1, (3, -1)), head)
    torch.testing.assert_close(q.log_q, log_p)
    z, soft = judge.sample_and_soft(estimator, log_p, judge.noise_of(estimator, log_p.shape, seeded(1)))
    torch.testing.assert_close(q.z, z, rtol=0, atol=1e-12)
    torch.testing.assert_close(q.z.sum(-1), torch.ones_like(q.z[..., 0]))
    assert set(q.z.detach().round(decimals=9).unique().tolist()) == {0, 1} or estimator == "gumbel-relaxed"
    if estimator == "score-function":
        assert not q.z.requires_grad
        found, expected = q.log_prob, (log_p * z).sum((-1, -2))
    else:
        at = z.detach().requires_grad_()
        (pull,) = torch.autograd.grad(cost(at, torch).sum(), at)
        found, expected = cost(q.z, torch), (soft * pull).sum((-1, -2))
    got, want = (torch.autograd.grad(f.sum(), leaves, retain_graph=True) for f in (found, expected))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_noise_that_is_handed_over_is_noise_that_is_drawn(estimator: str) -> None:
    log_p = torch.randn(7, 3, CLASSES, dtype=torch.float64, generator=seeded(2)).log_softmax(-1).requires_grad_()
    first, inner = (-drawn.log() for drawn in judge.noise_of(estimator, log_p.shape, seeded(1)))
    noise = torch.cat((first[None], inner)) if estimator == "gumbel-rao" else first
    heat = torch.linspace(0.5, 1.5, 7, dtype=torch.float64)[:, None, None]  # one a row
    drawn = latents.ESTIMATORS[estimator](log_p, heat, generator=seeded(1))
    given = latents.ESTIMATORS[estimator](log_p, heat, noise=noise)
    torch.testing.assert_close(given, drawn)
    if estimator != "score-function":
        slopes = (torch.autograd.grad(cost(z, torch).sum(), log_p)[0] for z in (given, drawn))
        torch.testing.assert_close(*slopes)
    with pytest.raises(ValueError, match=r"noise must have the shape .*; got \(3, 5\)"):
        latents.ESTIMATORS[estimator](log_p, heat, noise=torch.zeros(3, 5))
    with pytest.raises(ValueError, match="leave one of them out"):
        latents.ESTIMATORS[estimator](log_p, heat, noise=noise, generator=seeded(1))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_draws_follow_q(estimator: str) -> None:
    log_p = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01]).log()
    z = latents.ESTIMATORS[estimator](log_p.expand(20_000, 5), TAU, generator=seeded(1))
    assert is_level(torch.nn.functional.one_hot(z.argmax(-1), 5), log_p.exp())


@pytest.mark.parametrize("head", HEADS)
def test_unbiased_estimators_are_unbiased(head: str) -> None:
    scores = torch.randn(2, CLASSES - (head != "softmax"), dtype=torch.float64, generator=seeded(2)).mul(0.5)

    def log_p(s: Tensor) -> Tensor:
        return s.log_softmax(-1) if head == "softmax" else ct.log_catnat(s, module.parameterization)

    module = made(head)
    many = scores.expand(100_000, -1, -1).clone().requires_grad_()
    mean = judge.expected_cost(judge.log_probs(scores.requires_grad_(), head))
    (want,) = torch.autograd.grad(mean, scores)
    log_q = log_p(many)
    z = latents.ESTIMATORS["score-function"](log_q, 1.0, generator=seeded(4))
    estimate = ct.score_function(cost(z, torch), (log_q * z).sum((-1, -2)), 1.0)
    assert is_level(estimate.detach(), mean.detach())
    assert is_level(torch.autograd.grad(estimate.sum(), many)[0], want)


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
    assert is_level(torch.autograd.grad(quadratic(z).sum(), many)[0], want)


@pytest.mark.parametrize("name", sorted(latents.ESTIMATORS))
def test_logits_do_as_well_as_log_probabilities(name: str) -> None:
    # a program's own logits are what most people have at hand
    logits = (2 + torch.randn(6, 3, 4, dtype=torch.float64, generator=seeded(13))).requires_grad_()
    pull, grads = torch.arange(12.0, dtype=torch.float64).cos(), []
    for given in (logits, logits.log_softmax(-1)):
        z = latents.ESTIMATORS[name](given, 0.7, generator=seeded(14))
        cost = torch.tanh(z.flatten(-2) @ pull).sum()
        grads.append(torch.autograd.grad(cost, logits)[0] if z.requires_grad else z)
    torch.testing.assert_close(*grads)


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
    module = made(head, prior=torch.tensor([0.4, 0.3, 0.1, 0.1, 0.1]), unimix=0.05)
    h = torch.randn(64, 6, requires_grad=True)
    q = module(h, generator=seeded(1))
    assert q.z.shape == q.log_q.shape == (64, 3, 5) and q.indices.shape == q.kl.shape == (64, 3)
    assert torch.equal(module.decode(q.indices), q.z.detach().round())
    mixed = 0.95 * judge.log_probs(module.linear(h).unflatten(-1, (3, -1)).double(), head).exp() + 0.05 / 5
    torch.testing.assert_close(q.log_q.exp(), mixed.float())
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


def test_classes_follow_q_and_the_prior() -> None:
    prior = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1])
    module = made(prior=prior)
    h = torch.randn(1, 6).expand(20_000, 6)
    for ids, want in (
        (module.sample(h, generator=seeded(1)), module.log_probs(h[:1])[0].exp().detach()),
        (module.sample_prior((20_000,), generator=seeded(2)), prior.expand(3, 5)),
    ):
        assert is_level(torch.nn.functional.one_hot(ids, 5), want)


@pytest.mark.parametrize("head", ["softmax", "natural"])
def test_no_class_is_drawn_from_nan(head: str) -> None:
    module, h = made(head, prior="learned"), torch.zeros(2, 6)
    h[1, 3] = math.nan
    assert module.prior is not None
    torch.nn.init.constant_(module.prior, math.nan)
    for call in (lambda: module.sample(h), lambda: module.argmax(h), module.sample_prior, lambda: module(h).indices):
        with pytest.raises(ValueError, match=r"scores must not be NaN .*; draw \((1, )?0,?\) met one"):
            call()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_nan_features_make_a_loss_that_is_nan_and_no_class(estimator: str) -> None:
    q = made(estimator=estimator)(torch.full((2, 6), math.nan))
    assert q.log_prob.isnan().all() and q.loss().isnan().all()  # which a loss scale can skip
    with pytest.raises(ValueError, match="scores must not be NaN"):
        _ = q.indices


@pytest.mark.parametrize("head", ["natural", "sigmoid", "paper"])
def test_scores_that_overflow_in_16_bits_leave_the_kl_finite(head: str) -> None:
    module = made(head).half()
    torch.nn.init.constant_(module.linear.weight, 6e4)
    torch.nn.init.constant_(module.linear.bias, 0)
    q = module(torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float16))
    assert module.linear(torch.ones(1, 6).half()).isinf().all() and q.kl.isfinite().all()


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


def test_tau_is_the_usual_one_of_the_estimator() -> None:
    taus = {name: ct.CategoricalLatent(4, 2, 3, estimator=name).tau for name in latents.ESTIMATORS}
    assert {name for name, tau in taus.items() if tau == 1.0} == {"reinmax", "straight-through"}
    assert set(taus.values()) == {0.5, 1.0} and "tau=0.5" in repr(ct.CategoricalLatent(4, 2, 3))


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


@pytest.mark.parametrize("head", ["softmax", "natural", "paper"])
def test_a_class_without_probability_adds_nothing_to_the_kl(head: str) -> None:
    latent = made(head)
    h = torch.full((3, latent.in_features), 1e3, requires_grad=True)  # far beyond the paper's range
    q = latent(h)
    q.kl.sum().backward()
    p = q.log_q.detach().double().exp()
    assert (p == 0).any()
    torch.testing.assert_close(q.kl.double(), (p.xlogy(p).sum(-1) + math.log(CLASSES)), rtol=1e-5, atol=1e-5)
    assert h.grad is not None and h.grad.isfinite().all()


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


def test_compiled_is_eager() -> None:
    # all in one program, as each costs a second
    modules = {name: made(estimator=name, prior="learned", embed=4, unimix=0.01) for name in latents.ESTIMATORS}
    modules |= {head: made(head) for head in ("softmax", "uneven")}
    leaves = [p for module in modules.values() for p in module.parameters()]

    def run(h: Tensor) -> list[ct.Latent]:
        return [module(h) for module in modules.values()]

    h, found = torch.randn(7, 6), []
    for function in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(1)
        results = function(h)
        total = torch.stack([cost(q.code, torch).sum() + q.z.square().sum() + q.loss().sum() for q in results]).sum()
        found.append((list(map(tuple, results)), torch.autograd.grad(total, leaves)))
    torch.testing.assert_close(found[1], found[0])


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
    torch.testing.assert_close(made.log_prior[0].exp(), torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1]))


PRIORS: dict[str, Any] = {"uniform": "uniform", "learned": "learned", "a": [0.6, 0.1, 0.1, 0.1, 0.1], "b": range(1, 6)}


@pytest.mark.parametrize("saved", PRIORS)
def test_a_state_of_another_prior_or_head_is_refused(saved: str) -> None:
    state = made(prior=PRIORS[saved]).bfloat16().state_dict()
    for strict in (True, False):
        for name, prior in PRIORS.items():
            other = made(prior=prior)
            if name == saved:
                other.load_state_dict(state, strict=strict)
                continue
            with pytest.raises(RuntimeError, match=r"definition: .*\(another prior\)"):
                other.load_state_dict(state, strict=strict)
        with pytest.raises(RuntimeError, match=r"definition: .*tail"):
            made("sigmoid", prior=PRIORS[saved]).load_state_dict(state, strict=strict)


def test_a_latent_is_shown_by_its_shapes() -> None:
    q = made()(torch.zeros(2, 6))
    assert repr(q).startswith("Latent(z=float32[2, 3, 5], code=float32[2, 3, 5], log_q=") and len(repr(q)) < 150


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"classes": 1}, "classes must be at least 2"),
        ({"variables": 0}, "variables must be a whole number above 0; got 0"),
        ({"classes": catnat.Parameterization(5)}, "classes must be a whole number; .* goes into head="),
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
    with pytest.raises(ValueError, match=r"got shape \(2, 4, 7, 7\); for feature maps \[N, 4, ...\] say channel_first"):
        module(torch.zeros(2, 4, 7, 7))
    with pytest.raises(TypeError, match=r"h must be a floating-point tensor; got torch.int64"):
        module(torch.zeros(3, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"prior must be \[\.\.\., 2, 5\]; got \(2, 6\)"):
        module(torch.zeros(3, 4), torch.zeros(2, 6))
    with pytest.raises(ValueError, match="prior must be log-probabilities, whose exp sums to 1; got log-sums up to"):
        module(torch.zeros(3, 4), torch.zeros(2, 5))  # the logits of a prior
    with pytest.raises(ValueError, match="prior must be None where the latent learns one"):
        ct.CategoricalLatent(4, 2, 5, prior="learned")(torch.zeros(3, 4), module.log_prior)
    with pytest.raises(TypeError, match=r"'num_classes'. It takes in_features, variables, classes, head"):
        ct.CategoricalLatent(4, variables=2, num_classes=5)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="tau must be None with the estimator 'score-function'"):
        made(estimator="score-function")(torch.zeros(3, 6), tau=0.5)
    with pytest.raises(ValueError, match="tau must be a finite number above 0; got 0"):
        latents.reinmax(torch.zeros(2, 3), 0.0)
    with pytest.raises(ValueError, match=r"indices must be \[\.\.\., 2\], the variables last; got shape \(2, 7\)"):
        module.decode(torch.zeros(2, 7, dtype=torch.long))
    with pytest.raises(TypeError, match="indices must be an integer"):
        module.decode(torch.zeros(3, 2))


def process(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    module = made(estimator="straight-through", prior="learned")
    trained = DistributedDataParallel(module)
    q = trained(torch.randn(8, 6, generator=seeded(1))[rank::2])
    (q.z @ torch.arange(5.0) + q.kl).sum((-1, -2)).div(4).backward()  # linear in z: whatever is drawn
    found = {name: p.grad for name, p in module.named_parameters()}, q.indices, q.log_q.detach(), q.stats(sync=True)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # without destructors, as in test_wide_distributed.py


@pytest.mark.slow
def test_two_processes_learn_and_count_as_one(tmp_path: Any) -> None:
    mp.spawn(process, (str(tmp_path),), nprocs=2)
    (slopes, ids, log_q, stats), (others, more, log_p, same) = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1)
    )
    module = made(estimator="straight-through", prior="learned")
    q = module(torch.randn(8, 6, generator=seeded(1)))
    (q.z @ torch.arange(5.0) + q.kl).sum((-1, -2)).div(8).backward()
    for name, p in module.named_parameters():
        torch.testing.assert_close(slopes[name], p.grad)
        torch.testing.assert_close(others[name], p.grad)
    code, log_q = torch.nn.functional.one_hot(torch.cat((ids, more)), 5), torch.cat((log_q, log_p))
    torch.testing.assert_close(stats, ct.Latent(code, code, log_q, log_q, log_q.sum(-1)).stats())
    torch.testing.assert_close(stats, same)


def test_a_head_is_a_name_an_activation_or_a_parameterization() -> None:
    tail = catnat.Natural(tail=0.01)
    for head in (tail, catnat.Parameterization(5, tail)):
        assert ct.CategoricalLatent(3, 2, 5, head=head).parameterization == catnat.Parameterization(5, tail)
    with pytest.raises(ValueError, match=r"got 'catnat' \(did you mean 'natural'\?\)"):
        ct.CategoricalLatent(3, 2, 5, head="catnat")
    with pytest.raises(ValueError, match=r"got 'gumbel-softmax' \(did you mean 'gumbel'\?\)"):
        ct.CategoricalLatent(3, 2, 5, estimator="gumbel-softmax")
