"""Graph structure learning: the energy score of what is predicted, and the edges that were lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Self

import torch

from catnat_lab.experiment import Outcome
from catnat_lab.gsl.data import Dataset, make_dataset
from catnat_lab.gsl.train import Budget, Run, train, value_of
from catnat_lab.tails import tasks
from catnat_lab.tails.tasks import Progress, Task

LOST = 0.5  # an edge that is there counts as lost below this share of its probability


@dataclass(frozen=True, kw_only=True)
class Graphs(Task):
    """One theta*, at the paper's scale or a smaller one."""

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

    def train(self, runs: Sequence[tasks.Run], device: torch.device, progress: Progress) -> list[Outcome]:
        budget = Budget(self.epochs, self.batch, self.graphs, self.choice_graphs)
        own = [Run(self.dataset, *run) for run in runs]
        true, found = self.dataset.theta.flatten(), []
        for each in train(own, budget, device, on_step=partial(progress, self.name)):
            lost = ((torch.tensor(each.theta) < LOST * true) & (true > 0)).sum()
            metrics = {"test": each.metrics["es"], "theta-MAE": each.metrics["theta_mae"], "lost edges": float(lost)}
            found.append(Outcome(value_of(each), metrics, {}))
        return found
