"""A small experiment, whose outcomes are known; run as a program it conducts a study, slowly, to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from catnat_lab.executors import UNGUARDED, begin, conduct, executor_of
from catnat_lab.experiment import Done, Experiment, Job, Outcome, RunContext

if TYPE_CHECKING:
    from catnat_lab.studies import Study

CELLS = ("one", "two")


@dataclass
class Toy(Experiment):
    """Three rates on two seeds a cell, then four final seeds at the best."""

    seconds: float = 0.0
    fails: tuple[int, ...] = ()  # seeds of jobs that raise
    kills: tuple[int, ...] = ()  # seeds of jobs that kill their process, always
    kills_once: tuple[int, ...] = ()  # and the first time only
    seeds: int = 4  # final ones
    seen: list[Job] = field(default_factory=list)

    kind: ClassVar[str] = "toy"
    note: ClassVar[str] = "toy settings"

    @property
    def settings(self) -> dict[str, Any]:
        return {"rates": [0.01, 0.1, 1.0]}

    def stages(self, done: Done) -> Iterator[list[Job]]:
        from catnat_lab import search  # who trains alone does without Optuna

        tried = [(cell, rate, seed) for cell in CELLS for rate in (0.01, 0.1, 1.0) for seed in search.search_seeds(2)]
        yield [Job(c, {"stage": "search", "rate": r, "seed": s}) for c, r, s in tried]
        best = {cell: search.best_rate(done.finished(cell, stage="search")) for cell in CELLS}
        final = [(cell, seed) for cell in CELLS for seed in range(1, self.seeds + 1)]
        yield [Job(c, {"stage": "final", "rate": best[c], "seed": s}) for c, s in final]

    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        for job in jobs:
            self.seen.append(job)
            time.sleep(self.seconds)
            once = context.folder / f"killed-{job.cell}-{job.config['seed']}"
            if job.config["seed"] in self.kills or (job.config["seed"] in self.kills_once and not once.exists()):
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if job.config["seed"] in self.fails:
                raise RuntimeError(f"seed {job.config['seed']}\nis bad")
            value = abs(job.config["rate"] - 0.1) + job.config["seed"] / 1e6
            yield job, Outcome(value, {"seed": job.config["seed"]}, {"curve": [value, 2.0]})


@dataclass
class Ended(Toy):
    """Its processes end as one does that runs the script again which began it."""

    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        os._exit(UNGUARDED)


def table(study: Study) -> list[tuple[Any, ...]]:
    """All that is finished."""
    found = [
        (cell, each.config, each.value, each.metrics, each.record) for cell in CELLS for each in study.finished(cell)
    ]
    return sorted(found, key=str)


def started(*arguments: str) -> subprocess.Popen[str]:
    """This file as a program: the database, seconds a job, final seeds, on what, the folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    command = [sys.executable, "-m", "tests.lab.toy", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


if __name__ == "__main__":
    from catnat_lab.studies import Study

    where, seconds, seeds, on, folder = sys.argv[1:]
    with Study(where, conduct=True) as opened:
        toy = Toy(float(seconds), seeds=int(seeds))
        begin(toy, opened)
        executor = executor_of(on, RunContext(Path(folder)))
        conduct(toy, opened, executor, 3, lambda job: print("done", flush=True))
