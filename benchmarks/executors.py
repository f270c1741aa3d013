"""What an executor costs a job, and what a second worker brings: `python -m benchmarks.executors [--output FOLDER]`.

Jobs are plain Python, so that each keeps one core busy. A round times every executor once, with a study of its own in
SQLite; the start-up of workers is not counted.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from catnat_lab.executors import executor_of
from catnat_lab.experiment import Done, Experiment, Job, Outcome, RunContext
from catnat_lab.provenance import provenance
from catnat_lab.studies import Study

ROUND = 200_000  # turns of the loop for which a core takes some hundredths of a second


@dataclass
class Loops(Experiment):
    """Jobs that count. As many as there are workers first wait for one another: then all workers are there."""

    count: int
    turns: int
    workers: int = 0

    kind: ClassVar[str] = "loops"
    note: ClassVar[str] = "loops settings"

    @property
    def settings(self) -> dict[str, Any]:
        """None that matter."""
        return {}

    def stages(self, done: Done) -> Iterator[list[Job]]:
        """All of them."""
        yield [Job("cell", {"stage": "final", "seed": seed}) for seed in range(self.count)]

    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        """Count."""
        for job in jobs:
            total = 0
            if job.config["seed"] < self.workers:
                (context.folder / f"{job.config['seed']}").touch()
                while not all((context.folder / f"{seed}").exists() for seed in range(self.workers)):
                    time.sleep(0.01)
            for i in range(self.turns):
                total += i & 3
            yield job, Outcome(float(total), {}, {})


def seconds(on: str, jobs: int, turns: int) -> float:
    """From the first job that is trained by warm workers to the last that is kept."""
    with tempfile.TemporaryDirectory() as folder, Study(Path(folder) / "study.db", conduct=True) as study:
        executor = executor_of(on, RunContext(Path(folder)))
        warm = executor.workers
        experiment = Loops(jobs + warm, turns, warm)
        every = list(experiment.left(study))
        started = 0.0
        for done, (job, outcome) in enumerate(executor.run(experiment, [[job] for job in every])):
            assert isinstance(outcome, Outcome)
            study.add(job, outcome)
            if done + 1 == warm:
                started = time.perf_counter()
        return time.perf_counter() - started


def main() -> None:
    """Time and print; with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.executors", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.5, help="that a job keeps a core busy")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    started = time.perf_counter()
    list(Loops(1, ROUND).train([Job("cell", {"seed": 0})], RunContext(Path())))
    turns = int(ROUND * arguments.seconds / (time.perf_counter() - started))
    places = ("here", "processes:1", "processes:2", "ray")
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(arguments.rounds):
        for on in places:
            for what, length in ((f"{arguments.seconds:g} s of work", turns), ("no work", 0)):
                times.setdefault((what, on), []).append(seconds(on, arguments.jobs, length) / arguments.jobs)
    rows = []
    for (what, on), found in times.items():
        ones = times[what, "processes:1"]
        speed = median(one / each for one, each in zip(ones, found, strict=True))
        rows.append((what, on, f"{1000 * median(found):.1f}", f"{speed:.2f}"))
    columns = ("job", "on", "ms_per_job", "throughput_over_processes_1")
    for row in (columns, *rows):
        print(f"{row[0]:18} {row[1]:14} {row[2]:>12} {row[3]:>28}")
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        with (arguments.output / "executors.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows((columns, *rows))
        facts = provenance(" ".join(["python -m benchmarks.executors", *sys.argv[1:]]))
        (arguments.output / "executors.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
