"""The benchmark of categorical latents: its heads, its estimators, its noise, and that stacking changes nothing."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import catnat
import catnat.torch as ct
from catnat_lab.latents import estimators
from catnat_lab.latents.estimators import ESTIMATORS, SCORED, Cost
from catnat_lab.latents.heads import HEADS, latent_head
from catnat_lab.latents.noise import gumbels
from catnat_lab.latents.train import Cell, Run, Setting, train

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

CLASSES = 3
LOGITS = torch.tensor([0.7, -1.1, 0.3], dtype=torch.float64)


def gradient(name: str, noise: Tensor, cost: Cost, temperature: float = 1.0) -> Tensor:
    """An estimator's gradient to the logits, of one variable of one image; noise [..., draws, K] is of runs."""
    runs = noise.shape[:-2].numel()
    logits = LOGITS.expand(runs, 1, 1, -1).clone().requires_grad_()
    heat = torch.full((runs, 1, 1, 1), temperature, dtype=torch.float64)
    shaped = noise.reshape(runs, noise.shape[-2], 1, 1, CLASSES)
    loss = ESTIMATORS[name].loss(logits.log_softmax(-1), shaped, heat, cost)
    assert loss.shape == (runs, 1)
    (found,) = torch.autograd.grad(loss.sum(), logits)
    return found[:, 0, 0]


def drawing(*indices: int) -> Tensor:
    """Noise that draws these classes: [draws, K]."""
    return torch.stack([1e3 * torch.nn.functional.one_hot(torch.tensor(i), CLASSES).double() for i in indices])


WEIGHT = torch.tensor([[1.0, 0.4, -0.7], [0.2, -1.5, 0.9], [0.3, 0.8, 0.5]], dtype=torch.float64)


def quadratic(z: Tensor) -> Tensor:
    return torch.einsum("...ni,ij,...nj->...", z, WEIGHT, z) + 2 * z[..., 0, 1]


def cubic(z: Tensor) -> Tensor:
    return quadratic(z) + (z[..., 0, :] * torch.tensor([1.0, 2.0, -1.0], dtype=z.dtype)).sum(-1) ** 3


def exact_gradient(cost: Cost) -> Tensor:
    """Of the expected cost, by enumeration."""
    logits = LOGITS.clone().requires_grad_()
    costs = torch.stack([cost(torch.eye(CLASSES, dtype=torch.float64)[k].view(1, 1, 1, 1, -1)) for k in range(CLASSES)])
    (found,) = torch.autograd.grad((logits.softmax(-1) * costs.flatten()).sum(), logits)
    return found


def slope(probs: Tensor, at: Tensor) -> Tensor:
    """The gradient ``at`` times the Jacobian of a softmax whose value is ``probs``."""
    return probs * (at - (probs * at).sum())


@pytest.mark.parametrize("temperature", [1.0, 1.4])
@pytest.mark.parametrize("k", range(CLASSES))
def test_reinmax_and_straight_through_are_their_formulas(k: int, temperature: float) -> None:
    sample = torch.eye(CLASSES, dtype=torch.float64)[k].requires_grad_()
    (of_cost,) = torch.autograd.grad(cubic(sample.view(1, 1, 1, 1, -1)).sum(), sample)
    probs, heated = LOGITS.softmax(-1), (LOGITS / temperature).softmax(-1)
    found = gradient("straight-through", drawing(k), cubic, temperature)[0]
    torch.testing.assert_close(found, slope(heated, of_cost) / temperature)
    middle = (sample.detach() + heated) / 2
    expected = 2 * slope(middle, of_cost) - slope(probs, of_cost) / 2
    torch.testing.assert_close(gradient("reinmax", drawing(k), cubic, temperature)[0], expected)


def test_reinmax_is_exact_for_quadratic_costs_and_straight_through_is_not() -> None:
    probs = LOGITS.softmax(-1)

    def expected(name: str, cost: Cost) -> Tensor:
        return sum((probs[k] * gradient(name, drawing(k), cost)[0] for k in range(CLASSES)), torch.zeros(CLASSES))

    torch.testing.assert_close(expected("reinmax", quadratic), exact_gradient(quadratic))
    assert (expected("straight-through", quadratic) - exact_gradient(quadratic)).abs().max() > 0.1
    assert (expected("reinmax", cubic) - exact_gradient(cubic)).abs().max() > 0.01  # the check can fail


def test_the_score_function_is_unbiased() -> None:
    probs, total = LOGITS.softmax(-1), torch.zeros(CLASSES, dtype=torch.float64)
    for drawn in product(range(CLASSES), repeat=SCORED):
        total += probs[list(drawn)].prod() * gradient("score-function", drawing(*drawn), cubic)[0]
    torch.testing.assert_close(total, exact_gradient(cubic))


def test_gumbel_softmax_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = gumbels(torch.tensor([5]), torch.tensor(0), (CLASSES,)).double()
    monkeypatch.setattr(Tensor, "exponential_", lambda self: (-noise[0]).exp())  # what torch makes its noise of
    logits = LOGITS.clone().requires_grad_()
    sample = torch.nn.functional.gumbel_softmax(logits.log_softmax(-1), tau=0.6, hard=True)
    (expected,) = torch.autograd.grad(cubic(sample.view(1, 1, 1, 1, -1)).sum(), logits)
    torch.testing.assert_close(gradient("gumbel-softmax", noise, cubic, 0.6)[0], expected)


def test_gumbel_rao_has_the_mean_of_gumbel_softmax_and_less_spread() -> None:
    draws, heat = 20_000, 0.6
    noise = gumbels(torch.tensor([7]), torch.tensor(0), (draws, ESTIMATORS["gumbel-rao"].draws, CLASSES))[0].double()
    rao, plain = gradient("gumbel-rao", noise, cubic, heat), gradient("gumbel-softmax", noise[:, :1], cubic, heat)
    error = ((rao.var(0) + plain.var(0)) / draws).sqrt()
    assert ((rao.mean(0) - plain.mean(0)).abs() < 5 * error).all()
    assert (rao.var(0) < plain.var(0)).all()
    assert (plain.mean(0) - exact_gradient(cubic)).abs().max() > 20 * error.max()  # a bias would be seen


def test_gumbel_raos_noise_draws_the_sample_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a low temperature every relaxed sample is the sample itself."""
    seen: dict[str, Tensor] = {}
    monkeypatch.setattr(
        estimators, "_with_gradient_of", lambda soft, sample, cost: seen.update(soft=soft, sample=sample)
    )
    log_q = LOGITS.log_softmax(-1).expand(500, 1, 1, -1)
    noise = gumbels(torch.arange(500), torch.tensor(0), (11, 1, 1, CLASSES)).double()
    estimators.gumbel_rao(log_q, noise, torch.full((1, 1, 1, 1), 1e-9, dtype=torch.float64), quadratic)
    torch.testing.assert_close(seen["soft"], seen["sample"])


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


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_run_of_a_stack_is_the_run_alone(estimator: str) -> None:
    some, other = images(40), images(55)[40:]
    cell = Cell(2, 5, estimator)
    together = train(cell, RUNS, SMALL, some, {"train": some, "test": other}, CPU)
    for place in (0, 3, len(RUNS) - 1):
        (alone,) = train(cell, RUNS[place : place + 1], SMALL, some, {"train": some, "test": other}, CPU)
        torch.testing.assert_close(numbers(together[place]), numbers(alone), rtol=1e-5, atol=2e-3)
    apart = torch.stack([numbers(found) for found in together])
    assert apart[:, 0].unique().numel() == len(RUNS)  # else there is nothing to tell apart


def test_a_run_that_diverges_harms_no_other() -> None:
    some, cell = images(40), Cell(2, 5, "reinmax")
    lost, kept = Run("softmax", math.nan, 1.0, 4), RUNS[1]
    found = train(cell, [lost, kept], SMALL, some, {"train": some}, CPU)
    (alone,) = train(cell, [kept], SMALL, some, {"train": some}, CPU)
    assert math.isnan(float(found[0]["train"]))
    torch.testing.assert_close(numbers(found[1]), numbers(alone), rtol=1e-5, atol=2e-3)


def test_the_bound_does_not_depend_on_how_images_are_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    some, cell = images(23), Cell(2, 5, "reinmax")
    (whole,) = train(cell, RUNS[:1], SMALL, some, {"train": some}, CPU)
    monkeypatch.setitem(train.__globals__["ROOM"], "cpu", 784 * 2 * 5)  # five images at a time
    (parted,) = train(cell, RUNS[:1], SMALL, some, {"train": some}, CPU)
    assert float(parted["train"]) == pytest.approx(float(whole["train"]), rel=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_gpus_captured_steps_are_the_plain_ones(estimator: str) -> None:
    device = torch.device("cuda")
    some, cell = images(40).to(device), Cell(2, 5, estimator)
    setting = Setting(epochs=2, batch=10, hidden=(12, 8), samples=2, precise=True)
    plain = Setting(epochs=2, batch=10, hidden=(12, 8), samples=2, precise=True, plain=True)
    captured = train(cell, RUNS, setting, some, {"train": some}, device)
    stepped = train(cell, RUNS, plain, some.cpu(), {"train": some.cpu()}, CPU)
    for found, expected in zip(captured, stepped, strict=True):
        torch.testing.assert_close(numbers(found), numbers(expected), rtol=1e-3, atol=0.02)
