"""Layers against torch.nn, bounds against enumeration, and a step's gradient against torch's own and brute force."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, kl_divergence

from catnat_lab.heads import HEAD_NAMES, head
from catnat_lab.vae import model, train
from catnat_lab.vae.model import Autoencoders, convolutional, dense, kl_from_uniform, one_hot
from catnat_lab.vae.train import Plan, Run, Trainer, evaluate, outside_shares
from tests.lab.plain_autoencoder import export
from tests.lab.vae_cases import bars
from tests.thinned import thinned

CPU, VARIABLES, CLASSES = torch.device("cpu"), 2, 4
CODES = torch.tensor(list(itertools.product(range(CLASSES), repeat=VARIABLES)))  # all 16
RUNS = [Run("grey", "softmax", 0.1, seed) for seed in (1, 2, 3)]
ONE, GREY = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.bool)


def random_images(runs: int, batch: int = 5) -> Tensor:
    return torch.rand(runs, batch, 784, generator=torch.Generator().manual_seed(0))


# -- layers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_networks_are_those_of_torch_run_by_run(training: bool) -> None:
    """Values, gradients and running statistics, and the same again as matrices."""
    stack, x, z = Autoencoders(RUNS, convolutional(3, 4), CPU), random_images(3), torch.rand(3, 5, 3, 4)
    for buffer in stack.buffers[1::2]:
        buffer.mul_(1.7)  # variances that show where they are used
    theirs = [[module.train(training) for module in export(stack, row)] for row in range(3)]
    weight = torch.randn(5, 784, generator=torch.Generator().manual_seed(1))
    scores, logits = stack.scores(x, stack.views(), training), stack.decode(z, stack.views(), training)
    (gradient,) = torch.autograd.grad(scores.square().sum() + (logits * weight).sum(), stack.parameters)
    moved = Autoencoders(RUNS, convolutional(3, 4), CPU)
    moved.put({"parameters": gradient})
    for row, (encoder, decoder) in enumerate(theirs):
        own_scores, own_logits = encoder(x[row].view(-1, 1, 28, 28)), decoder(z[row].flatten(1)).flatten(1)
        torch.testing.assert_close(scores[row].flatten(1), own_scores, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(logits[row], own_logits, rtol=1e-5, atol=1e-6)
        (own_scores.square().sum() + (own_logits * weight).sum()).backward()
        for changed, ours, other in zip(export(moved, row), export(stack, row), (encoder, decoder), strict=True):
            for slope, parameter in zip(changed.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(slope, parameter.grad, rtol=1e-3, atol=1e-3)
            for name, value in ours.state_dict().items():
                if "running" in name:
                    torch.testing.assert_close(value, other.state_dict()[name])
    if not training:
        decode = stack.decoder(stack.views(), as_matrices=True)
        torch.testing.assert_close(decode(z), logits, rtol=1e-4, atol=1e-5)


def test_a_parted_product_is_the_whole_one() -> None:
    x, weight = torch.randn(2, 6, 4, 5, requires_grad=True), torch.randn(2, 5, 3, requires_grad=True)
    found, expected = model._product(x, weight, 3), torch.einsum("rbpi,rio->rbpo", x, weight)
    torch.testing.assert_close(found, expected)
    change = torch.randn_like(found)
    for one, other in zip(*(torch.autograd.grad(y, (x, weight), change) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_seeds_start_like_torch_and_alike_for_every_head() -> None:
    one, other = (Autoencoders([Run("grey", name, 0.1, 5)], dense(3, 4), CPU) for name in ("softmax", "catnat-paper"))
    torch.testing.assert_close(one.parameters, other.parameters)
    for view, shape in zip(one.views()[::2], one.shapes[::2], strict=True):
        bound = shape[0] ** -0.5
        assert view.abs().max() <= bound and view.detach().std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


# -- bounds --------------------------------------------------------------------------------------------------------


def stack_of(*heads: str) -> Autoencoders:
    stack = Autoencoders([Run("grey", name, 0.1, 1) for name in sorted(heads)], dense(VARIABLES, CLASSES), CPU)
    with torch.no_grad():
        stack.parameters.mul_(3)  # posteriors that are not uniform
    return stack


def digits(count: int = 6) -> Tensor:
    """uint8 [1, n, 784]: dark images with some strokes."""
    drawn = torch.rand(1, count, 784, generator=torch.Generator().manual_seed(3))
    return torch.where(drawn > 0.9, drawn * 255, torch.zeros(())).to(torch.uint8)


def joint(stack: Autoencoders, x: Tensor) -> Tensor:
    """log p(x, z) [R, B, 16] of every code."""
    z = one_hot(CODES, CLASSES).expand(len(stack.parameters), -1, -1, -1)
    logits = stack.decode(z, stack.views(), False)  # [R, 16, 784]
    found = Bernoulli(logits=logits.unsqueeze(1), validate_args=False).log_prob(x.unsqueeze(2))
    return found.sum(-1) - VARIABLES * math.log(CLASSES)


def posterior(log_q: Tensor) -> Tensor:
    """log q(z | x) [R, B, 16]."""
    return torch.stack([log_q[..., n, CODES[:, n]] for n in range(VARIABLES)]).sum(0)


@torch.no_grad()
@pytest.mark.parametrize("name", thinned(["softmax", "catnat-paper"], 1))
def test_the_likelihood_is_that_of_all_codes_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, images = stack_of(name), digits()
    x = images.float() / 255
    exact = -joint(stack, x).logsumexp(-1).mean()
    found = evaluate(stack, images, ONE, GREY, 4096)
    q = posterior(stack.log_probs(stack.scores(x, stack.views(), False)))
    elbo = (q.exp() * (joint(stack, x) - q)).sum(-1).mean()
    assert found["nll"].item() == pytest.approx(exact.item(), abs=0.05)
    assert found["elbo"].item() == pytest.approx(elbo.item(), abs=0.3)
    assert found["elbo_paper"].item() == pytest.approx(found["elbo"].item() + VARIABLES * math.log(CLASSES), abs=1e-3)
    monkeypatch.setitem(train.ROOM, "cpu", 784 * 50)  # in parts: other draws, the same numbers but for luck
    few = evaluate(stack, images, ONE, GREY, 200)
    assert few["nll"].item() == pytest.approx(exact.item(), abs=0.5) and -few["elbo"] >= few["nll"] - 0.05


@torch.no_grad()
def test_a_run_that_diverged_harms_no_other() -> None:
    images, which, stack = digits(), torch.zeros(2, dtype=torch.int64), stack_of("softmax", "softmax")
    alone = evaluate(stack, images, which, GREY.expand(2), 64)["nll"]
    stack.parameters[0] = math.nan
    found = evaluate(stack, images, which, GREY.expand(2), 64)["nll"]
    assert found[0].isnan() and found[1].isfinite() and abs(found[1] - alone[1]) < 2


@pytest.mark.parametrize("name", HEAD_NAMES)
def test_the_kl_is_that_of_torch(name: str) -> None:
    stack = stack_of(name)
    log_q = stack.log_probs(stack.scores(digits().float() / 255, stack.views(), False))
    q, prior = Categorical(probs=log_q.exp()), Categorical(logits=torch.zeros(CLASSES))
    torch.testing.assert_close(kl_from_uniform(log_q), kl_divergence(q, prior).sum(-1), rtol=1e-4, atol=1e-4)


def test_nodes_outside_the_natural_range_are_counted_run_by_run() -> None:
    names = ("catnat", "catnat-paper", "catnat-paper", "catnat-sigmoid", "catnat-sigmoid", "softmax")
    stack = Autoencoders([Run("grey", name, 0.1, 1) for name in names], dense(3, 3), CPU)
    scores = torch.zeros(6, 5, 3, 3)
    scores[:, :, 0, 0] = -2.0  # one of six nodes, 2.7 from its centre: outside the default's range, inside the paper's
    scores[1] = 9.0
    scores[..., 2] = 99.0  # no score: three classes have two nodes
    assert outside_shares(stack, scores) == {0: pytest.approx(1 / 6), 1: 1.0, 2: 0.0}
    scores[0, 0, 0, 0] = torch.nan
    assert torch.tensor(outside_shares(stack, scores)[0]).isnan()


# -- a step's gradient ---------------------------------------------------------------------------------------------


def trainer_of(name: str, plan: Plan) -> Trainer:
    return Trainer([Run("grey", name, 0.1, 1)], plan, bars(), ("grey",), CPU)


def bound_of(trainer: Trainer, x: Tensor) -> Tensor:
    """As a step of training has it."""
    views = trainer.stack.views()
    log_q = trainer.stack.log_probs(trainer.stack.scores(x, views))
    return trainer.minus_bound(x, views, log_q, -torch.empty_like(log_q).exponential_().log())


def test_samples_are_torchs_gumbel_softmax() -> None:
    """The same bound and gradient as torch.nn, gumbel_softmax(hard=True) and kl_divergence make of the same noise."""
    trainer = trainer_of("catnat-sigmoid", Plan(variables=VARIABLES, classes=CLASSES, batch=20))
    trainer.stack.steps.fill_(5000)
    x = digits(7).float() / 255
    torch.manual_seed(1)
    bound = bound_of(trainer, x)
    (gradient,) = torch.autograd.grad(bound.sum(), trainer.stack.parameters)
    encoder, decoder = export(trainer.stack, 0)
    one = head("catnat-sigmoid", CLASSES)
    log_q = one.log_probs(encoder(x[0].view(-1, 1, 28, 28)).view(7, VARIABLES, CLASSES)[..., : one.width])
    torch.manual_seed(1)
    z = torch.nn.functional.gumbel_softmax(log_q, math.exp(-3e-5 * 5000), hard=True)
    likelihood = Bernoulli(logits=decoder(z.flatten(1)).flatten(1), validate_args=False)
    kl = kl_divergence(Categorical(logits=log_q), Categorical(logits=torch.zeros(CLASSES))).sum(-1)
    expected = -likelihood.log_prob(x[0]).sum(-1) + kl
    torch.testing.assert_close(bound[0], expected, rtol=1e-4, atol=1e-3)
    expected.sum().backward()
    trainer.stack.put({"parameters": gradient})
    for mine, theirs in zip(export(trainer.stack, 0), (encoder, decoder), strict=True):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b.grad, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("baseline", ["constant", "leave-one-out"])
def test_the_score_function_is_right_on_the_average(baseline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mean over many draws is the gradient of the exact expectation over all codes, whatever the baseline."""
    plan = Plan("dense", VARIABLES, CLASSES, "sgd", "score-function", batch=20, baseline=baseline)
    trainer, x = trainer_of("catnat", plan), digits(1).float() / 255
    trainer.stack = stack_of("catnat")
    real = train.cross_entropy
    # a hundredth of the loss, so that the KL is a large part of what is descended
    monkeypatch.setattr(train, "cross_entropy", lambda logits, x: 0.01 * real(logits, x))
    log_q = trainer.stack.log_probs(trainer.stack.scores(x, trainer.stack.views()))
    q, loss = posterior(log_q), -0.01 * (joint(trainer.stack, x) + VARIABLES * math.log(CLASSES))
    expectation = (q.exp() * loss).sum()
    exact = expectation + kl_from_uniform(log_q).sum()
    monkeypatch.setitem(train.BASELINES, "constant", expectation.item() + 0.5)  # near it: the less noise
    (expected,) = torch.autograd.grad(exact, trainer.stack.parameters)
    torch.manual_seed(0)
    bound = bound_of(trainer, x.expand(1, 8000, 784))
    (found,) = torch.autograd.grad(bound.mean(), trainer.stack.parameters)
    encoder = sum(trainer.stack.sizes[: len(trainer.stack.model.encoder.parameters)])
    for part in (slice(encoder), slice(encoder, None)):
        assert (found - expected)[:, part].norm() < 0.15 * expected[:, part].norm()
    assert bound.mean().item() == pytest.approx(exact.item(), rel=0.02)


def test_temperatures_cool_in_steps() -> None:
    found = train.temperature(torch.tensor([0, 999, 1000, 20_000, 10**6]))
    torch.testing.assert_close(found, torch.tensor([1.0, 1.0, math.exp(-0.03), math.exp(-0.6), 0.5]))


def test_a_run_of_a_stack_is_the_run_alone() -> None:
    """With the same images and noise: two steps of Adam beside another head, and without it."""
    plan = Plan(variables=3, classes=4, batch=20)
    runs = [Run("grey", "catnat", 0.01, 1), Run("grey", "softmax", 0.02, 2)]
    x, noise = random_images(2, 20), torch.randn(2, 20, 3, 4, generator=torch.Generator().manual_seed(5))
    found = []
    for rows in (slice(2), slice(0, 1), slice(1, 2)):
        trainer = Trainer(runs[rows], replace(plan), bars(), ("grey",), CPU)
        for _ in range(2):
            views = trainer.stack.views()
            log_q = trainer.stack.log_probs(trainer.stack.scores(x[rows], views))
            trainer.stack.step(trainer.minus_bound(x[rows], views, log_q, noise[rows]).mean(1).sum())
        found.append(trainer.stack)
    for row, alone in enumerate(found[1:]):
        for name, value in alone.run(0).items():  # running statistics too
            torch.testing.assert_close(found[0].run(row)[name], value, rtol=1e-3, atol=1e-4)
