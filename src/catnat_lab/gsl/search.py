"""The study: find every parameterization's learning rate, then train its final seeds there.

For every theta* and head: a coarse grid of rates, widened while the best one is at its end; a refined grid around the
best; then the final seeds at the rate with the lowest validation score of all, the mean over the search seeds. Each
step follows from what is done, so a study that was stopped goes on where it was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

import torch

from catnat_lab import search
from catnat_lab.experiment import Done, Job, Outcome, RunContext
from catnat_lab.gsl import train as training
from catnat_lab.gsl.data import Dataset, make_dataset
from catnat_lab.gsl.presets import Settings
from catnat_lab.gsl.train import Run

NOTE = "gsl settings"
OPTIMAL = "optimal"


def study_name(theta: float, head: str) -> str:
    return f"gsl theta*={theta:g} {head}"


@dataclass
class GraphLearning(search.RateSearch):
    plan: Settings
    datasets: dict[float, Dataset] = field(default_factory=dict, repr=False)  # drawn when they are needed

    kind: ClassVar[str] = "catnat gsl"
    note: ClassVar[str] = NOTE
    unsaid: ClassVar[dict[str, Any]] = {"search_seeds": 1}

    def __post_init__(self) -> None:
        every = product(self.plan.thetas, (*self.plan.heads, OPTIMAL))
        self.cells = {study_name(theta, head): (theta, head) for theta, head in every}

    def stages(self, done: Done) -> Iterator[list[Job]]:
        heads = [name for name, (_, head) in self.cells.items() if head != OPTIMAL]
        optimal = [name for name in self.cells if name not in heads]
        seeds = range(1, self.plan.seeds + 1)
        yield [Job(name, {"stage": OPTIMAL, "seed": seed}) for name in optimal for seed in seeds]
        yield self.coarse(heads)
        yield self.wider(done, heads)
        yield self.refined(done, heads)
        yield [job for name in heads for job in self.final(done, name, name)]

    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        plan, device = self.plan, torch.device(context.device)
        for theta in {self.cells[job.cell][0] for job in jobs} - set(self.datasets):
            self.datasets[theta] = make_dataset(theta, communities=plan.communities, pairs=plan.pairs)
        runs = {}
        for job in jobs:
            theta, head = self.cells[job.cell]
            if head == OPTIMAL:
                yield job, training.optimal(self.datasets[theta], job.config["seed"], plan.graphs, device)
            else:
                runs[job] = Run(self.datasets[theta], head, job.config["rate"], job.config["seed"])
        if not runs:
            return
        stages = {job.config["stage"] for job in jobs}
        told = "final seeds" if stages == {"final"} else f"rates ({', '.join(sorted(stages))})"
        on_step = partial(context.progress, f"{told} ({len(runs)} side by side)")
        for job, outcome in zip(runs, training.train(list(runs.values()), plan, device, on_step=on_step), strict=True):
            curve = {key: [round(value, 5) for value in values] for key, values in outcome.record["curve"].items()}
            learned = [round(t, 5) for t in outcome.record["theta"]]
            # what the report draws: curves and, of a final run, the learned graph
            record = {"curve": curve} | ({"theta": learned} if job.config["stage"] == "final" else {})
            yield job, replace(outcome, record=record)
