"""On a GPU: captured steps are those that are not, steps of Adam are those of a CPU, and a killed run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from catnat_lab.devices import fused
from catnat_lab.heads import PAPER_HEADS
from catnat_lab.stack import adam_step
from catnat_lab.vae.data import images_of
from catnat_lab.vae.digits import Digits
from catnat_lab.vae.train import Outcome, Plan, Run, Trainer, checkpoint_of, train
from tests.lab.vae_cases import Kill

pytestmark = pytest.mark.gpu
PLAN = Plan(variables=3, classes=4, steps=12, batch=20, samples=4)
RUNS = sorted((Run("grey", name, 0.002, seed) for name in PAPER_HEADS for seed in (1, 2)), key=lambda run: run.head)


def noise() -> Digits:
    pixels = torch.randint(0, 256, (240, 784), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Digits(pixels, pixels[:30], "noise")


def trainer() -> Trainer:
    torch.manual_seed(3)
    return Trainer(RUNS, PLAN, images_of(noise(), ("grey",), False), ("grey",), torch.device("cuda"))


def test_captured_steps_are_eager_steps() -> None:
    captured, eager = trainer(), trainer()
    torch.manual_seed(4)
    for step in range(12):
        captured.step(step)
    torch.manual_seed(4)
    for step in range(12):
        if step % eager.batches == 0:
            eager.order.copy_(torch.rand(eager.order.shape, device="cuda").argsort(1))
        eager._step()
    for name, tensor in captured.state().items():
        torch.testing.assert_close(tensor, eager.state()[name], rtol=1e-4, atol=1e-4, msg=name)


def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcomes() -> list[Outcome]:
        saved = checkpoint_of(tmp_path, RUNS, PLAN, "cuda")
        return train(RUNS, PLAN, images_of(noise(), ("grey",), False), ("grey",), "cuda", saved=saved)

    whole = outcomes()
    Kill(monkeypatch, at=7)
    with pytest.raises(KeyboardInterrupt):
        outcomes()
    again = outcomes()
    for one, other in zip(whole, again, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-3, nan_ok=True)


def test_a_step_of_adam_is_that_of_a_cpu() -> None:
    p, gradient = torch.randn(3, 5000), torch.randn(3, 5000)
    rates, step = torch.tensor([[0.1], [0.01], [0.001]]), torch.tensor(3)
    ours = [p.clone(), torch.rand_like(p), torch.rand_like(p)]
    theirs = [tensor.cuda() for tensor in ours]
    adam_step(ours[0], gradient, ours[1], ours[2], rates, step)
    fused(adam_step, torch.device("cuda"))(theirs[0], gradient.cuda(), theirs[1], theirs[2], rates.cuda(), step.cuda())
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-5, atol=1e-6)
