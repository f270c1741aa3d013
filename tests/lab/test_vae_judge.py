"""Bounds against exact enumeration, terms against torch.distributions, and both gradients against brute force."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from catnat_lab.heads import HEAD_NAMES, head
from catnat_lab.vae import objective
from catnat_lab.vae.judge import judge
from catnat_lab.vae.networks import convolutional, dense
from catnat_lab.vae.stack import Run, Stack
from tests.lab.plain_autoencoder import export
from tests.thinned import thinned

VARIABLES, CLASSES = 2, 4
CODES = torch.tensor(list(itertools.product(range(CLASSES), repeat=VARIABLES)))  # all 16


def stack_of(*heads: str) -> Stack:
    stack = Stack(
        [Run("grey", name, 0.1, 1) for name in sorted(heads)], dense(VARIABLES, CLASSES), "sgd", torch.device("cpu")
    )
    with torch.no_grad():
        stack.parameters.mul_(3)  # posteriors that are not uniform
    return stack


def digits(count: int = 6) -> Tensor:
    """uint8 [1, n, 784]: dark images with some strokes."""
    drawn = torch.rand(1, count, 784, generator=torch.Generator().manual_seed(3))
    return torch.where(drawn > 0.9, drawn * 255, torch.zeros(())).to(torch.uint8)


def joint(stack: Stack, x: Tensor) -> Tensor:
    """log p(x, z) [R, B, 16] of every code."""
    z = objective.one_hot(CODES, CLASSES).expand(len(stack.runs), -1, -1, -1)
    logits = stack.decode(z, stack.views(), False)  # [R, 16, 784]
    found = torch.distributions.Bernoulli(logits=logits.unsqueeze(1), validate_args=False).log_prob(x.unsqueeze(2))
    return found.sum(-1) - VARIABLES * math.log(CLASSES)


def posterior(log_q: Tensor) -> Tensor:
    """log q(z | x) [R, B, 16]."""
    return torch.stack([log_q[..., n, CODES[:, n]] for n in range(VARIABLES)]).sum(0)


def losses(estimator: str, stack: Stack, x: Tensor) -> objective.Losses:
    """As a step of training has them."""
    views = stack.views()
    log_q = stack.log_probs(stack.scores(x, views, True))
    return objective.OBJECTIVES[estimator](stack, x, views, log_q, objective.gumbels(log_q.detach()))


@torch.no_grad()
@pytest.mark.parametrize("name", thinned(["softmax", "catnat-sigmoid", "catnat-paper"], 1))
def test_the_likelihood_is_that_of_all_codes_counted(name: str) -> None:
    stack, images = stack_of(name), digits()
    x = images.float() / 255
    exact = -joint(stack, x).logsumexp(-1).mean()
    which, drawn = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.bool)
    found = judge(stack, images, which, drawn, 4096)
    log_q = stack.log_probs(stack.scores(x, stack.views(), False))
    q = posterior(log_q)
    elbo = (q.exp() * (joint(stack, x) - q)).sum(-1).mean()
    assert found["nll"].item() == pytest.approx(exact.item(), abs=0.05)
    assert found["elbo"].item() == pytest.approx(elbo.item(), abs=0.3)
    assert found["elbo_paper"].item() == pytest.approx(found["elbo"].item() + VARIABLES * math.log(CLASSES), abs=1e-3)
    few = judge(stack, images, which, drawn, 2)
    assert -found["elbo"] >= found["nll"] - 0.05 and few["nll"] >= found["nll"] - 0.05  # looser with fewer samples


@torch.no_grad()
def test_a_run_that_diverged_leaves_the_others_alone() -> None:
    images, drawn = digits(), torch.zeros(2, dtype=torch.bool)
    stack = stack_of("softmax", "softmax")
    alone = judge(stack, images, torch.zeros(2, dtype=torch.int64), drawn, 64)["nll"]
    stack.parameters[0] = math.nan
    found = judge(stack, images, torch.zeros(2, dtype=torch.int64), drawn, 64)["nll"]
    assert found[0].isnan() and found[1].isfinite() and abs(found[1] - alone[1]) < 2


@pytest.mark.parametrize("name", HEAD_NAMES)
def test_kl_and_entropy_are_those_of_torch(name: str) -> None:
    stack = stack_of(name)
    x = digits().float() / 255
    log_q = stack.log_probs(stack.scores(x, stack.views(), False))
    q, prior = Categorical(probs=log_q.exp()), Categorical(logits=torch.zeros(CLASSES))
    torch.testing.assert_close(objective.kl_from_uniform(log_q), kl_divergence(q, prior).sum(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(objective.entropy(log_q), q.entropy().sum(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "offset"),
    [*thinned(itertools.product(["softmax", "catnat-paper"], [-1.0, 0.5]), every=4), ("catnat", None)],
)
def test_the_score_function_is_right_on_the_average(
    name: str, offset: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mean over many draws is the gradient of the exact expectation over all codes, whatever the baseline."""
    stack = stack_of(name)
    real = objective.cross_entropy
    # a hundredth of the loss, so that the KL is a large part of what is descended
    monkeypatch.setattr(objective, "cross_entropy", lambda logits, x: 0.01 * real(logits, x))
    x = (digits(1).float() / 255).expand(1, 8000, 784)
    log_q = stack.log_probs(stack.scores(x[:, :1], stack.views(), True))
    q, loss = posterior(log_q), -0.01 * (joint(stack, x[:, :1]) + VARIABLES * math.log(CLASSES))
    exact = (q.exp() * loss).sum() + objective.kl_from_uniform(log_q).sum()
    if offset is not None:
        monkeypatch.setattr(objective, "BASELINE", (q.exp() * loss).sum().item() + offset)  # near it: the less noise
    (expected,) = torch.autograd.grad(exact, stack.parameters)
    torch.manual_seed(0)
    estimator = "score-function" if offset is not None else "score-function, leave-one-out"
    descended, bound = losses(estimator, stack, x)
    (found,) = torch.autograd.grad(descended.mean(), stack.parameters)
    encoder = sum(stack.sizes[: len(stack.model.encoder.parameters)])
    for part in (slice(encoder), slice(encoder, None)):
        assert (found - expected)[:, part].norm() < 0.15 * expected[:, part].norm()
    assert bound.mean().item() == pytest.approx(exact.item(), rel=0.02)


def test_an_image_is_no_part_of_its_own_baseline() -> None:
    found = torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])
    assert objective.mean_of_others(found).tolist() == [[4.0, 3.5, 1.5], [1.5, 1.5, 0.0]]


@pytest.mark.parametrize("name", ["softmax", "catnat-sigmoid"])
def test_straight_through_is_torchs_gumbel_softmax(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same loss and gradient as torch.nn, gumbel_softmax(hard=True) and kl_divergence make of the same noise."""
    stack = Stack([Run("grey", name, 0.1, 1)], convolutional(VARIABLES, CLASSES), "sgd", torch.device("cpu"))
    stack.step.fill_(5000)
    x = digits(7).float() / 255
    descended, bound = (torch.manual_seed(1), losses("straight-through", stack, x))[1]
    (found,) = torch.autograd.grad(descended.sum(), stack.parameters)
    encoder, decoder = export(stack, 0)
    scores = encoder(x[0].view(-1, 1, 28, 28)).view(7, VARIABLES, CLASSES)
    one = head(name, CLASSES)
    log_q = one.log_probs(scores[..., : one.width])
    torch.manual_seed(1)
    z = torch.nn.functional.gumbel_softmax(log_q, math.exp(-3e-5 * 5000), hard=True)
    likelihood = torch.distributions.Bernoulli(logits=decoder(z.flatten(1)).flatten(1), validate_args=False)
    kl = kl_divergence(Categorical(logits=log_q), Categorical(logits=torch.zeros(CLASSES))).sum(-1)
    expected = -likelihood.log_prob(x[0]).sum(-1) + kl
    torch.testing.assert_close(bound[0], expected, rtol=1e-4, atol=1e-3)
    expected.sum().backward()
    ours = Stack([Run("grey", name, 0.1, 1)], convolutional(VARIABLES, CLASSES), "sgd", torch.device("cpu"))
    with torch.no_grad():
        ours.parameters.copy_(found)
    for mine, theirs in zip(export(ours, 0), (encoder, decoder), strict=True):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert b.grad is not None
            torch.testing.assert_close(a, b.grad, rtol=2e-3, atol=2e-2)


def test_temperatures_cool_in_steps() -> None:
    steps = torch.tensor([0, 999, 1000, 20_000, 10**6])
    found = objective.temperature(steps)
    torch.testing.assert_close(found, torch.tensor([1.0, 1.0, math.exp(-0.03), math.exp(-0.6), 0.5]))
