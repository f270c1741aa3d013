"""`catnat tails`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catnat_lab.commands.parts import Bars, command_line, device_of, say
from catnat_lab.errors import UserError
from catnat_lab.provenance import provenance
from catnat_lab.tails.jobs import Ledger, replace_text


@dataclass(frozen=True)
class Tails:
    """How natural should it be? The family from the sigmoid to the paper's natural on many tasks, beside softmax.

    Stop it whenever you like: the same command goes on.
    """

    preset: str = "full"
    """smoke (about five minutes on two cores) or full (for a GPU; planned for 40 minutes of an H200)."""
    tasks: tuple[str, ...] = ("graphs", "vae", "classifier", "policy", "language")
    """Of graphs, vae, classifier, policy and language, in the order they are to be trained."""
    output: Path = Path("runs/tails")
    """Folder of the runs, the tables and the figure."""
    digits: Path | None = None
    """Folder with MNIST's four IDX files."""
    corpus: Path | None = None
    """File of the language model's tokens; by default it is made of Python's own source code, in the output folder."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."""
    minutes: float = 1e9
    """Begin no stack of runs that would not end in time, judged by the task's last one; its first one is not judged."""

    def run(self) -> None:
        """Train what is not trained yet, then report."""
        from catnat_lab.tails import page, study
        from catnat_lab.tails.presets import tasks_of
        from catnat_lab.tails.verdict import findings

        if not self.minutes >= 0:
            raise UserError(f"minutes must be at least 0; got {self.minutes}")
        device = device_of(self.device)
        tasks = tasks_of(self.tasks, self.preset, self.digits, self.corpus or self.output / "corpus.npz")
        ledger = Ledger(self.output, tasks)
        before, started = len(ledger.results), time.monotonic()
        with Bars() as progress:
            finished = study.run(tasks, ledger, device, self.minutes, progress, say)
        if trained := len(ledger.results) - before:
            spent = {"runs": trained, "seconds": round(time.monotonic() - started)}
            self._note_part(provenance(command_line(), device) | spent)
        found = {task.name: (task, findings(task, ledger.results)) for task in ledger.outlines}
        text = page.markdown(found, ledger.results)
        replace_text(self.output / "tails.md", text)
        replace_text(self.output / "tails.csv", page.as_csv(found, ledger.results))
        page.figure(found).savefig(self.output / "tails.svg")
        print(text)
        if not finished:
            say("time is up; the same command goes on")

    def _note_part(self, facts: dict[str, Any]) -> None:
        """Where these runs come from: a part for every process that has trained some."""
        path = self.output / "provenance.json"
        parts = json.loads(path.read_text()) if path.exists() else []
        replace_text(path, json.dumps([*parts, facts], indent=2) + "\n")
