"""PPO learns to do what it sees: a game of one step, whose observation shows the action that is rewarded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from catnat_lab.rl.games import Array, Step
from catnat_lab.rl.ppo import Learner, preset
from tests.thinned import thinned


class Show:
    """Every copy shows a number, as a one-hot vector or as a bright band of an image; doing it is worth 1."""

    name = "Show"

    def __init__(self, count: int, actions: int, pixels: bool) -> None:
        self.count, self.actions, self.pixels = count, actions, pixels
        self.observation: tuple[int, ...] = (4, 84, 84) if pixels else (actions,)
        self.random = np.random.default_rng(0)
        self.shown: Array = np.zeros(count, int)

    def reset(self, seed: int) -> tuple[Array, None]:
        """Begin anew."""
        return self._next(), None

    def _next(self) -> Array:
        self.shown = self.random.integers(0, self.actions, self.count)
        if not self.pixels:
            return np.eye(self.actions, dtype=np.float32)[self.shown]
        bands = np.arange(84) * self.actions // 84 == self.shown[:, None]
        return np.broadcast_to(bands[:, None, None, :] * np.uint8(255), (self.count, 4, 84, 84))

    def step(self, actions: Array) -> Step:
        """One step, and another number."""
        reward = (actions == self.shown).astype(np.float32)
        ended = np.ones(self.count, bool)
        return Step(self._next(), reward, ended, ended)

    def history(self) -> dict[str, Any]:
        """None is kept."""
        return {}

    def replay(self, history: dict[str, Any]) -> tuple[Array, None]:
        """Of nothing."""
        return self._next(), None


def score(name: str, *, pixels: bool, envs: int, rollout: int, updates: int, rate: float) -> float:
    """The mean reward of the last rollout; drawing blindly gives 1 / 4."""
    settings = replace(preset("paper", "CartPole-v1"), head=name, envs=envs, rollout=rollout, rate=rate)
    settings = replace(settings, epochs=4, minibatches=4, steps=updates * envs * rollout)
    learner = Learner(settings, Show(envs, 4, pixels), torch.device("cpu"))
    for _ in range(updates):
        learner.update()
    return float(learner.rewards.mean())


@pytest.mark.parametrize("name", thinned(["catnat-paper", "softmax"]))  # CartPole has them all, in `make test-all`
def test_from_vectors(name: str) -> None:
    assert score(name, pixels=False, envs=8, rollout=16, updates=25, rate=5e-3) > 0.8


@pytest.mark.slow
def test_from_images() -> None:
    assert score("catnat-paper", pixels=True, envs=4, rollout=8, updates=25, rate=1e-3) > 0.8
