"""A step in torch's compiled kernels is the step of plain code: on a GPU, or where there is none on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from catnat_lab.devices import fused
from catnat_lab.heads import PAPER_HEADS
from catnat_lab.vae import train as training
from catnat_lab.vae.data import images_of
from catnat_lab.vae.digits import Digits
from catnat_lab.vae.presets import TABLES
from catnat_lab.vae.stack import Run

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RUNS = sorted((Run("grey", name, 0.1, seed) for name in PAPER_HEADS for seed in (1, 2)), key=lambda run: run.head)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["sgd", "mlp"])
def test_a_fused_step_is_a_plain_one(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps: the second sees the running statistics and parameters that the first has changed in place."""
    network, _, estimator = TABLES[table]
    plan = training.Plan(network, 3, 4, "sgd", estimator, steps=2, batch=20)
    pixels = torch.randint(0, 256, (240, 784), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = images_of(Digits(pixels, pixels[:30], "noise"), ("grey",), False)
    noise = torch.rand(len(RUNS), 20, 3, 4, generator=torch.Generator().manual_seed(1))
    by_device = {device: noise.to(device) for device in (torch.device("cpu"), DEVICE)}
    monkeypatch.setattr(training, "gumbels", lambda like: by_device[torch.device(like.device.type)])

    def state_after(device: torch.device) -> dict[str, Tensor]:
        one = training.Trainer(RUNS, plan, images, ("grey",), device)
        one.order.copy_(torch.arange(one.order.shape[1]))
        for _ in range(2):
            one.repeated(one._step)
        return {name: tensor.cpu() for name, tensor in one.state().items()}

    plain = state_after(torch.device("cpu"))
    monkeypatch.setattr(training, "fused", lambda function, device: fused(function, torch.device("cuda")))
    for name, tensor in state_after(DEVICE).items():
        torch.testing.assert_close(tensor, plain[name], rtol=1e-3, atol=1e-4, msg=name)
