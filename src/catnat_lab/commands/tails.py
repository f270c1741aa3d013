"""`catnat tails`."""

import json
import time
from pathlib import Path
from typing import Any

from catnat_lab.commands.options import Tails
from catnat_lab.commands.parts import Bars, command_line, device_of, say
from catnat_lab.errors import UserError
from catnat_lab.provenance import provenance
from catnat_lab.report.page import as_csv, write
from catnat_lab.tails.jobs import Ledger


def tails(options: Tails) -> None:
    from catnat_lab.tails import page, study
    from catnat_lab.tails.presets import tasks_of
    from catnat_lab.tails.verdict import findings

    if not options.minutes >= 0:
        raise UserError(f"minutes must be at least 0; got {options.minutes}")
    device = device_of(options.device)
    tasks = tasks_of(options.tasks, options.preset, options.digits, options.corpus or options.output / "corpus.npz")
    ledger = Ledger(options.output, tasks)
    before, started = len(ledger.results), time.monotonic()
    with Bars() as progress:
        finished = study.run(tasks, ledger, device, options.minutes, progress, say)
    if trained := len(ledger.results) - before:
        spent = {"runs": trained, "seconds": round(time.monotonic() - started)}
        _note_part(options.output, provenance(command_line(), device) | spent)
    found = {task.name: (task, findings(task, ledger.results)) for task in ledger.outlines}
    text = page.markdown(found, ledger.results)
    write(options.output / "tails.md", text)
    write(options.output / "tails.csv", as_csv(page.values_of(found, ledger.results)))
    page.figure(found).savefig(options.output / "tails.svg", facecolor="white")
    print(text)
    if not finished:
        say("time is up; the same command goes on")


def _note_part(folder: Path, facts: dict[str, Any]) -> None:
    """Where these runs come from: a part for every process that has trained some."""
    path = folder / "provenance.json"
    parts = json.loads(path.read_text()) if path.exists() else []
    write(path, json.dumps([*parts, facts], indent=2) + "\n")
