"""The study: find every parameterization's learning rate, then train its final seeds there.

For every theta* and head: a coarse grid of rates, widened while the best one is at its end; a refined grid around the
best; then the final seeds at the rate with the lowest validation score of all, the mean over the search seeds. Each
step follows from what is done, so a study that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from catnat_lab import rates
from catnat_lab.experiment import Done, Experiment, Finished, Job, Outcome, Place, missing
from catnat_lab.gsl import train as training
from catnat_lab.gsl.data import Dataset, make_dataset
from catnat_lab.gsl.presets import Settings
from catnat_lab.gsl.train import Budget, Run

NOTE = "gsl settings"
OPTIMAL = "optimal"
SEARCHING = ("coarse", "refined", "tpe")


def study_name(theta: float, head: str) -> str:
    return f"gsl theta*={theta:g} {head}"


@dataclass
class GraphLearning(Experiment):
    plan: Settings
    datasets: dict[float, Dataset] = field(default_factory=dict, repr=False)  # drawn when they are needed

    kind: ClassVar[str] = "catnat gsl"
    note: ClassVar[str] = NOTE
    unsaid: ClassVar[dict[str, Any]] = {"search_seeds": 1}

    def __post_init__(self) -> None:
        self.cells = {
            study_name(theta, head): (theta, head) for theta in self.plan.thetas for head in (*self.plan.heads, OPTIMAL)
        }

    @property
    def settings(self) -> dict[str, Any]:
        return self.plan.as_dict()

    def left(self, done: Done) -> Sequence[Job]:
        stages = [self._optimal, *((self._tpe,) if self.plan.search == "tpe" else self._grids), self._final]
        return next((jobs for stage in stages if (jobs := missing(done, stage(done)))), [])

    @property
    def _grids(self) -> tuple[Any, ...]:
        return self._coarse, self._wider, self._refined

    @property
    def _seeds(self) -> range:
        return range(1, self.plan.seeds + 1)

    def _heads(self) -> list[str]:
        return [name for name, (_, head) in self.cells.items() if head != OPTIMAL]

    def _optimal(self, done: Done) -> list[Job]:
        names = [name for name, (_, head) in self.cells.items() if head == OPTIMAL]
        return [Job(name, {"stage": OPTIMAL, "seed": seed}) for name in names for seed in self._seeds]

    def _coarse(self, done: Done) -> list[Job]:
        return [job for name in self._heads() for job in self._tries(name, "coarse", self.plan.rates)]

    def _wider(self, done: Done) -> list[Job]:
        """The next rate beyond that end of the grid where the best is, unless enough were added."""
        low, high = min(self.plan.rates), max(self.plan.rates)
        jobs = []
        for name in self._heads():
            tried = list(rates.by_rate(done.finished(name, stage="coarse")))
            best = rates.best_rate(done.finished(name, stage="coarse"))
            if best == tried[0] and sum(rate < low for rate in tried) < self.plan.widen:
                jobs += self._tries(name, "coarse", [best / 2])
            elif best == tried[-1] and sum(rate > high for rate in tried) < self.plan.widen:
                jobs += self._tries(name, "coarse", [best * 2])
        return jobs

    def _refined(self, done: Done) -> list[Job]:
        # halves, because the power 0 is the coarse rate, which is known
        powers = [power - self.plan.refined // 2 + 0.5 for power in range(self.plan.refined)]
        jobs = []
        for name in self._heads():
            best = rates.best_rate(done.finished(name, stage="coarse"))
            jobs += self._tries(name, "refined", [best * self.plan.ratio**power for power in powers])
        return jobs

    def _tpe(self, done: Done) -> list[Job]:
        """In batches of half the coarse grid, so that it learns from what it has seen."""
        count, together = len(self.plan.rates) + self.plan.refined, max(1, len(self.plan.rates) // 2)
        fixed = {"stage": "tpe", "seed": rates.search_seeds(1)[0]}
        space = {"rate": rates.between(min(self.plan.rates), max(self.plan.rates))}
        jobs = []
        for name in self._heads():
            tried = done.finished(name, stage="tpe")
            jobs += rates.proposed(name, space, fixed, tried, min(together, count - len(tried)))
        return jobs

    def _final(self, done: Done) -> list[Job]:
        jobs = []
        for name in self._heads():
            before = done.finished(name, stage="final")  # a search that went on later changes no line of a table
            rate = before[0].config["rate"] if before else rates.best_rate(searched(done, name))
            jobs += [Job(name, {"stage": "final", "rate": rate, "seed": seed}) for seed in self._seeds]
        return jobs

    def _tries(self, cell: str, stage: str, tried: Sequence[float]) -> list[Job]:
        seeds = rates.search_seeds(self.plan.search_seeds)
        rounded = [float(f"{rate:.3g}") for rate in tried]
        return [Job(cell, {"stage": stage, "rate": rate, "seed": seed}) for rate in rounded for seed in seeds]

    def train(self, jobs: Sequence[Job], place: Place) -> Iterator[tuple[Job, Outcome]]:
        plan, device = self.plan, torch.device(place.device)
        for theta in {self.cells[job.cell][0] for job in jobs} - set(self.datasets):
            self.datasets[theta] = make_dataset(theta, communities=plan.communities, pairs=plan.pairs)
        runs = {}
        for job in jobs:
            theta, head = self.cells[job.cell]
            if head == OPTIMAL:
                found = training.optimal(self.datasets[theta], [job.config["seed"]], plan.graphs, device)[0].metrics
                yield job, Outcome(found["es"], found, {})
            else:
                runs[job] = Run(self.datasets[theta], head, job.config["rate"], job.config["seed"])
        if not runs:
            return
        budget = Budget(plan.epochs, plan.batch, plan.graphs, plan.choice_graphs, plan.baseline)
        what = f"{_told(jobs)} ({len(runs)} side by side)"
        outcomes = training.train(
            list(runs.values()), budget, device, on_step=lambda done, total: place.progress(what, done, total)
        )
        for job, outcome in zip(runs, outcomes, strict=True):
            yield job, Outcome(training.value_of(outcome), outcome.metrics, _record(job, outcome))


def searched(done: Done, cell: str) -> list[Finished]:
    return [trial for stage in SEARCHING for trial in done.finished(cell, stage=stage)]


def _told(jobs: Sequence[Job]) -> str:
    stages = {job.config["stage"] for job in jobs}
    return "final seeds" if stages == {"final"} else f"rates ({', '.join(sorted(stages))})"


def _record(job: Job, outcome: training.Outcome) -> dict[str, Any]:
    """What the report draws: curves and, of a final run, the learned graph."""
    curve = {key: [round(value, 5) for value in values] for key, values in outcome.curve.items()}
    learned = {"theta": [round(t, 5) for t in outcome.theta]} if job.config["stage"] == "final" else {}
    return {"curve": curve} | learned
