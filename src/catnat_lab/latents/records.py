"""What was measured, a row a run: a file of rows a group, whole or not there, and beside it where it comes from."""

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from catnat_lab.files import write
from catnat_lab.latents.train import Cell, Run

SETTING = ("stage", "variables", "classes", "estimator", "head", "rate", "temperature", "seed", "epochs")
MEASURES = ("validation", "validation kl", "test", "test kl", "train", "train kl")


@dataclass(frozen=True)
class Job:
    """One run of the study."""

    stage: str
    cell: Cell
    run: Run


@dataclass(frozen=True)
class Group:
    """Runs that are trained as one stack."""

    stage: str
    cell: Cell
    runs: tuple[Run, ...]

    @property
    def jobs(self) -> list[Job]:
        return [Job(self.stage, self.cell, run) for run in self.runs]


Results = dict[Job, Mapping[str, float]]


def read(folder: Path) -> Results:
    """Every run of all files of a folder."""
    found: Results = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                cell = Cell(int(row["variables"]), int(row["classes"]), row["estimator"])
                run = Run(row["head"], float(row["rate"]), float(row["temperature"]), int(row["seed"]))
                found[Job(row["stage"], cell, run)] = {name: float(row[name]) for name in MEASURES if row.get(name)}
    return found


def keep(
    folder: Path, group: Group, epochs: int, outcomes: Sequence[Mapping[str, Any]], provenance: Mapping[str, str]
) -> Path:
    """Write a group's file; the rows last, for they say that it is done."""
    text = StringIO()
    table = csv.DictWriter(text, (*SETTING, *MEASURES, "curve"), lineterminator="\n")
    table.writeheader()
    cell = group.cell
    for run, found in zip(group.runs, outcomes, strict=True):
        setting = (group.stage, cell.variables, cell.classes, cell.estimator)
        row = dict(zip(SETTING, (*setting, run.head, run.rate, run.temperature, run.seed, epochs), strict=True))
        table.writerow(row | {name: _rounded(value) for name, value in found.items()})
    path = next(_free(folder, f"{group.stage}-{cell.variables}x{cell.classes}-{cell.estimator}"))
    write(path.with_suffix(".json"), json.dumps(provenance, indent=1) + "\n")
    return write(path, text.getvalue())


def _rounded(value: Any) -> Any:
    return f"{value:.4f}" if isinstance(value, float) and math.isfinite(value) else value


def _free(folder: Path, name: str) -> Iterator[Path]:
    count = 1
    while (path := folder / f"{name}-{count}.csv").exists():
        count += 1
    yield path
