"""What is trained: a job is one run, a task trains many of them as one program, a ledger keeps what they came to."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from catnat_lab.errors import UserError
from catnat_lab.experiment import settled
from catnat_lab.heads import tail_head
from catnat_lab.report.page import write

TAILS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001, 0.0)
GAINED = (0.5, 0.05, 0.0)  # tails that are tried with the other gains too
GAINS = (math.sqrt(2), 2.0)
SOFTMAX, SIGMOID, PAPER = "softmax", tail_head(0.5), tail_head(0.0)
FAMILY = (*map(tail_head, TAILS), *(tail_head(tail, gain) for tail in GAINED for gain in GAINS))
FIRST_SEARCH_SEED = 1000  # rates are chosen on these seeds; the final ones are 1, 2, ...

Progress = Callable[[str, int, int], None]  # what is done, steps done, steps in all


class Job(NamedTuple):
    task: str
    head: str
    rate: float
    seed: int

    @property
    def is_search(self) -> bool:
        return self.seed >= FIRST_SEARCH_SEED


@dataclass(frozen=True)
class Result:
    """What a run came to: on validation data, by which rates are chosen, on test data, and what else there is."""

    validation: float
    test: float
    more: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Outline:
    name: str
    measure: str  # what its numbers are
    lower_is_better: bool = True
    tolerance: float  # a rate is as good as the best one within this much
    rates: tuple[float, ...]  # they span a factor of a hundred
    heads: tuple[str, ...] = (SOFTMAX, *FAMILY)
    search_seeds: int
    seeds: int


def outline_of(settings: dict[str, Any]) -> Outline:
    found: dict[str, Any] = {field.name: settings[field.name] for field in fields(Outline)}
    return Outline(**found | {"rates": tuple(found["rates"]), "heads": tuple(found["heads"])})


@dataclass(frozen=True, kw_only=True)
class Task(Outline, ABC):
    """Something to train with a categorical variable in it."""

    at_once: int  # runs that are trained as one program, at most

    @property
    def settings(self) -> dict[str, Any]:
        """What decides its numbers, as JSON can hold it; data by their checksum."""
        found = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if hasattr(value, "checksum"):
                found[field.name] = value.checksum
            elif isinstance(value, int | float | str):
                found[field.name] = value
            elif isinstance(value, tuple) and not any(isinstance(each, Tensor) for each in value):
                found[field.name] = list(value)
            elif is_dataclass(value) and not any(isinstance(part, Tensor) for part in vars(value).values()):
                found[field.name] = vars(value)
        return found

    @abstractmethod
    def train(self, jobs: Sequence[Job], device: torch.device, progress: Progress) -> list[Result]:
        """All jobs side by side, in the order they came."""


def search_jobs(task: Outline) -> list[Job]:
    """All rates of all heads on the search seeds."""
    seeds = [FIRST_SEARCH_SEED + i for i in range(task.search_seeds)]
    return [Job(task.name, head, rate, seed) for head in task.heads for rate in task.rates for seed in seeds]


def final_jobs(task: Outline, rates: dict[str, float]) -> list[Job]:
    """The final seeds of all heads at the rates that were chosen."""
    return [Job(task.name, head, rates[head], seed) for head in task.heads for seed in range(1, task.seeds + 1)]


class Ledger:
    """Finished runs, a line of JSON each; what a killed process was writing is cut off. One process at a time."""

    def __init__(self, folder: Path, tasks: Sequence[Task]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(folder / "runs.lock", timeout=0)
            self.lock.acquire()
        except Timeout:
            raise UserError(f"another process is at work in {folder}; wait for it, or give another --output") from None
        except OSError as problem:
            raise UserError(f"cannot write into {folder}: {problem.strerror}") from None
        self.path = folder / "runs.jsonl"
        about = folder / "settings.json"
        before = json.loads(about.read_text()) if about.exists() else {}
        for task in tasks:
            settled(before.get(task.name, task.settings), task.settings, (), task.name)
        every = before | {task.name: task.settings for task in tasks}
        write(about, json.dumps(every, indent=1) + "\n")
        self.outlines = [outline_of(settings) for settings in every.values()]  # of earlier tasks too
        self.results = read(self.path)
        if self.path.exists():  # half a line would spoil the next one
            whole = self.path.read_bytes()
            with self.path.open("r+b") as file:
                file.truncate(whole.rfind(b"\n") + 1)

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        return [job for job in jobs if job not in self.results]

    def add(self, jobs: Sequence[Job], results: Sequence[Result]) -> None:
        """Keep what they came to, at once and for good."""
        lines = [json.dumps(job._asdict() | asdict(result)) + "\n" for job, result in zip(jobs, results, strict=True)]
        with self.path.open("a") as file:
            file.write("".join(lines))
        self.results |= dict(zip(jobs, results, strict=True))


def read(path: Path) -> dict[Job, Result]:
    results: dict[Job, Result] = {}
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if line.endswith("\n"):
            found = json.loads(line)
            job = Job(found["task"], found["head"], found["rate"], found["seed"])
            results[job] = Result(found["validation"], found["test"], found["more"])
    return results
