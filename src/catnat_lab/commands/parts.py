"""What commands share: the device, the bars, where numbers come from, and how results are shown."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from catnat_lab.errors import UserError
from catnat_lab.provenance import provenance
from catnat_lab.report import Table, terminal
from catnat_lab.store import Store

DATABASE = "study.db"
DEVICES = ("cpu", "cuda")
TOLD_EVERY = 60.0  # seconds between two lines of a log


def device_of(name: str) -> torch.device:
    """The device of that name; auto takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in DEVICES or (device.type == "cpu" and device.index):
        raise UserError(f"device must be auto, cpu, cuda or cuda:N; got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        here = f"there are {count} GPUs here" if count else "there is no GPU here: give cpu or auto"
        raise UserError(f"device must be one that is there, and {here}; got {name!r}")
    return device


class Bars:
    """A bar with the time left for every stack of runs."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps,"))
        self.task: TaskID | None = None
        self.done = 0
        self.told = -math.inf
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
            self.told = -math.inf
            self.task = self.bars.add_task(what, total=total)
        self.done = done
        if not self.bars.console.is_terminal and time.monotonic() - self.told > TOLD_EVERY:  # a log has no moving bars
            say(f"{what}: {done:,} of {total:,} steps")
            self.told = time.monotonic()
        self.bars.update(self.task, completed=done, description=what)


def say(text: str) -> None:
    """To whoever watches; results go to stdout."""
    print(text, file=sys.stderr, flush=True)


def only_kind(store: Store, kind: str) -> None:
    """Raise where the database holds a study of another kind: its report would be written over."""
    before = store.settle_note("kind", kind)
    if before != kind:
        raise UserError(f"{store.database.name} holds a study of {before}, not of {kind}; give another --output")


def command_line() -> str:
    """As it was typed."""
    return " ".join(["catnat", *sys.argv[1:]])


def note_part(store: Store, note: str, device: torch.device, seconds: float) -> None:
    """Add what this process has spent; where it differs from the first in commit or machine, that is said too."""
    facts = store.note(note)
    spent = float(facts.get("seconds", "0").split()[0]) + seconds
    facts["seconds"] = f"{spent:.0f} of training and bookkeeping, start-up not counted"
    if device.type == "cuda":
        facts["peak GPU memory"] = f"{torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB"
    store.set_note(note, continued(facts, provenance(command_line(), device)))


def continued(first: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Where a study or a run comes from, when it was begun there and goes on here."""
    other = {key: value for key, value in now.items() if key != "command" and first.get(key) != value}
    told = {"continued with": ", ".join(f"{key} {value}" for key, value in other.items())}
    return first | (told if other else {})


def show(write_report: Callable[[Any, Path], Path], tables: Sequence[Table], results: Any, output: Path) -> None:
    """Write the report, and print its tables."""
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
