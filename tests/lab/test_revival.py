"""`benchmarks.revival`: runs that differ in nothing but the gradient of scores outside the natural range."""

from __future__ import annotations

import csv
import math
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import revival
from benchmarks.revival import CLASSES, VARIABLES, WAYS, Kind, Parted
from catnat_lab.heads import head
from catnat_lab.vae.data import images_of
from catnat_lab.vae.digits import Digits
from catnat_lab.vae.objective import OBJECTIVES, gumbels, kl_from_uniform
from catnat_lab.vae.train import Plan

IMAGES = Digits(*torch.randint(256, (2, 40, 784), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)), "")
BATCH = 16
FLOORS = (1e-4, 1e-6)


def parted(baseline: str) -> Parted:
    kinds = [Kind(*each, baseline) for each in product(WAYS, FLOORS)]
    plan = Plan("narrow", VARIABLES, CLASSES, "adam", "score-function", 1, BATCH, 0)
    images = images_of(IMAGES, ("bernoulli",), split_test=True)
    return Parted(kinds, 0.001, 1, plan, images, torch.device("cpu"))


def gradients(trainer: Parted) -> tuple[dict[tuple[str, float], Tensor], Tensor, Tensor]:
    """Of the same images, scores and noise in every run, by way and floor; and these scores and the noise."""
    one = 3 * torch.randn(BATCH, VARIABLES, CLASSES - 1, generator=torch.Generator().manual_seed(1))
    noise = gumbels(torch.empty(BATCH, VARIABLES, CLASSES))
    scores = one.repeat(len(trainer.kinds), 1, 1, 1).requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revival, "gumbels", lambda like: noise.expand_as(like))
        losses, _ = trainer.losses(torch.ones(len(trainer.kinds), BATCH, 784), trainer.stack.views(), scores)
    (found,) = torch.autograd.grad(losses.sum(), scores)
    return {(kind.way, kind.floor): gradient for kind, gradient in zip(trainer.kinds, found, strict=True)}, one, noise


@pytest.mark.parametrize("baseline", ["constant", "leave-one-out"])
def test_the_library_is_two_of_the_ways_and_the_others_are_its_parts(baseline: str) -> None:
    torch.manual_seed(0)
    trainer = parted(baseline)
    found, one, noise = gradients(trainer)
    objective = OBJECTIVES["score-function" if baseline == "constant" else "score-function, leave-one-out"]
    views = [view[:1] for view in trainer.stack.views()]  # all runs start alike
    for way, floor in product(("clip", "revive"), FLOORS):
        scores = one[None].clone().requires_grad_()
        log_q = head(f"catnat-{way}{floor:g}", CLASSES).log_probs(scores)
        losses, _ = objective(trainer.stack, torch.ones(1, BATCH, 784), views, log_q, noise[None])
        (expected,) = torch.autograd.grad(losses.sum(), scores)
        torch.testing.assert_close(found[way, floor], expected[0])
    for floor in FLOORS:
        outside = one.abs() > math.pi - 4 * math.asin(math.sqrt(floor))  # where a node sits on the floor
        clip, draws, entropy, apart, revive = (found[way, floor] for way in WAYS)
        torch.testing.assert_close(draws + entropy, clip + apart)
        for gradient in (draws, entropy, apart, revive):
            torch.testing.assert_close(gradient[~outside], clip[~outside])
            assert bool((gradient * one >= 0)[outside].all())  # a step against it leads back inside
            assert bool(gradient[outside].any())
        assert not clip[outside].any()
        scores = one.clone().requires_grad_()
        bound = kl_from_uniform(head(f"catnat-revive{floor:g}", CLASSES).log_probs(scores)).sum()
        (of_entropy,) = torch.autograd.grad(bound, scores)
        torch.testing.assert_close(entropy[outside], of_entropy[outside])
        # the gate sees the sum of both parts: what it lets pass is no more than each that leads back by itself
        assert bool((revive.abs() <= apart.abs() + 1e-6)[outside].all())


def test_a_seed_is_trained_once_and_its_file_says_how_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        revival, "load_digits", lambda folder: Digits(*(part.repeat(8, 1) for part in (IMAGES.train, IMAGES.test)), "")
    )
    command = ["revival", "--steps", "4", "--every", "2", "--ways", "clip", "entropy", "--output", str(tmp_path)]
    for seeds in (["1"], ["1", "2"]):
        monkeypatch.setattr("sys.argv", [*command, "--seeds", *seeds])
        revival.main()
    assert "seed1.csv is there already" in capsys.readouterr().err
    for seed in ("1", "2"):
        with (tmp_path / f"seed{seed}.csv").open() as file:
            rows = list(csv.DictReader(file))
        told = {(row["way"], row["baseline"], row["step"], row["seed"]) for row in rows}
        assert told == set(product(("clip", "entropy"), ("constant", "leave-one-out"), ("2", "4"), (seed,)))
        for row in rows:
            entropy = VARIABLES * math.log(CLASSES) - float(row["kl"])
            assert float(row["elbo_paper"]) == pytest.approx(entropy - float(row["bce"]), abs=0.1)
    assert (tmp_path / "provenance.json").exists()
