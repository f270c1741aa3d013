"""`benchmarks.revival`: runs that differ in nothing but the gradient of scores outside the natural range."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import revival
from benchmarks.revival import CLASSES, VARIABLES, WAYS, Kind, Parted
from catnat_lab.heads import head
from catnat_lab.vae import objective
from catnat_lab.vae.data import images_of
from catnat_lab.vae.digits import Digits
from catnat_lab.vae.objective import gumbels, kl_from_uniform
from catnat_lab.vae.train import Plan

IMAGES = Digits(*torch.randint(256, (2, 40, 784), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)), "")
BATCH = 16
HALF = 784 * math.log(2)  # what an untrained decoder costs: some draws cost more and some less
FLOORS = (1e-4, 1e-6)


def parted(baseline: str) -> Parted:
    kinds = [Kind(*each, baseline) for each in product(WAYS, FLOORS)]
    plan = Plan("narrow", VARIABLES, CLASSES, "adam", "score-function", 1, BATCH, 0)
    images = images_of(IMAGES, ("bernoulli",), split_test=True)
    return Parted(kinds, 0.001, 1, plan, images, torch.device("cpu"))


def gradients(trainer: Parted) -> tuple[dict[tuple[str, float], Tensor], Tensor, Tensor]:
    """Of the same white images, scores and noise in every run, by way and floor; and these scores and the noise."""
    one = 3 * torch.randn(BATCH, VARIABLES, CLASSES - 1, generator=torch.Generator().manual_seed(1))
    noise = 100 * gumbels(torch.empty(BATCH, VARIABLES, CLASSES))  # so large that rare classes are drawn
    scores = one.repeat(len(trainer.kinds), 1, 1, 1).requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revival, "gumbels", lambda like: noise.expand_as(like))
        patch.setattr(revival, "BASELINE", HALF)
        losses, _ = trainer.losses(torch.ones(len(trainer.kinds), BATCH, 784), trainer.stack.views(), scores)
    (found,) = torch.autograd.grad(losses.sum(), scores)
    return {(kind.way, kind.floor): gradient for kind, gradient in zip(trainer.kinds, found, strict=True)}, one, noise


@pytest.mark.parametrize("baseline", ["constant", "leave-one-out"])
def test_the_library_is_two_of_the_ways_and_the_others_are_its_parts(
    baseline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(objective, "BASELINE", HALF)
    trainer = parted(baseline)
    found, one, noise = gradients(trainer)
    estimate = objective.OBJECTIVES["score-function" if baseline == "constant" else "score-function, leave-one-out"]
    views = [view[:1] for view in trainer.stack.views()]  # all runs start alike
    for way, floor in product(("clip", "revive"), FLOORS):
        scores = one[None].clone().requires_grad_()
        log_q = head(f"catnat-{way}{floor:g}", CLASSES).log_probs(scores)
        losses, _ = estimate(trainer.stack, torch.ones(1, BATCH, 784), views, log_q, noise[None])
        (expected,) = torch.autograd.grad(losses.sum(), scores)
        torch.testing.assert_close(found[way, floor], expected[0])
    for floor in FLOORS:
        outside = one.abs() > math.pi - 4 * math.asin(math.sqrt(floor))  # where a node sits on the floor
        clip, rare, likely, draws, entropy, apart, revive = (found[way, floor] for way in WAYS)
        torch.testing.assert_close(draws + entropy, clip + apart)
        torch.testing.assert_close(rare + likely, clip + draws)
        for gradient in (rare, likely, draws, entropy, apart, revive):
            torch.testing.assert_close(gradient[~outside], clip[~outside])
            assert bool((gradient * one >= 0)[outside].all())  # a step against it leads back inside
            assert bool(gradient[outside].any())
        assert not clip[outside].any()
        scores = one.clone().requires_grad_()
        bound = kl_from_uniform(head(f"catnat-revive{floor:g}", CLASSES).log_probs(scores)).sum()
        (of_entropy,) = torch.autograd.grad(bound, scores)
        torch.testing.assert_close(entropy[outside], of_entropy[outside])
        # where the drawn class lies: right of a node, left of it or elsewhere; a node above the range goes mostly right
        index = (head(f"catnat-clip{floor:g}", CLASSES).log_probs(one) + noise).argmax(-1)
        by_sigmoid = revival.log_prob(head("catnat-sigmoid", CLASSES).log_probs(scores), index)
        (side,) = torch.autograd.grad(by_sigmoid.sum(), scores)
        assert not rare[outside & (side * one >= 0)].any() and not likely[outside & (side * one <= 0)].any()
        # the gate sees the sum of both parts: what it lets pass is no more than each that leads back by itself
        assert bool((revive.abs() <= 1.00001 * apart.abs() + 1e-6)[outside].all())


@pytest.mark.parametrize("floor", [1e-8, 1e-6, 1e-4])
def test_what_leads_back_has_the_slopes_that_the_documentation_says(floor: float) -> None:
    one = head(f"catnat-revive{floor:g}", 2)

    def slope(part: Callable[[Tensor], Tensor]) -> float:
        score = torch.tensor([4.0], dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(part(one.log_probs(score)), score)
        return float(found)

    root = math.sqrt(floor)
    assert slope(lambda log_q: -log_q[0]) == pytest.approx(1 / (2 * root), rel=1e-3)  # cheaper than the baseline, rare
    assert slope(lambda log_q: log_q[1]) == pytest.approx(root / 2, rel=1e-3)  # dearer, likely
    assert slope(kl) == pytest.approx(root / 2 * math.log(1 / floor), rel=1e-3)
    assert slope(lambda log_q: log_q[0]) == slope(lambda log_q: -log_q[1]) == 0  # these lead further out


def kl(log_q: Tensor) -> Tensor:
    return kl_from_uniform(log_q[None])


def test_a_seed_is_trained_once_and_its_file_says_how_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        revival, "load_digits", lambda folder: Digits(*(part.repeat(8, 1) for part in (IMAGES.train, IMAGES.test)), "")
    )
    command = ["revival", "--steps", "4", "--every", "2", "--output", str(tmp_path)]
    tries = (["--ways", "clip", "--seeds", "1"], ["--ways", "clip", "entropy"], ["--ways", "entropy"])
    for some in tries:
        monkeypatch.setattr("sys.argv", [*command, "--seeds", "1", "2", *some])  # the last --seeds counts
        revival.main()
    assert capsys.readouterr().err.count("has all of it") == 2  # at the last try, of both seeds
    for seed in ("1", "2"):
        rows = revival.rows_in(tmp_path / f"seed{seed}.csv")
        told = [(row["way"], row["baseline"], row["step"], row["seed"]) for row in rows]
        expected = set(product(("clip", "entropy"), ("constant", "leave-one-out"), ("2", "4"), (seed,)))
        assert set(told) == expected and len(told) == len(expected)
        for row in rows:
            entropy = VARIABLES * math.log(CLASSES) - float(row["kl"])
            assert float(row["elbo_paper"]) == pytest.approx(entropy - float(row["bce"]), abs=0.1)
    assert (tmp_path / "provenance.json").exists()
    first = (tmp_path / "seed1.csv").read_text()
    for wrong, told in (
        (["--rate", "0.1"], "has runs with .*0.001.*; got .*0.1"),
        (["--every", "3"], "must divide"),
        (["--every", "0"], "must divide"),
    ):
        monkeypatch.setattr("sys.argv", [*command, *wrong])
        with pytest.raises(SystemExit):
            revival.main()
        assert re.search(told, capsys.readouterr().err)
    (tmp_path / "seed1.csv").unlink()
    for ways in (["clip"], ["entropy"]):  # as before
        monkeypatch.setattr("sys.argv", [*command, "--seeds", "1", "--ways", *ways])
        revival.main()
    assert (tmp_path / "seed1.csv").read_text() == first


def test_a_step_descends() -> None:
    torch.manual_seed(0)
    trainer = parted("constant")
    before = trainer.stack.parameters.detach().clone()
    trainer.step(0)
    assert bool((trainer.stack.parameters != before).any(1).all())
