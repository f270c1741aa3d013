"""A policy: PPO on MinAtar in JAX. A program is compiled for every head, so all stacks of a head have one size."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

import torch

from catnat_lab import experiment
from catnat_lab.heads import tail_head
from catnat_lab.tails.tasks import PAPER, SIGMOID, SOFTMAX, Progress, Run, Task

# A tenth, or so, of what a good policy reaches.
TOLERANCES = {"Breakout": 1.0, "Asterix": 1.5, "Seaquest": 1.0}


@dataclass(frozen=True, kw_only=True)
class Policy(Task):
    game: str
    steps: int = 3_000_000
    envs: int = 64
    measure: str = "score per episode"
    lower_is_better: bool = False
    rates: tuple[float, ...] = (0.0001, 0.00032, 0.001, 0.0032, 0.01)
    heads: tuple[str, ...] = (SOFTMAX, SIGMOID, tail_head(0.1), tail_head(0.05), tail_head(0.01), PAPER)
    search_seeds: int = 2
    seeds: int = 10  # as many as a search has runs, so that nothing is compiled twice
    at_once: int = 10

    @classmethod
    def of(cls, game: str) -> Self:
        return cls(name=f"policy, MinAtar {game}", game=game, tolerance=TOLERANCES[game])

    def train(self, runs: Sequence[Run], device: torch.device, progress: Progress) -> list[experiment.Outcome]:
        """The runs of every head side by side. JAX takes the GPU where it finds one."""
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch wants some of the GPU too
        import jax.numpy as jnp  # here: the other tasks need no JAX

        from catnat_lab.rl.minatar import Outcome, program
        from catnat_lab.rl.settings import MinAtarSettings

        found: dict[Run, experiment.Outcome] = {}
        for head, group in groupby(sorted(runs, key=lambda run: run.head), key=lambda run: run.head):
            some = list(group)
            settings = MinAtarSettings(self.game, head, self.steps, self.envs)
            training = program(settings)
            state = training.begin(jnp.array([run.seed for run in some]))
            outcome, rates = Outcome.nothing(len(some), settings.updates), jnp.array([run.rate for run in some])
            for done in range(settings.updates):
                state, told = training.update(state, rates, settings.updates)
                outcome.add(done, told)
                progress(f"{self.name}, {head}", done + 1, settings.updates)
            for run, score in zip(some, outcome.scores(), strict=True):
                found[run] = experiment.Outcome(-score, {"test": score}, {})
        return [found[run] for run in runs]
