"""A step in torch's compiled kernels is the step of plain code: on a GPU, or where there is none on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from catnat_lab import devices
from catnat_lab.heads import PAPER_HEADS
from catnat_lab.vae import train
from catnat_lab.vae.data import images_of
from catnat_lab.vae.digits import Digits
from catnat_lab.vae.presets import TABLES
from catnat_lab.vae.stack import Run

CPU, GPU = torch.device("cpu"), torch.device("cuda")
DEVICE = GPU if torch.cuda.is_available() else CPU
RUNS = [Run("grey", name, 0.01, seed) for name in sorted(PAPER_HEADS) for seed in (1, 2)]


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are compiled on a CPU, too, and every step has the same noise."""
    monkeypatch.setattr(devices, "_compiles", lambda device: True)
    noise = torch.rand(len(RUNS), 20, 3, 4, generator=torch.Generator().manual_seed(1))
    by_device = {device.type: noise.to(device) for device in (CPU, DEVICE)}
    monkeypatch.setattr(train, "gumbels", lambda like: by_device[like.device.type])


def state_after_two_steps(table: str, optimizer: str, device: torch.device) -> dict[str, Tensor]:
    """The second step sees the running statistics and parameters that the first has changed in place."""
    network, _, estimator = TABLES[table]
    plan = train.Plan(network, 3, 4, optimizer, estimator, steps=2, batch=20)
    pixels = torch.randint(0, 256, (240, 784), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = images_of(Digits(pixels, pixels[:30], "noise"), ("grey",), False)
    one = train.Trainer(RUNS, plan, images, ("grey",), device)
    one.order.copy_(torch.arange(one.order.shape[1]))
    for _ in range(2):
        one.repeated(one._step)
    return {name: tensor.cpu() for name, tensor in one.state().items()}


def plain(monkeypatch: pytest.MonkeyPatch, *case: str) -> dict[str, Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(devices, "_compiles", lambda device: False)
        return state_after_two_steps(*case, CPU)


@pytest.mark.slow
@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("table", ["sgd", "mlp"])
def test_a_fused_step_is_a_plain_one(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(monkeypatch, table, "sgd")
    for name, tensor in state_after_two_steps(table, "sgd", DEVICE).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(("optimizer", "count"), [("sgd", 2), ("adam", 3)])
def test_a_step_is_a_few_whole_graphs(optimizer: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the encoder does, what follows the heads, and Adam: each is traced once, and does what plain code does."""
    expected = plain(monkeypatch, "adam", optimizer)
    graphs = traced(monkeypatch)
    for name, tensor in state_after_two_steps("adam", optimizer, CPU).items():
        if name != "parameters" or optimizer == "sgd":  # Adam goes by the signs of gradients that are rounding alone
            torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5, msg=name)
    assert len(graphs) == count


@pytest.mark.usefixtures("everywhere")
def test_more_shapes_come_than_torch_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = traced(monkeypatch)
    for size in range(2, 13):
        devices.forget_fused(CPU)
        assert devices.fused(torch.neg, CPU)(torch.ones(size)).sum() == -size
    assert len(graphs) == 11


def traced(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """What torch's compiler makes graphs of from now on; they are run as they are, for kernels take long to make."""
    real, found = torch.compile, []

    def as_it_is(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        found.append(graph)
        return graph.forward

    def compile(function: Callable[..., Any], **options: Any) -> Any:
        assert options == {"dynamic": False, "fullgraph": True}
        return real(function, backend=as_it_is, **options)

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", compile)
    return found
