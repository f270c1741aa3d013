"""What a study of the categorical VAE has found so far, read from its database, and what the paper printed."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from catnat_lab.errors import UserError
from catnat_lab.experiment import Finished
from catnat_lab.heads import is_natural
from catnat_lab.report.table import Cell, Column, Table
from catnat_lab.studies import Study
from catnat_lab.vae.presets import PAPER, sizes
from catnat_lab.vae.search import NOTE, SOURCE, study_name

PROVENANCE = "vae provenance"
PAPER_FILES = {"adam": "vae_adam.csv", "sgd": "vae_sgd.csv", "mlp": "vae_mlp_elbo.csv"}
PAPER_DATA = {"mnist": "grey", "binary_mnist": "binary", "bernoulli_mnist": "bernoulli"}
PAPER_SEEDS = 5
NAMES = {"adam": "convolutional VAE, Adam", "sgd": "convolutional VAE, SGD", "mlp": "dense VAE, score function"}
# by table: measures, their names, digits, whether lower is better; the first is the paper's
MEASURES = {
    "adam": (("nll", "test negative log-likelihood", 1, True),),
    "sgd": (("nll", "test negative log-likelihood", 1, True),),
    "mlp": (
        ("elbo_paper", "ELBO as the paper tabulates it, without −N log K", 1, False),
        ("elbo", "ELBO, with −N log K", 1, False),
    ),
}


@dataclass(frozen=True)
class Results:
    """All finished trials of a study, by data, cell and head."""

    settings: dict[str, Any]
    trials: dict[tuple[str, str, str], list[Finished]]
    source: str
    provenance: dict[str, str]

    def stage(self, data: str, cell: str, head: str, *stages: str) -> list[Finished]:
        """The trials of some stages of one cell, by seed."""
        found = [trial for trial in self.trials.get((data, cell, head), []) if trial.config["stage"] in stages]
        return sorted(found, key=lambda trial: trial.config["seed"])


def load(study: Study) -> Results:
    """Read a study back."""
    settings = study.note(NOTE)
    if settings is None:
        raise UserError(f"no study of the categorical VAE in {study.name}")
    cells = dict.fromkeys((*settings["cells"], *settings["searched"]))
    places = [(data, cell, head) for data in settings["data"] for cell in cells for head in settings["heads"]]
    trials = {place: study.finished(study_name(settings["table"], *place)) for place in places}
    return Results(settings, trials, study.note(SOURCE)["source"], study.note(PROVENANCE) or {})


def tables_of(results: Results) -> list[Table]:
    """Our final seeds beside the paper's, one table a measure."""
    return [
        _table(results, *measure, with_paper=i == 0) for i, measure in enumerate(MEASURES[results.settings["table"]])
    ]


def _table(results: Results, measure: str, name: str, digits: int, lower: bool, *, with_paper: bool) -> Table:
    settings = results.settings
    paper = paper_table(settings["table"]) if with_paper else {}
    placed, columns = _places(settings["data"], settings["cells"], digits, lower)
    cells = {}
    for (data, cell), (group, column) in placed.items():
        n, k = sizes(cell)
        for head in settings["heads"]:
            values = tuple(t.metrics[measure] for t in results.stage(data, cell, head, "final"))
            printed = paper.get((str(n), head, f"{data}-{k}"), (None, None, False))
            cells[group, head, column] = Cell(values, *printed)
    better = "lower is better" if lower else "higher is better"
    return Table(
        title=f"{NAMES[settings['table']]}, {settings['steps']:,} steps: {name}; {better}",
        group_name="N" if len(columns) > len(settings["data"]) else "N x K",
        groups=tuple(dict.fromkeys(group for group, _ in placed.values())),
        line_name="parameterization",
        lines=tuple(settings["heads"]),
        columns=columns,
        cells=cells,
        paper_count=PAPER_SEEDS,
        compares_values=settings["table"] == "mlp" and settings["steps"] == PAPER["mlp"].steps,
    )


def _places(
    kinds: list[str], cells: list[str], digits: int, lower: bool
) -> tuple[dict[tuple[str, str], tuple[str, str]], tuple[Column, ...]]:
    """Where the numbers of a kind of data and a cell stand, as group and column.

    As in the paper where the cells are a grid of N by K; else a group a cell, lest most places stay empty.
    """
    numbers = [sizes(cell) for cell in cells]
    classes = sorted({k for _, k in numbers})
    if len(classes) > 1 and len(numbers) == len(classes) * len({n for n, _ in numbers}):
        columns = tuple(Column(f"{data}-{k}", f"{data}, K = {k}", digits, lower) for data in kinds for k in classes)
        ordered = sorted(zip(numbers, cells, strict=True))
        return {(data, cell): (str(n), f"{data}-{k}") for data in kinds for (n, k), cell in ordered}, columns
    columns = tuple(Column(data, data, digits, lower) for data in kinds)
    return {(data, cell): (cell.replace("x", " x "), data) for data in kinds for cell in cells}, columns


def paper_table(table: str) -> dict[tuple[str, str, str], tuple[float, float, bool]]:
    """The paper's numbers by N, head and column: mean, deviation, and whether it is bold there."""
    text = files("catnat_lab").joinpath("paper", PAPER_FILES[table]).read_text()
    found = {}
    for row in csv.DictReader(text.splitlines()):
        column = f"{PAPER_DATA[row['dataset']]}-{row['n_categories']}"
        head = row["parameterization"].replace("_", "-")
        found[row["n_variables"], head, column] = float(row["mean"]), float(row["std"]), row["bold"] == "True"
    return found


def values_csv(results: Results) -> str:
    """One line a finished trial."""
    metrics = ("nll", "elbo", "elbo_paper", "bce", "kl", "validation")
    lines = [",".join(("table", "data", "variables", "classes", "head", "stage", "rate", "seed", *metrics))]
    for (data, cell, head), trials in results.trials.items():
        for trial in trials:
            config, (n, k) = trial.config, sizes(cell)
            values = (f"{trial.metrics[key]:.6g}" if key in trial.metrics else "" for key in metrics)
            place = (results.settings["table"], data, f"{n}", f"{k}", head, config["stage"])
            lines.append(",".join((*place, f"{config['rate']:g}", f"{config['seed']}", *values)))
    return "\n".join(lines) + "\n"


def curves_csv(results: Results) -> str:
    """One line a point of a final run's curve: minus the bound, and the share of nodes outside the natural range."""
    measures = ("minus_elbo_train", "minus_elbo_validation", "outside")
    lines = [",".join(("data", "variables", "classes", "head", "rate", "seed", "step", *measures))]
    for (data, cell, head), trials in results.trials.items():
        for trial in sorted(trials, key=lambda trial: trial.config["seed"]):
            curve = trial.record.get("curve") or {}
            if trial.config["stage"] != "final" or not curve.get("step"):
                continue
            n, k = sizes(cell)
            place = (data, f"{n}", f"{k}", head, f"{trial.config['rate']:g}", f"{trial.config['seed']}")
            points = zip(curve["step"], curve["train"], curve["validation"], curve["dead"], strict=True)
            for step, train, validation, outside in points:
                share = f"{outside:g}" if is_natural(head) else ""
                lines.append(",".join((*place, f"{step:.0f}", f"{train:g}", f"{validation:g}", share)))
    return "\n".join(lines) + "\n"
