"""The paper's experiments as tasks: graphs, categorical VAEs on MNIST, and a policy on MinAtar."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Self

import torch

from catnat_lab.experiment import Outcome
from catnat_lab.gsl import train as gsl
from catnat_lab.gsl.data import Dataset, make_dataset
from catnat_lab.gsl.presets import Settings
from catnat_lab.heads import tail_head
from catnat_lab.tails.tasks import PAPER, SIGMOID, SOFTMAX, Progress, Run, Task
from catnat_lab.vae import stack
from catnat_lab.vae import train as vae
from catnat_lab.vae.data import Images, images_of
from catnat_lab.vae.digits import Digits

LOST = 0.5  # an edge that is there counts as lost below this share of its probability
# A tenth, or so, of what a good policy reaches.
TOLERANCES = {"Breakout": 1.0, "Asterix": 1.5, "Seaquest": 1.0}


@dataclass(frozen=True, kw_only=True)
class Graphs(Task):
    """One theta*, at the paper's scale or a smaller one: the energy score, and the edges that were lost."""

    theta: float
    epochs: int = 40
    pairs: int = 10_000
    communities: int = 4
    graphs: int = 32
    choice_graphs: int = 256
    batch: int = 64
    measure: str = "energy score"
    tolerance: float = 0.02
    rates: tuple[float, ...] = (0.001, 0.0022, 0.0046, 0.01, 0.022, 0.046, 0.1)
    search_seeds: int = 6
    seeds: int = 5
    at_once: int = 512

    @classmethod
    def of(cls, theta: float) -> Self:
        return cls(name=f"graphs, theta* = {theta:g}", theta=theta)

    @cached_property
    def dataset(self) -> Dataset:
        """Drawn once: the same for all runs."""
        return make_dataset(self.theta, communities=self.communities, pairs=self.pairs)

    def train(self, runs: Sequence[Run], device: torch.device, progress: Progress) -> list[Outcome]:
        sizes = {name: getattr(self, name) for name in ("pairs", "epochs", "batch", "graphs", "choice_graphs")}
        own = [gsl.Run(self.dataset, *run) for run in runs]
        true, found = self.dataset.theta.flatten(), []
        for each in gsl.train(own, Settings(**sizes), device, on_step=partial(progress, self.name)):
            lost = ((torch.tensor(each.record["theta"]) < LOST * true) & (true > 0)).sum()
            metrics = {"test": each.metrics["es"], "theta-MAE": each.metrics["theta_mae"], "lost edges": float(lost)}
            found.append(Outcome(each.value, metrics, {}))
        return found


@dataclass(frozen=True, kw_only=True)
class Autoencoder(Task):
    """The convolutional one by straight-through samples, the dense one by the score function."""

    plan: vae.Plan
    images: Images
    data: str
    judged: str  # which measure on the test images is the result
    measure: str = "bound on the negative log-likelihood, nats"
    tolerance: float = 1.0
    search_seeds: int = 2
    seeds: int = 5
    at_once: int = 64

    def train(self, runs: Sequence[Run], device: torch.device, progress: Progress) -> list[Outcome]:
        own = [stack.Run(self.data, *run) for run in runs]
        told = partial(progress, self.name)
        sign = -1 if self.judged.startswith("elbo") else 1
        outcomes = vae.train(own, self.plan, self.images, (self.data,), device, on_step=told)
        return [Outcome(each.value, {"test": sign * each.metrics[self.judged]}, {}) for each in outcomes]


def convolutional(digits: Digits) -> Autoencoder:
    """20 variables of 16 classes, grey pixels, Adam."""
    return Autoencoder(
        name="VAE, convolutional, 20x16",
        plan=vae.Plan("convolutional", 20, 16, "adam", "straight-through", 20_000, 100, 64),
        images=images_of(digits, ("grey",), False),
        data="grey",
        judged="nll",
        rates=(0.0003, 0.00065, 0.0014, 0.003, 0.0065, 0.014, 0.03),
    )


def dense(digits: Digits) -> Autoencoder:
    """10 variables of 8 classes, pixels drawn anew, Adam."""
    return Autoencoder(
        name="VAE, dense, 10x8",
        plan=vae.Plan("dense", 10, 8, "adam", "score-function", 40_000, 128, 1),
        images=images_of(digits, ("bernoulli",), True),
        data="bernoulli",
        judged="elbo",
        rates=(0.00003, 0.000065, 0.00014, 0.0003, 0.00065, 0.0014, 0.003),
    )


@dataclass(frozen=True, kw_only=True)
class Policy(Task):
    """PPO in JAX. A program is compiled for every head, so all stacks of a head have one size."""

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

    def train(self, runs: Sequence[Run], device: torch.device, progress: Progress) -> list[Outcome]:
        """The runs of every head side by side. JAX takes the GPU where it finds one."""
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch wants some of the GPU too
        import jax.numpy as jnp  # here: the other tasks need no JAX

        from catnat_lab.rl import minatar
        from catnat_lab.rl.settings import MinAtarSettings

        found: dict[Run, Outcome] = {}
        for head, group in groupby(sorted(runs, key=lambda run: run.head), key=lambda run: run.head):
            some = list(group)
            settings = MinAtarSettings(self.game, head, self.steps, self.envs)
            training = minatar.program(settings)
            state = training.begin(jnp.array([run.seed for run in some]))
            outcome, rates = minatar.Outcome.nothing(len(some), settings.updates), jnp.array([run.rate for run in some])
            for done in range(settings.updates):
                state, told = training.update(state, rates, settings.updates)
                outcome.add(done, told)
                progress(f"{self.name}, {head}", done + 1, settings.updates)
            for run, score in zip(some, outcome.scores(), strict=True):
                found[run] = Outcome(-score, {"test": score}, {})
        return [found[run] for run in runs]
