"""The policy and value networks: a convolutional trunk that both share for images, one small net each for vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

HIDDEN = 64  # units of the nets for vectors
FEATURES = 512  # of the trunk for images


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float = math.sqrt(2)) -> nn.Module:
    """The layer with orthogonal weights and no bias to start with."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class ActorCritic(nn.Module):
    """Scores of a policy and a value for every observation. Call it inside `torch.random.fork_rng` for given weights.

    Args:
        observation: Shape of one: [4, 84, 84] bytes, or [n] floats.
        scores: How many the head takes.
    """

    def __init__(self, observation: tuple[int, ...], scores: int) -> None:
        super().__init__()
        self.pixels = len(observation) == 3
        self.trunk: nn.Module = nn.Identity()
        if self.pixels:
            self.trunk = nn.Sequential(
                orthogonal(nn.Conv2d(observation[0], 32, 8, stride=4)),
                nn.ReLU(),
                orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
                nn.ReLU(),
                orthogonal(nn.Conv2d(64, 64, 3)),
                nn.ReLU(),
                nn.Flatten(),
                orthogonal(nn.Linear(64 * 7 * 7, FEATURES)),
                nn.ReLU(),
            )
            self.policy = orthogonal(nn.Linear(FEATURES, scores), 0.01)
            self.value = orthogonal(nn.Linear(FEATURES, 1), 1.0)
        else:
            self.policy = _small(observation[0], scores, 0.01)
            self.value = _small(observation[0], 1, 1.0)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [B, S] and values [B]."""
        x = self.trunk(observation.to(torch.float32).div(255.0) if self.pixels else observation)
        return self.policy(x), self.value(x).squeeze(-1)


def _small(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(
        orthogonal(nn.Linear(inputs, HIDDEN)),
        nn.Tanh(),
        orthogonal(nn.Linear(HIDDEN, HIDDEN)),
        nn.Tanh(),
        orthogonal(nn.Linear(HIDDEN, outputs), gain),
    )
