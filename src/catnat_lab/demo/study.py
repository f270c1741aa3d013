"""The demo's runs: for each head a search of rates, then fresh networks at the best, two or more runs at a time."""

import json
import multiprocessing
import os
import signal
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from catnat_lab import live
from catnat_lab.demo.tasks import HEADS, TASKS, Digits, Game
from catnat_lab.files import write
from catnat_lab.stats import Comparison, compare

Curve = list[list[Any]]  # step, and a value per network


@dataclass(frozen=True)
class Run:
    """Networks trained side by side. The seeds of the search and of the verdict are never the same."""

    task: str
    head: str
    rate: float
    seed: int
    count: int
    is_final: bool

    @property
    def name(self) -> str:
        return f"{self.task}-{self.head}-{self.rate:g}-{self.seed}"


@dataclass
class Demo:
    """What is known so far: the curves of runs under way, and what finished ones left."""

    folder: Path
    seed: int = 0
    tasks: Mapping[str, Digits | Game] = field(default_factory=lambda: TASKS)
    curves: dict[Run, Curve] = field(default_factory=dict)
    results: dict[Run, dict[str, Any]] = field(default_factory=dict)

    def search(self, task: str, head: str) -> list[Run]:
        kind = self.tasks[task]
        return [Run(task, head, rate, 2 * self.seed, kind.search, False) for rate in kind.rates]

    def final(self, task: str, head: str) -> Run | None:
        """The run of the verdict; None before the search is done."""
        found = {run.rate: self.results.get(run) for run in self.search(task, head)}
        if None in found.values():
            return None
        worth = {rate: mean(known["curve"][-1][1]) for rate, known in found.items() if known}
        kind = self.tasks[task]
        best = (min if kind.lower_is_better else max)(worth, key=worth.__getitem__)
        return Run(task, head, best, 2 * self.seed + 1, kind.seeds, True)

    def runs(self, task: str, head: str) -> list[Run]:
        """All that can be begun."""
        final = self.final(task, head)
        return [*self.search(task, head), *([final] if final else [])]

    def values(self, task: str, head: str) -> list[float]:
        """What the fresh networks reached, once they have."""
        final = self.final(task, head)
        return self.results[final]["curve"][-1][1] if final in self.results else []

    def verdict(self, task: str) -> Comparison:
        """Catnat's mean minus softmax's, over the fresh networks."""
        return compare(self.values(task, "catnat"), self.values(task, "softmax"))

    def wanted(self) -> list[Run]:
        """What is to be run and can be begun, searches first."""
        runs = [run for task in self.tasks for head in HEADS for run in self.runs(task, head)]
        return sorted((run for run in runs if run not in self.results), key=lambda run: run.is_final)

    def load(self) -> None:
        """What earlier processes finished, of the same numbers."""
        for path in (self.folder / "runs").glob("*.json"):
            told = json.loads(path.read_text())
            if told["settings"] == settings(self.tasks.get(told["run"]["task"])):
                self.results[Run(**told["run"])] = told

    def run(self, workers: int) -> None:
        """Train whatever is not there yet."""
        self.load()
        context = multiprocessing.get_context("spawn")
        news: Any = context.Queue()
        console = Console(stderr=True)
        under_way: dict[Future[dict[str, Any]], Run] = {}
        with (
            ProcessPoolExecutor(workers, context, _begin, (news,)) as pool,
            Live(self.shown(), console=console, transient=True, refresh_per_second=4) as display,
        ):
            try:
                while (wanted := self.wanted()) or under_way:
                    for run in wanted:
                        if run not in under_way.values():
                            under_way[pool.submit(_train, run, self.tasks[run.task])] = run
                    done, _ = wait(under_way, timeout=0.25, return_when=FIRST_COMPLETED)
                    while not news.empty():
                        run, curve = news.get()
                        self.curves[run] = curve
                    for future in done:
                        run = under_way.pop(future)
                        self.results[run] = result = future.result()
                        write(self.folder / "runs" / f"{run.name}.json", json.dumps(result))
                        if not console.is_terminal:
                            console.print(f"{run.name}: {mean(result['curve'][-1][1]):.1f}", highlight=False)
                    display.update(self.shown())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in multiprocessing.active_children():
                    child.terminate()
                raise

    def shown(self) -> Table:
        """A line per head: what runs, its curve, and what came out."""
        table = Table(box=None, pad_edge=False)
        for title in ("", "head", "now", "curve", "so far"):
            table.add_column(title, min_width=live.WIDTH if title == "curve" else None)
        for task in self.tasks:
            means = {
                run: [mean(values) for _, values in curve] for run, curve in self.curves.items() if run.task == task
            }
            every = [value for curve in means.values() for value in curve] or [0.0]
            for head in HEADS:
                runs = self.runs(task, head)
                done = [run for run in runs if run in self.results]
                last = next((curve for run, curve in reversed(means.items()) if run.head == head), [])
                stage = f"{len(done)} of {len(self.tasks[task].rates) + 1} runs"
                values = self.values(task, head)
                found = f"{mean(values):.1f} at {runs[-1].rate:g}" if values else ""
                drawn = live.curve(last, min(every), max(every))
                table.add_row(self.tasks[task].name if head == "softmax" else "", head, stage, drawn, found)
        return table

    def sentences(self) -> list[str]:
        """The verdicts, with their uncertainty."""
        return [self._sentence(task) for task in self.tasks]

    def _sentence(self, task: str) -> str:
        kind, found = self.tasks[task], self.verdict(task)
        ours, theirs = (mean(self.values(task, head)) for head in ("catnat", "softmax"))
        means = f"{kind.name}, {kind.unit}: catnat {ours:.1f}, softmax {theirs:.1f}"
        low, high = sorted((found.low, found.high))
        interval = f"{found.difference:+.1f}, 95% interval {low:+.1f} to {high:+.1f}, {kind.seeds} fresh networks each"
        if low <= 0 <= high:
            return f"{means}. No difference seen ({interval})"
        ahead = "catnat" if (found.difference < 0) == kind.lower_is_better else "softmax"
        return f"{means}. {ahead} is ahead ({interval})"


def settings(task: Digits | Game | None) -> dict[str, Any]:
    """All numbers of a task: runs of other numbers do not count."""
    counts = "rates", "search", "seeds"
    return {name: value for name, value in vars(task).items() if name not in counts} if task else {}


def workers() -> int:
    """A process per core that this one may use."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


_news: Any = None  # where a worker tells how its run goes


def _begin(news: Any) -> None:
    """In a worker: one thread, no share in the user's Ctrl-C, and no numbers so small that a CPU is slow with them."""
    global _news
    import torch

    _news = news
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # else Adam's second moments make the game's last steps take three times as long
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _train(run: Run, task: Digits | Game) -> dict[str, Any]:
    training, curve = task.train(run.head, run.rate, run.seed, run.count), Curve()
    while True:
        try:
            curve.append([*next(training)])
        except StopIteration as end:
            return {"run": asdict(run), "settings": settings(task), "curve": curve, "shown": end.value}
        _news.put((run, curve))
