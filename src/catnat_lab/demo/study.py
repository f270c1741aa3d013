"""The demo's study: for each head a search of rates, then fresh networks at the best, which the verdict is about."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

import torch

from catnat_lab.demo.tasks import HEADS, TASKS, Digits, Game
from catnat_lab.errors import UserError
from catnat_lab.executors import begin, conduct, executor_of
from catnat_lab.experiment import Done, Experiment, Finished, Job, Outcome, RunContext
from catnat_lab.live import Watch
from catnat_lab.search import best_rate
from catnat_lab.stats import compare
from catnat_lab.studies import DATABASE, Study


@dataclass
class Demo(Experiment):
    """A job is some networks side by side. The seeds of the search and of the verdict are never the same."""

    seed: int = 0
    tasks: Mapping[str, Digits | Game] = field(default_factory=lambda: TASKS)

    kind: ClassVar[str] = "catnat demo"
    note: ClassVar[str] = "demo settings"

    @property
    def settings(self) -> dict[str, Any]:
        tasks = {task: asdict(kind) for task, kind in self.tasks.items()}
        return {"seed": self.seed, **json.loads(json.dumps(tasks))}

    @property
    def cells(self) -> dict[str, tuple[str, str]]:
        return {f"{task} {head}": (task, head) for task in self.tasks for head in HEADS}

    @property
    def total(self) -> int:
        """How many jobs there are, the search's and the final one of every cell."""
        return sum(len(self.tasks[task].rates) + 1 for task, _ in self.cells.values())

    def stages(self, done: Done) -> Iterator[list[Job]]:
        rates = [(cell, rate) for cell, (task, _) in self.cells.items() for rate in self.tasks[task].rates]
        yield [Job(cell, {"stage": "search", "rate": rate, "seed": 2 * self.seed}) for cell, rate in rates]
        best = {cell: best_rate(tried) for cell in self.cells if (tried := done.finished(cell, stage="search"))}
        yield [Job(cell, {"stage": "final", "rate": rate, "seed": 2 * self.seed + 1}) for cell, rate in best.items()]

    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        for job in jobs:
            with _one_core():
                outcome = self._train(job, context)
            yield job, outcome

    def _train(self, job: Job, context: RunContext) -> Outcome:
        task, head = self.cells[job.cell]
        kind, is_final = self.tasks[task], job.config["stage"] == "final"
        count = kind.seeds if is_final else kind.search
        training, curve = kind.train(head, job.config["rate"], job.config["seed"], count), list[Any]()
        while True:
            try:
                curve.append([*next(training)])
            except StopIteration as end:
                shown = end.value
                break
            context.news(job_name(job), curve[-1][0], mean(curve[-1][1]))
        last: list[float] = curve[-1][1]
        typical = sorted(range(count), key=last.__getitem__)[count // 2]
        record = {"curve": curve} | ({"shown": shown[typical]} if is_final else {})
        return Outcome(mean(last) if kind.lower_is_better else -mean(last), {}, record)


@contextmanager
def _one_core() -> Iterator[None]:
    """As many processes as cores train, with one thread each, and no numbers so small that a CPU is slow with them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # else Adam's second moments make the game's last steps take three times as long
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def job_name(job: Job) -> str:
    return f"{job.cell} at {job.config['rate']:g}{', fresh' if job.config['stage'] == 'final' else ''}"


@dataclass(frozen=True)
class Found:
    """What a demo that is done has found: of every task and head its runs, the final one last."""

    demo: Demo
    runs: dict[tuple[str, str], list[Finished]]

    def values(self, task: str, head: str) -> list[float]:
        """What the fresh networks reached."""
        return list(self.runs[task, head][-1].record["curve"][-1][1])

    def sentences(self) -> list[str]:
        """The verdicts, with their uncertainty."""
        return [self._sentence(task, kind) for task, kind in self.demo.tasks.items()]

    def _sentence(self, task: str, kind: Digits | Game) -> str:
        ours, theirs = (self.values(task, head) for head in ("catnat", "softmax"))
        found = compare(ours, theirs)
        means = f"{kind.name}, {kind.unit}: catnat {mean(ours):.1f}, softmax {mean(theirs):.1f}"
        told = f"95% interval {found.low:+.1f} to {found.high:+.1f}, {kind.seeds} fresh networks each"
        interval = f"{found.difference:+.1f}, {told}"
        if found.low <= 0 <= found.high:
            return f"{means}. No difference seen ({interval})"
        ahead = "catnat" if (found.difference < 0) == kind.lower_is_better else "softmax"
        return f"{means}. {ahead} is ahead ({interval})"


def run(demo: Demo, folder: Path, on: str = "") -> Found:
    """Train whatever the folder does not hold yet; unless told otherwise with a process per core that may be used."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with Watch(total=demo.total) as watch, Study(folder / DATABASE, conduct=True, tell=watch.tell) as study:
        begin(demo, study)

        def done() -> int:
            return sum(len(study.finished(cell)) for cell in demo.cells)

        def finished(job: Job) -> None:
            (last,) = study.finished(job.cell, **job.config)
            watch.finished(job_name(job), f"{abs(last.value):.1f}", done(), demo.total)

        watch.done = done()
        context = RunContext(folder.resolve(), news=watch.news, tell=watch.tell)
        conduct(demo, study, executor_of(on or f"processes:{cores}", context), 1, finished)
        runs = {
            place: [*study.finished(cell, stage="search"), *study.finished(cell, stage="final")]
            for cell, place in demo.cells.items()
        }
    if done() < demo.total:
        raise UserError("some runs of the demo failed; the same command tries them again")
    return Found(demo, runs)
