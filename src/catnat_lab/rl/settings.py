"""All that decides a training run, with the defaults of the paper's codebase, and three presets."""

import math
from dataclasses import dataclass, replace
from typing import Any

from catnat_lab.errors import UserError, check, check_known, check_least, pick
from catnat_lab.experiment import Plan
from catnat_lab.heads import activation_of, parameterization_of

PAPER_STEPS = 8_000_000
MINATAR = {"Breakout": 3, "Asterix": 5, "Freeway": 3, "Seaquest": 6, "SpaceInvaders": 4}  # and their actions


def is_positive(value: float) -> bool:
    return 0 < value < math.inf


@dataclass(frozen=True)
class Ppo(Plan):
    game: str = "Breakout"
    head: str = "catnat"
    steps: int = PAPER_STEPS  # of all copies of the game together
    envs: int = 8  # copies of the game
    rollout: int = 128  # steps of every copy between two updates
    epochs: int = 4  # passes over a rollout
    minibatches: int = 4
    clip: float = 0.1  # of the probability ratio
    entropy: float = 0.01
    value: float = 0.5  # weight of half the squared error
    gradient: float = 0.5  # largest norm
    discount: float = 0.99
    trace: float = 0.95  # lambda of the advantages

    def __post_init__(self) -> None:
        activation_of(self.head)  # for its check
        check_least(self, steps=1, envs=1, rollout=1, epochs=1, minibatches=1)
        for name in ("clip", "gradient"):
            check(name, [getattr(self, name)], is_positive, "be positive")
        for name in ("entropy", "value"):
            check(name, [getattr(self, name)], lambda value: 0 <= value < math.inf, "not be negative")
        for name in ("discount", "trace"):
            check(name, [getattr(self, name)], lambda value: 0 <= value <= 1, "be between 0 and 1")
        if self.minibatch < 2:
            raise UserError(
                f"minibatches must be at most half the {self.batch} steps of a rollout ({self.envs} envs x "
                f"{self.rollout}); got {self.minibatches}"
            )

    @property
    def batch(self) -> int:
        return self.envs * self.rollout

    @property
    def minibatch(self) -> int:
        """Steps of one; the few that are left of a rollout are left out, others in every pass."""
        return self.batch // self.minibatches

    @property
    def updates(self) -> int:
        """How many rollouts there are: the last one is whole."""
        return -(-self.steps // self.batch)


@dataclass(frozen=True)
class Settings(Ppo):
    seed: int = 1
    rate: float = 2.5e-4
    anneal: bool = True  # the rate, linearly to 0
    clip_value: bool = True
    clip_reward: bool = True  # what the learner sees, to its sign; returns are logged as the game counts them

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, seed=0)
        check("rate", [self.rate], is_positive, "be positive")


@dataclass(frozen=True)
class MinAtarSettings(Ppo):
    """One training on MinAtar, of any number of seeds."""

    steps: int = 10_000_000
    envs: int = 64
    minibatches: int = 8
    clip: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("game", [self.game], MINATAR)
        told = "be softmax or a catnat that does not revive here"  # JAX knows the library's alone
        check("head", [self.head], lambda head: head != "sparsemax" and "revive" not in head, told)
        parameterization_of(self.head, MINATAR[self.game])  # for its check of the tree
        if self.batch % self.minibatches:
            raise UserError(f"minibatches must divide the {self.batch} steps of a rollout; got {self.minibatches}")


def preset(name: str, game: str) -> Settings:
    """smoke (seconds), quick (minutes on two cores) or paper. Vectors in place of images take other defaults."""
    full = Settings(game=game)
    if "-v" in game:  # one of gymnasium's, with the settings of Stable-Baselines3
        small: dict[str, Any] = {"rollout": 256, "epochs": 10, "rate": 1e-3, "clip": 0.2, "entropy": 0.0, "value": 1.0}
        full = replace(full, **small, anneal=False, clip_value=False, clip_reward=False, steps=100_000)
    quick = replace(full, steps=min(full.steps, 100_000))
    smoke = replace(full, steps=64, envs=2, rollout=16, epochs=2, minibatches=2)
    return pick(name, {"smoke": smoke, "quick": quick, "paper": full})
