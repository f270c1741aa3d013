"""On a GPU: captured play and learning are the eager ones, and a stopped run goes on."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from catnat_lab.checkpoint import read
from catnat_lab.devices import Repeated
from catnat_lab.experiment import RunContext
from catnat_lab.rl.games import make_games
from catnat_lab.rl.ppo import CHECKPOINT, Learner, preset, train

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.mark.parametrize("game", ["Breakout", "CartPole-v1", "Taxi-v4"])
@pytest.mark.parametrize("name", ["softmax", "catnat-paper"])
def test_captured_updates_are_eager_updates(game: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same games, actions and weights after two updates."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # Adam makes much of sums in another order
    settings = replace(preset("smoke", game), head=name, envs=2, rollout=8, minibatches=2, epochs=2, steps=64)

    def learnt() -> Learner:
        learner = Learner(settings, make_games(game, 2), CUDA)
        for _ in range(2):
            learner.update()
        return learner

    captured = learnt()
    monkeypatch.setattr(Repeated, "__call__", lambda repeated, function: function())
    eager = learnt()
    assert torch.equal(captured.actions, eager.actions) and torch.equal(captured.observations, eager.observations)
    for ours, theirs in zip(captured.parameters, eager.parameters, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    settings = replace(preset("paper", "CartPole-v1"), envs=4, rollout=32, minibatches=2, epochs=2, steps=1280)
    whole = train(settings, RunContext(tmp_path / "whole", "cuda"))
    assert not train(settings, RunContext(tmp_path / "parts", "cuda", ends=0.0)).finished
    again = train(settings, RunContext(tmp_path / "parts", "cuda"))
    assert again.finished and again.episodes == whole.episodes
    ours, theirs = (read(tmp_path / name / CHECKPOINT).tensors for name in ("parts", "whole"))
    for key, value in ours.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, theirs[key], rtol=1e-3, atol=1e-5, msg=key)


def test_learners_come_and_go(tmp_path: Path) -> None:
    """Garbage of the first is there when the second captures."""
    settings = replace(preset("smoke", "CartPole-v1"), steps=64)
    for i in range(3):
        gc.collect()
        assert train(replace(settings, seed=i), RunContext(tmp_path / f"{i}", "cuda")).finished
