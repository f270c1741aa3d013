"""All that decides a training run, with the defaults of the paper's codebase, and three presets."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from catnat_lab.errors import UserError
from catnat_lab.heads import check_head

PAPER_STEPS = 8_000_000


@dataclass(frozen=True)
class Settings:
    """One run of PPO."""

    game: str = "Breakout"
    head: str = "catnat-natural"
    seed: int = 1
    steps: int = PAPER_STEPS  # of all copies of the game together
    envs: int = 8  # copies of the game
    rollout: int = 128  # steps of every copy between two updates
    epochs: int = 4  # passes over a rollout
    minibatches: int = 4
    rate: float = 2.5e-4
    anneal: bool = True  # the rate, linearly to 0
    clip: float = 0.1  # of the probability ratio
    clip_value: bool = True
    entropy: float = 0.01
    value: float = 0.5  # weight of half the squared error
    gradient: float = 0.5  # largest norm
    discount: float = 0.99
    trace: float = 0.95  # lambda of the advantages
    clip_reward: bool = True  # what the learner sees, to its sign; returns are logged as the game counts them

    def __post_init__(self) -> None:
        """Name what is wrong, before anything is begun."""
        check_head(self.head)
        least: dict[str, float] = {"seed": 0, "steps": 1, "envs": 1, "rollout": 1, "epochs": 1, "minibatches": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise UserError(f"{name} must be at least {low}; got {getattr(self, name)}")
        for name in ("rate", "clip", "gradient"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"{name} must be positive; got {getattr(self, name)}")
        for name in ("entropy", "value"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"{name} must not be negative; got {getattr(self, name)}")
        for name in ("discount", "trace"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must be between 0 and 1; got {getattr(self, name)}")
        if self.minibatch < 2:
            raise UserError(
                f"minibatches must be at most half the {self.batch} steps of a rollout ({self.envs} envs x "
                f"{self.rollout}); got {self.minibatches}"
            )

    @property
    def batch(self) -> int:
        """Steps of one rollout, of all copies."""
        return self.envs * self.rollout

    @property
    def minibatch(self) -> int:
        """Steps of one; the few that are left of a rollout are left out, others in every pass."""
        return self.batch // self.minibatches

    @property
    def updates(self) -> int:
        """How many rollouts there are: the last one is whole."""
        return -(-self.steps // self.batch)

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def preset(name: str, game: str) -> Settings:
    """smoke (seconds), quick (minutes on two cores) or paper. Vectors in place of images take other defaults."""
    classic = "-v" in game
    full = Settings(game=game)
    if classic:  # as Stable-Baselines3 has them
        small: dict[str, Any] = {"rollout": 256, "epochs": 10, "rate": 1e-3, "clip": 0.2, "entropy": 0.0, "value": 1.0}
        full = replace(full, **small, anneal=False, clip_value=False, clip_reward=False, steps=100_000)
    if name == "paper":
        return full
    if name == "quick":
        return replace(full, steps=min(full.steps, 100_000))
    if name == "smoke":
        return replace(full, steps=64, envs=2, rollout=16, epochs=2, minibatches=2)
    raise UserError(f"preset must be one of smoke, quick, paper; got {name!r}")
