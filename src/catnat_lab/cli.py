"""The command line: `catnat demo | gsl | vae | figure | report`. Bad input is one line on stderr and exit code 2."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from catnat_lab import figure
from catnat_lab.errors import UserError
from catnat_lab.gsl import presets
from catnat_lab.gsl.search import Search
from catnat_lab.provenance import provenance
from catnat_lab.report import Table, terminal
from catnat_lab.report import gsl as gsl_report
from catnat_lab.report import vae as vae_report
from catnat_lab.store import Store
from catnat_lab.vae import presets as vae_presets
from catnat_lab.vae.digits import load_digits
from catnat_lab.vae.search import NOTE as VAE_NOTE
from catnat_lab.vae.search import Search as VaeSearch

ABOUT = "The paper's experiments on catnat: run them, stop and go on, and see them beside the paper's numbers."
DATABASE = "study.db"
STACKED = {"cuda": 256, "cpu": 8}  # runs trained as one program: on a CPU few, so that little is lost with a killed one
VAE_STACKED = {"cuda": 64, "cpu": 8}


@dataclass(frozen=True)
class Gsl:
    """Graph structure learning, the paper's first table. Stop it whenever you like: the same command goes on."""

    preset: str = "quick"
    """smoke (seconds), quick (minutes on two cores) or paper (all of the table, on a GPU)."""
    output: Path = Path("runs/gsl")
    """Folder of the study's database and its report."""
    storage: str | None = None
    """Database URL of the study, for work shared by several machines; by default a SQLite file in the output folder."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."""
    stacked: int | None = None
    """How many runs train side by side as one program, at most; by default 256 on a GPU and 8 on a CPU."""
    thetas: tuple[float, ...] | None = None
    """True edge probabilities; by default the preset's, as all that follows."""
    heads: tuple[str, ...] | None = None
    """Of softmax, sparsemax, catnat-sigmoid, catnat-natural, catnat-natural-reflect, catnat-natural-revive."""
    search: str | None = None
    """How rates are searched: grid or tpe."""
    rates: tuple[float, ...] | None = None
    """The coarse grid of learning rates."""
    seeds: int | None = None
    """Final runs at the chosen rate."""
    epochs: int | None = None
    """Passes over the data."""
    baseline: str | None = None
    """Of the score-function gradient: none, moving-average or leave-one-out."""

    def settings(self) -> presets.Settings:
        """The preset with what was given instead of it."""
        names = ("thetas", "heads", "search", "rates", "seeds", "epochs", "baseline")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(presets.preset(self.preset), **given)

    def run(self) -> None:
        """Train what is not trained yet, then report."""
        settings, device = self.settings(), _device(self.device)
        stacked = STACKED[device.type] if self.stacked is None else self.stacked
        if stacked < 1:
            raise UserError(f"stacked must be at least 1; got {stacked}")
        with Store(self.storage or self.output / DATABASE) as store, _Bars() as on_step:
            started = time.perf_counter()
            search = Search(store, settings, device, stacked, on_step)
            store.settle_note(gsl_report.PROVENANCE, provenance(_command(), device))
            search.run()
            if search.trained:
                _note_part(store, gsl_report.PROVENANCE, device, time.perf_counter() - started)
            results = gsl_report.load(store)
        _show(gsl_report.write_report, [gsl_report.table_of(results)], results, self.output)


@dataclass(frozen=True)
class Vae:
    """The categorical VAE on MNIST, three tables of the paper. Stop it whenever you like: the same command goes on."""

    table: str = "adam"
    """adam, sgd (the convolutional VAE by straight-through samples) or mlp (the dense one by the score function)."""
    preset: str = "quick"
    """smoke (seconds), quick (minutes on two cores) or paper (all of the table, on a GPU)."""
    output: Path | None = None
    """Folder of the study's database, checkpoints, models and report; by default runs/vae-TABLE."""
    storage: str | None = None
    """Database URL of the study; by default a SQLite file in the output folder."""
    digits: Path | None = None
    """Folder with MNIST's image files; by default they are fetched once and kept in the user's cache."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."""
    stacked: int | None = None
    """How many runs train side by side as one program, at most; by default 64 on a GPU and 8 on a CPU."""
    cells: tuple[str, ...] | None = None
    """VARIABLESxCLASSES, such as 20x16; by default the preset's, as all that follows."""
    data: tuple[str, ...] | None = None
    """Of grey, binary (thresholded) and bernoulli (drawn anew for every batch)."""
    heads: tuple[str, ...] | None = None
    """Of softmax, sparsemax, catnat-sigmoid, catnat-natural, catnat-natural-exact, -reflect, -revive, -revive-fine."""
    rates: tuple[float, ...] | None = None
    """The coarse grid of learning rates; one rate alone, with --refined 0, is taken without a search."""
    refined: int | None = None
    """Rates around the best of the coarse grid."""
    searched: tuple[str, ...] | None = None
    """Cells with a search of their own; the others take the rates of the nearest one."""
    search_steps: int | None = None
    """Steps of a run of the search."""
    seeds: int | None = None
    """Final runs at the chosen rate."""
    steps: int | None = None
    """Steps of a final run."""
    samples: int | None = None
    """Samples of the posterior to judge a test image by."""

    def settings(self) -> vae_presets.Settings:
        """The preset with what was given instead of it."""
        names = ("cells", "data", "heads", "rates", "refined", "searched", "search_steps", "seeds", "steps", "samples")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if "cells" in given and "searched" not in given:
            given["searched"] = given["cells"]
        return replace(vae_presets.preset(self.preset, self.table), **given)

    def run(self) -> None:
        """Train what is not trained yet, then report."""
        settings, device = self.settings(), _device(self.device)
        output = self.output or Path(f"runs/vae-{self.table}")
        stacked = VAE_STACKED[device.type] if self.stacked is None else self.stacked
        if stacked < 1:
            raise UserError(f"stacked must be at least 1; got {stacked}")
        digits = load_digits(self.digits)
        with Store(self.storage or output / DATABASE) as store:
            started = time.perf_counter()
            search = VaeSearch(store, settings, digits, device, stacked, output)
            store.settle_note(vae_report.PROVENANCE, provenance(_command(), device))
            print(search.cost(), file=sys.stderr, flush=True)
            with _Bars() as search.progress:
                search.run()
            if search.trained:
                _note_part(store, vae_report.PROVENANCE, device, time.perf_counter() - started)
            results = vae_report.load(store)
        _show(vae_report.write_report, vae_report.tables_of(results), results, output)


@dataclass(frozen=True)
class Demo:
    """The quick comparison of graph structure learning on this machine's CPU, some minutes on two cores."""

    output: Path = Path("demo-output")
    """Folder of the study and its report."""

    def run(self) -> None:
        """As `catnat gsl`, with everything chosen."""
        Gsl(preset="quick", output=self.output, device="cpu").run()


@dataclass(frozen=True)
class Report:
    """Write a study's report again, finished or not."""

    output: Path = Path("runs/gsl")
    """Folder of the study; the report goes there too."""
    storage: str | None = None
    """Database URL, if the study is not in that folder."""

    def run(self) -> None:
        """Read the store, write the pages."""
        with Store(self.storage or self.output / DATABASE, create=False) as store:
            if store.note(VAE_NOTE) is not None:
                found = vae_report.load(store)
                _show(vae_report.write_report, vae_report.tables_of(found), found, self.output)
                return
            results = gsl_report.load(store)
        _show(gsl_report.write_report, [gsl_report.table_of(results)], results, self.output)


@dataclass(frozen=True)
class Figure:
    """The paper's first figure: loss landscapes of three classes with gradient descent on them, and Fisher matrices."""

    output: Path = Path("demo-output")
    """Folder of the picture."""

    def run(self) -> None:
        """Print and draw."""
        figure.run(self.output)


Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Gsl, tyro.conf.subcommand("gsl")]
    | Annotated[Vae, tyro.conf.subcommand("vae")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Figure, tyro.conf.subcommand("figure")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    command: Any = tyro.cli(Command, prog="catnat", description=ABOUT, args=arguments)
    try:
        command.run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


# -- parts -------------------------------------------------------------------------------------------------------


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in STACKED or (device.type == "cpu" and device.index):
        raise UserError(f"device must be auto, cpu, cuda or cuda:N; got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device must be one of the {torch.cuda.device_count()} GPUs here; got {name!r}")
    return device


class _Bars:
    """A bar with the time left for every stack of runs."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps,"))
        self.task: TaskID | None = None
        self.done = 0
        self.bars = Progress(
            *columns, TimeRemainingColumn(compact=True), TextColumn("left"), console=Console(stderr=True)
        )

    def __enter__(self) -> Callable[[str, int, int], None]:
        self.bars.start()
        return self.step

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def step(self, what: str, done: int, total: int) -> None:
        """Show so many steps done."""
        if self.task is None or done <= self.done:  # another stack, perhaps one that goes on after its first step
            if not self.bars.console.is_terminal:  # a log shows no moving bars
                print(f"{what}: {total} steps", file=sys.stderr, flush=True)
            self.task = self.bars.add_task(what, total=total)
        self.done = done
        self.bars.update(self.task, completed=done)


def _command() -> str:
    return " ".join(["catnat", *sys.argv[1:]])


def _note_part(store: Store, note: str, device: torch.device, seconds: float) -> None:
    """Add what this process has spent; where it differs from the first in commit or machine, that is said too."""
    facts, now = store.note(note), provenance(_command(), device)
    spent = float(facts.get("seconds", "0").split()[0]) + seconds
    facts["seconds"] = f"{spent:.0f} of training and bookkeeping, start-up not counted"
    if device.type == "cuda":
        facts["peak GPU memory"] = f"{torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB"
    other = {key: value for key, value in now.items() if key != "command" and facts.get(key) != value}
    if other:
        facts["continued with"] = ", ".join(f"{key} {value}" for key, value in other.items())
    store.set_note(note, facts)


def _show(write_report: Callable[[Any, Path], Path], tables: Sequence[Table], results: Any, output: Path) -> None:
    try:
        page = write_report(results, output)
        (output / "provenance.json").write_text(json.dumps(results.provenance, indent=2) + "\n")
    except OSError as problem:
        raise UserError(f"cannot write the report into {output}: {problem.strerror}") from None
    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in tables:
        console.print(terminal(table))
    if "peak GPU memory" in results.provenance:
        console.print(f"peak GPU memory: {results.provenance['peak GPU memory']}")
    console.print(f"report: {page}", soft_wrap=True)
