"""The study: every task's rates on its search seeds, then its final seeds; in slices of time, resumed where it was."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch

from catnat_lab import rates
from catnat_lab.experiment import Done, Experiment, Job, Outcome, Place, TimeIsUp, settled
from catnat_lab.tails.tasks import Outline, Run, Task

NOTE = "tails settings"
FIRST_SEARCH_SEED = 1000  # rates are chosen on these seeds; the final ones are 1, 2, ...


def study_name(task: str, head: str) -> str:
    return f"tails {task}: {head}"


def search_jobs(task: Outline) -> list[Job]:
    """All rates of all heads on the search seeds."""
    seeds = range(FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + task.search_seeds)
    return [_job(task, head, "search", rate, seed) for head in task.heads for rate in task.rates for seed in seeds]


def final_jobs(task: Outline, done: Done) -> list[Job]:
    """The final seeds of all heads at the best of the rates that were searched."""
    tried = {head: done.finished(study_name(task.name, head), stage="search") for head in task.heads}
    best = {head: rates.best_rate(trials) for head, trials in tried.items()}
    return [_job(task, head, "final", best[head], seed) for head in task.heads for seed in range(1, task.seeds + 1)]


def _job(task: Outline, head: str, stage: str, rate: float, seed: int) -> Job:
    return Job(study_name(task.name, head), {"stage": stage, "rate": rate, "seed": seed})


@dataclass
class Tails(Experiment):
    plan: Sequence[Task]
    spent: dict[str, float] = field(default_factory=dict)  # seconds of a task's last stack: the next takes as long

    kind: ClassVar[str] = "catnat tails"
    note: ClassVar[str] = NOTE

    @property
    def settings(self) -> dict[str, Any]:
        return {task.name: task.settings for task in self.plan}

    def settled(self, before: dict[str, Any]) -> dict[str, Any]:
        """Task by task; what was trained of others stays."""
        for name, now in self.settings.items():
            settled(before.get(name, now), now, (), name)
        return before | self.settings

    def grown(self, settings: dict[str, Any]) -> Self:
        return self

    def stages(self, done: Done) -> Iterator[list[Job]]:
        """Task by task the search, and when that is done the final seeds."""
        for task in self.plan:
            yield search_jobs(task)
            yield final_jobs(task, done)

    def batches(self, jobs: Sequence[Job], size: int) -> list[list[Job]]:
        return super().batches(jobs, min(size, self._task(jobs[0]).at_once))

    def train(self, jobs: Sequence[Job], place: Place) -> Iterator[tuple[Job, Outcome]]:
        task, started = self._task(jobs[0]), time.monotonic()
        if started + self.spent.get(task.name, 0.0) >= place.ends:
            raise TimeIsUp
        runs = [Run(job.cell.rpartition(" ")[2], job.config["rate"], job.config["seed"]) for job in jobs]
        outcomes = task.train(runs, torch.device(place.device), place.progress)
        self.spent[task.name] = time.monotonic() - started
        place.tell(f"{task.name}: {len(jobs)} runs in {self.spent[task.name]:.0f} s")
        yield from zip(jobs, outcomes, strict=True)

    def _task(self, job: Job) -> Task:
        return next(task for task in self.plan if job.cell in (study_name(task.name, head) for head in task.heads))
