"""The benchmark of categorical latents: its heads, its estimators, its noise, and that stacking changes nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import catnat
import catnat.torch as ct
from catnat_lab.latents.heads import HEADS, latent_head
from catnat_lab.latents.noise import gumbels
from catnat_lab.latents.train import ESTIMATORS, ROOM, Cell, Run, Setting, Trainer, train
from catnat_lab.vae.model import Autoencoders, cross_entropy, one_hot
from tests.thinned import thinned

SMALL = Setting(epochs=2, batch=10, hidden=(12, 8), samples=2)
CPU = torch.device("cpu")


def images(count: int) -> Tensor:
    return torch.randint(0, 256, (count, 784), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)


# -- heads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 5, 8])
def test_haars_logits_are_the_half_scores_of_a_path(classes: int) -> None:
    scores = torch.randn(3, classes - 1, dtype=torch.float64)
    tree = catnat.Tree.balanced(classes)
    logits = [sum((bit - 0.5) * scores[:, node - 1] for node, bit in tree.path(k)) for k in range(classes)]
    expected = torch.log_softmax(torch.stack(logits, -1), -1)  # type: ignore[arg-type]
    torch.testing.assert_close(latent_head("haar", classes).log_probs(scores), expected)


@pytest.mark.parametrize("classes", [2, 8])
def test_a_hybrids_log_odds_are_its_score_and_the_classes_on_either_side(classes: int) -> None:
    scores = torch.randn(2 * classes - 1, dtype=torch.float64)
    own, of_classes = scores[: classes - 1], scores[classes - 1 :]
    tree, expected = catnat.Tree.balanced(classes), []
    for k in range(classes):
        total = torch.zeros((), dtype=torch.float64)
        for node, bit in tree.path(k):
            sides = [[j for j in range(classes) if (node, side) in tree.path(j)] for side in (0, 1)]
            left, right = (of_classes[side].logsumexp(0) for side in sides)
            log_odds = own[node - 1] + right - left
            total = total + torch.nn.functional.logsigmoid(log_odds if bit else -log_odds)
        expected.append(total)
    torch.testing.assert_close(latent_head("hybrid", classes).log_probs(scores), torch.stack(expected))


@pytest.mark.parametrize("classes", [3, 10])
def test_a_hybrid_is_softmax_without_its_nodes_and_the_sigmoid_without_its_classes(classes: int) -> None:
    head = latent_head("hybrid", classes)
    nodes, of_classes = torch.randn(4, classes - 1), torch.randn(4, classes)
    softmax = head.log_probs(torch.cat((torch.zeros_like(nodes), of_classes), -1))
    torch.testing.assert_close(softmax, of_classes.log_softmax(-1))
    sigmoid = head.log_probs(torch.cat((nodes, torch.zeros_like(of_classes)), -1))
    torch.testing.assert_close(sigmoid, ct.log_catnat(nodes, catnat.Parameterization(classes, "sigmoid")))


# -- estimators ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_steps_gradient_is_the_librarys_with_every_runs_own_noise_and_temperature(estimator: str) -> None:
    """Each run by itself, with its noise, as one draws and descends by the library's names."""
    some, cell, batch = images(40), Cell(2, 5, estimator), SMALL.batch
    runs = [Run("softmax", 0.1, 0.7, 4), Run("softmax", 0.1, 1.4, 9)]
    trainer = Trainer(runs, cell, SMALL, some, CPU)
    x, views = some[:batch].float().expand(2, -1, -1) / 255, trainer.stack.views()
    log_q = trainer.stack.log_probs(trainer.stack.scores(x, views))
    noise = gumbels(torch.tensor([4, 9]), torch.tensor(0), (ESTIMATORS[estimator], batch, 2, 5))
    (found,) = torch.autograd.grad(trainer.cost(x, views, log_q, noise).sum(), log_q, retain_graph=True)
    for row, run in enumerate(runs):
        own, drawn = log_q[row].detach().requires_grad_(), noise[row]
        alone = Autoencoders([run], trainer.stack.model, CPU)
        if estimator == "score-function":
            costs, log_probs = [], []
            for each in drawn:
                z = one_hot((own + each).argmax(-1), 5)
                costs.append(cross_entropy(alone.decode(z[None], alone.views())[0], x[row]))
                log_probs.append((own * z).sum((-1, -2)))
            cost = torch.stack(costs)
            weights = cost.detach() - (cost.detach().sum(0) - cost.detach()) / (len(cost) - 1)
            expected = (weights * torch.stack(log_probs)).mean(0)
        else:
            made = {
                "reinmax": ct.latents.reinmax,
                "gumbel-softmax": ct.latents.gumbel_softmax,
                "straight-through": ct.latents.straight_through,
                "gumbel-rao": ct.latents.gumbel_rao,
            }[estimator](own, run.temperature, noise=drawn if estimator == "gumbel-rao" else drawn[0])
            expected = cross_entropy(alone.decode(made[None], alone.views())[0], x[row])
        (slope,) = torch.autograd.grad(expected.sum(), own)
        torch.testing.assert_close(found[row], slope, rtol=1e-4, atol=1e-5)
        assert slope.abs().max() > 0.01


# -- noise ---------------------------------------------------------------------------------------------------------


def splitmix(state: int) -> int:
    x = state % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def test_noise_is_splitmix64_of_key_step_and_count() -> None:
    found = gumbels(torch.tensor([0, 1001]), torch.tensor(17), (2, 3))
    for row, key in enumerate((0, 1001)):
        start = splitmix(key * 0x9E3779B97F4A7C15 + splitmix(18))
        for count in range(6):
            bits = splitmix(start + (count + 1) * 0x9E3779B97F4A7C15)
            expected = -math.log(-math.log(((bits >> 12) + 0.5) / 2**52))
            assert found[row].flatten()[count].item() == pytest.approx(expected, rel=1e-6)


def test_noise_is_gumbels_and_of_one_step_says_nothing_of_the_next() -> None:
    steps = torch.arange(3)
    found = gumbels(torch.tensor([12]), steps, (50_000,))
    assert found.isfinite().all()
    for row in found:
        assert stats.kstest(row.numpy(), "gumbel_r").pvalue > 1e-3
    correlation = torch.corrcoef(torch.cat((found, found.roll(1, -1), gumbels(torch.tensor([13]), steps, (50_000,)))))
    assert (correlation - torch.eye(9)).abs().max() < 5 / math.sqrt(50_000)


# -- stacks --------------------------------------------------------------------------------------------------------

RUNS = [
    Run(head, rate, temperature, seed)
    for head in HEADS
    for rate, temperature, seed in ((0.02, 0.7, 4), (0.005, 1.4, 9))
]


def numbers(outcome: dict[str, Any]) -> Tensor:
    values = [value for name, value in outcome.items() if name != "curve"]
    return torch.tensor([*values, *map(float, str(outcome["curve"]).split())])


@pytest.mark.parametrize("estimator", thinned(ESTIMATORS, every=5))
def test_a_run_of_a_stack_is_the_run_alone(estimator: str) -> None:
    some, other = images(40), images(55)[40:]
    cell = Cell(2, 5, estimator)
    together = train(RUNS, cell, SMALL, some, {"train": some, "test": other}, CPU)
    for place in (0, len(RUNS) - 1):
        (alone,) = train(RUNS[place : place + 1], cell, SMALL, some, {"train": some, "test": other}, CPU)
        torch.testing.assert_close(numbers(together[place]), numbers(alone), rtol=1e-5, atol=2e-3)
    apart = torch.stack([numbers(found) for found in together])
    assert apart[:, 0].unique().numel() == len(RUNS)  # else there is nothing to tell apart


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("reinmax", "546.595 546.879 545.608 546.127 544.283 543.706 543.371 543.352"),
        ("gumbel-rao", "546.595 546.882 545.605 546.106 544.293 543.709 543.416 543.348"),
        ("score-function", "546.444 547.223 546.249 545.938 544.713 543.510 543.281 543.176"),
    ],
)
def test_a_run_is_what_it_was_when_the_study_began(estimator: str, expected: str) -> None:
    """First weights, order, noise and steps: the study is long, and its rows must be of one program."""
    (found,) = train([Run("catnat", 0.02, 0.7, 4)], Cell(2, 5, estimator), SMALL, images(40), {}, CPU)
    assert [float(x) for x in str(found["curve"]).split()] == pytest.approx([*map(float, expected.split())], abs=0.005)


def test_a_run_that_diverges_harms_no_other() -> None:
    some, cell = images(40), Cell(2, 5, "reinmax")
    lost, kept = Run("softmax", math.nan, 1.0, 4), RUNS[1]
    found = train([lost, kept], cell, SMALL, some, {"train": some}, CPU)
    (alone,) = train([kept], cell, SMALL, some, {"train": some}, CPU)
    assert math.isnan(float(found[0]["train"]))
    torch.testing.assert_close(numbers(found[1]), numbers(alone), rtol=1e-5, atol=2e-3)


def test_the_bound_does_not_depend_on_how_images_are_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    some, cell = images(23), Cell(2, 5, "reinmax")
    (whole,) = train(RUNS[:1], cell, SMALL, some, {"train": some}, CPU)
    monkeypatch.setitem(ROOM, "cpu", 784 * 2 * 5)  # five images at a time
    (parted,) = train(RUNS[:1], cell, SMALL, some, {"train": some}, CPU)
    assert float(parted["train"]) == pytest.approx(float(whole["train"]), rel=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_gpus_captured_steps_are_the_plain_ones(estimator: str) -> None:
    device = torch.device("cuda")
    some, cell = images(40).to(device), Cell(2, 5, estimator)
    setting = Setting(epochs=2, batch=10, hidden=(12, 8), samples=2, precise=True)
    plain = Setting(epochs=2, batch=10, hidden=(12, 8), samples=2, precise=True, plain=True)
    captured = train(RUNS, cell, setting, some, {"train": some}, device)
    stepped = train(RUNS, cell, plain, some.cpu(), {"train": some.cpu()}, CPU)
    for found, expected in zip(captured, stepped, strict=True):
        torch.testing.assert_close(numbers(found), numbers(expected), rtol=1e-3, atol=0.02)
