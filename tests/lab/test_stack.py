"""One program for many runs is every run by itself: its steps, its heads, and what is picked out of it or put back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from catnat_lab.heads import head
from catnat_lab.stack import OPTIMIZERS, Stack, sorted_by_head

CPU, CLASSES = torch.device("cpu"), 3
SHAPES = [(2, CLASSES), (4,)]


@dataclass(frozen=True)
class Run:
    head: str
    rate: float


RUNS = [Run("catnat", 0.03), Run("catnat-sigmoid", 0.1), Run("softmax", 0.01), Run("softmax", 0.003)]


def stack_of(runs: list[Run] = RUNS, rows: slice = slice(None), optimizer: str = "adam", **options: Any) -> Stack:
    starts = torch.randn(len(RUNS), 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Stack(runs, CLASSES, starts[rows].clone(), SHAPES, CPU, optimizer=optimizer, **options)


def loss(log_probs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Of runs [R, 2, K] and [R, 4], or of one."""
    return -log_probs[..., 0, 1] - 0.5 * log_probs[..., 1, 2] + weight.square().sum(-1)


def descend(stack: Stack, steps: int) -> None:
    for _ in range(steps):
        scores, weight = stack.views()
        stack.step(loss(stack.log_probs(scores), weight).sum())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_of_a_stack_is_torchs_own_optimizer_on_one_model(optimizer: str) -> None:
    stack = stack_of(optimizer=optimizer)
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]
    for row, run in enumerate(RUNS):
        parameter = torch.nn.Parameter(stack.run(row)["parameters"])
        stepper = kind([parameter], lr=run.rate)
        alone, one = stack_of(), head(run.head, CLASSES)
        for _ in range(4):
            scores, weight = parameter.split(alone.sizes)
            stepper.zero_grad()
            loss(one.log_probs(scores.view(2, CLASSES)[:, : one.width]), weight).backward()
            stepper.step()
        together = stack_of(optimizer=optimizer)
        descend(together, 4)
        torch.testing.assert_close(together.run(row)["parameters"], parameter.detach())


def test_a_run_that_is_picked_out_goes_on_alone_as_among_others() -> None:
    stack = stack_of(buffers=[torch.arange(4.0)])
    descend(stack, 2)
    alone = stack_of(RUNS[1:2], slice(1, 2), buffers=[torch.zeros(1)])
    alone.put({name: value[1:2] if value.dim() else value for name, value in stack.state().items()})
    assert alone.buffers[0].tolist() == [1.0] and stack.run(1)["buffer0"] == 1.0
    descend(stack, 2)
    descend(alone, 2)
    torch.testing.assert_close(alone.run(0)["parameters"], stack.run(1)["parameters"])


def test_what_is_picked_out_does_not_change_with_the_stack() -> None:
    stack = stack_of()
    before = stack.run(0)["parameters"].clone()
    kept = stack.run(0)["parameters"]
    descend(stack, 1)
    assert torch.equal(kept, before) and not torch.equal(stack.run(0)["parameters"], before)


def test_scores_are_brought_back_head_by_head() -> None:
    runs = [Run("softmax", 0.1), Run("sparsemax", 0.1)]
    stack = stack_of(runs, slice(2))
    scores = stack.views()[0]
    with torch.no_grad():
        scores.copy_(torch.tensor([5.0, 0.0, -5.0]).expand_as(scores))
    stack.project(scores)
    back = stack.log_probs(stack.views()[0]).exp()
    assert torch.equal(stack.views()[0][0, 0], torch.tensor([5.0, 0.0, -5.0], dtype=torch.float64))
    assert back[1].min() >= 0.9e-3


def test_runs_are_trained_by_head_and_told_as_they_came() -> None:
    seen: list[Run] = []

    @sorted_by_head
    def train(runs: list[Run]) -> list[float]:
        seen.extend(runs)
        return [run.rate for run in runs]

    assert train(RUNS[::-1]) == [run.rate for run in RUNS[::-1]]
    assert [run.head for run in seen] == sorted(run.head for run in RUNS)
    with pytest.raises(ValueError, match="sorted by head"):
        stack_of(RUNS[::-1])
