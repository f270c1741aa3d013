"""On a GPU a step is compiled, captured and replayed: it is the step of plain code. What is traced is seen on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from catnat_lab import devices
from catnat_lab.heads import PAPER_HEADS
from catnat_lab.vae import train
from catnat_lab.vae.study import TABLES
from tests.lab.vae_cases import Kill, bars

CPU, GPU = torch.device("cpu"), torch.device("cuda")
RUNS = [train.Run("grey", name, 0.01, seed) for name in sorted(PAPER_HEADS) for seed in (1, 2)]


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are compiled on a CPU, too."""
    monkeypatch.setattr(devices, "_compiles", lambda device: True)


def call(function: Callable[[], None]) -> None:
    function()


def state_after_two_steps(table: str, optimizer: str, device: torch.device, captured: bool = True) -> dict[str, Tensor]:
    """The second step sees the running statistics and parameters that the first has changed in place."""
    network, _, estimator = TABLES[table]
    plan = train.Plan(network, 3, 4, optimizer, estimator, steps=2, batch=20)
    one = train.Trainer(RUNS, plan, bars(), ("grey",), device)
    torch.manual_seed(1)  # the noise is drawn outside of what is compiled
    one.order.copy_(torch.arange(one.order.shape[1]))
    for _ in range(2):
        (one.repeated if captured else call)(one._step)
    return {name: tensor.cpu() for name, tensor in one.state().items()}


def plain(monkeypatch: pytest.MonkeyPatch, device: torch.device, *case: str) -> dict[str, Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(devices, "_compiles", lambda device: False)
        return state_after_two_steps(*case, device, captured=False)


@pytest.mark.gpu
@pytest.mark.parametrize("table", ["sgd", "mlp"])
def test_a_compiled_and_captured_step_is_a_plain_one(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(monkeypatch, GPU, table, "sgd")
    for name, tensor in state_after_two_steps(table, "sgd", GPU).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.gpu
def test_a_killed_run_goes_on_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = train.Plan(variables=3, classes=4, steps=12, batch=20, samples=4)

    def outcomes() -> list[train.Outcome]:
        saved = train.checkpoint_of(tmp_path, RUNS, plan, "cuda")
        return train.train(RUNS, plan, bars(), ("grey",), "cuda", saved=saved)

    whole = outcomes()
    Kill(monkeypatch, at=7)
    with pytest.raises(KeyboardInterrupt):
        outcomes()
    for one, other in zip(whole, outcomes(), strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-3, nan_ok=True)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(("optimizer", "count"), [("sgd", 2), ("adam", 3)])
def test_a_step_is_a_few_whole_graphs(optimizer: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the encoder does, what follows the heads, and Adam: each is traced once, and does what plain code does."""
    expected = plain(monkeypatch, CPU, "adam", optimizer)
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
