"""What a study of graph structure learning has found so far, read from its database, and what the paper printed."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from catnat_lab.errors import UserError
from catnat_lab.experiment import Finished
from catnat_lab.gsl.presets import PAPER
from catnat_lab.gsl.search import NOTE, OPTIMAL, study_name
from catnat_lab.report.table import Column
from catnat_lab.studies import Study

COLUMNS = (
    Column("es_paper", "ES (twice the formula)", 3),
    Column("pp_mae", "PP-MAE", 4),
    Column("pp_mse", "PP-MSE", 3),
    Column("theta_mae", "MAE on θ", 4),
)
PAPER_NAMES = {"sigmoid": "catnat-sigmoid", "natural": "catnat-natural"}
PAPER_KEYS = {"es_paper": "es", "pp_mae": "pp_mae", "pp_mse": "pp_mse", "theta_mae": "theta_mae"}
PROVENANCE = "gsl provenance"


@dataclass(frozen=True)
class Results:
    """All finished trials of a study, by theta* and head."""

    settings: dict[str, Any]
    trials: dict[tuple[float, str], list[Finished]]
    provenance: dict[str, str]

    @property
    def thetas(self) -> list[float]:
        """The study's theta*."""
        return list(self.settings["thetas"])

    @property
    def heads(self) -> list[str]:
        """The study's parameterizations."""
        return list(self.settings["heads"])

    def stage(self, theta: float, head: str, *stages: str) -> list[Finished]:
        """The trials of some stages of one cell."""
        return [trial for trial in self.trials[theta, head] if trial.config["stage"] in stages]


def load(study: Study) -> Results:
    """Read a study back."""
    settings = study.note(NOTE)
    if settings is None:
        raise UserError(f"no study of graph structure learning in {study.name}")
    cells = [(theta, head) for theta in settings["thetas"] for head in (*settings["heads"], OPTIMAL)]
    trials = {cell: study.finished(study_name(*cell)) for cell in cells}
    return Results(settings, trials, study.note(PROVENANCE) or {})


def paper_table() -> dict[tuple[str, str, str], tuple[float, float, bool]]:
    """The paper's numbers by theta*, head and column: mean, deviation, and whether it is bold there."""
    text = files("catnat_lab").joinpath("paper", "gsl.csv").read_text()
    found = {}
    for row in csv.DictReader(text.splitlines()):
        head = PAPER_NAMES.get(row["activation"], row["activation"])
        for ours, theirs in PAPER_KEYS.items():
            mean, std, bold = float(row[f"{theirs}_mean"]), float(row[f"{theirs}_std"]), row[f"{theirs}_bold"] == "True"
            found[f"{float(row['theta_star']):g}", head, ours] = mean, std, bold
    return found


def is_papers(settings: dict[str, Any]) -> bool:
    """Whether this is the paper's problem, trained as long: else its numbers have no place beside ours."""
    paper = PAPER.as_dict()
    return all(settings[key] == paper[key] for key in ("communities", "pairs", "epochs", "batch", "graphs"))
