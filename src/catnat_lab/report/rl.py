"""The report of reinforcement learning, from what the study holds and nothing else."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from catnat_lab.errors import UserError
from catnat_lab.experiment import Finished
from catnat_lab.report import PageFigure, Report, write_pages
from catnat_lab.report.curves import Curve, CurvePanel, draw_curve, names_of
from catnat_lab.report.drawing import in_look, in_panels, key, label_left, legend
from catnat_lab.report.svg import serialize
from catnat_lab.report.table import Cell, Column, Table
from catnat_lab.rl.settings import PAPER_STEPS
from catnat_lab.rl.sweep import NOTE, PROVENANCE, SPACE, final_of, study_name
from catnat_lab.stats import bootstrap, interquartile_mean, welch
from catnat_lab.studies import Study

PAPER_SEEDS, PAPER_TRIALS = 10, 160
GRID = 100  # points of a drawn curve
FEW = 5  # seeds, below which a test says little


@dataclass(frozen=True)
class Results:
    """All finished trials, by game and head."""

    settings: dict[str, Any]
    final: dict[tuple[str, str], list[Finished]]
    tried: dict[tuple[str, str], list[Finished]]
    provenance: dict[str, Any]

    def scores(self, game: str, head: str) -> list[float]:
        """Of the search's best configuration, one a seed; without a search, of the defaults."""
        return [trial.metrics["score"] for trial in self.final[game, head] if trial.config["rank"] == 0]


def load(study: Study) -> Results:
    """Read a study back."""
    settings = study.note(NOTE)
    if settings is None:
        raise UserError(f"no study of reinforcement learning in {study.name}")
    cells = [(game, head) for game in settings["games"] for head in settings["heads"]]
    tried = {cell: study.finished(study_name(*cell), stage="tpe") for cell in cells}
    return Results(settings, {cell: final_of(study, *cell) for cell in cells}, tried, study.note(PROVENANCE) or {})


def table_of(results: Results) -> Table:
    """Final scores beside the paper's."""
    paper, settings = paper_table(), results.settings
    cells = {
        (game, head, "score"): Cell(tuple(results.scores(game, head)), *paper.get((game, head), (None, None, False)))
        for game, head in results.final
    }
    return Table(
        title=f"PPO, {settings['steps']:,} steps: mean score of the last 100 episodes; higher is better",
        group_name="game",
        groups=tuple(settings["games"]),
        line_name="parameterization",
        lines=tuple(settings["heads"]),
        columns=(Column("score", "score", 1, False),),
        cells=cells,
        paper_count=PAPER_SEEDS,
        compares_values=settings["steps"] == PAPER_STEPS and settings["trials"] >= PAPER_TRIALS,
    )


def paper_table() -> dict[tuple[str, str], tuple[float, float, bool]]:
    """The paper's mean and deviation by game and head, and whether it is bold there."""
    rows = csv.DictReader(files("catnat_lab").joinpath("paper", "rl.csv").read_text().splitlines())
    return {
        (row["game"], row["parameterization"].replace("_", "-")): (
            float(row["mean"]),
            float(row["std"]),
            row["bold"] == "True",
        )
        for row in rows
    }


def remarks_of(results: Results) -> tuple[str, ...]:
    """Interquartile means, tests against softmax, what the search chose, and what the numbers can bear."""
    settings = results.settings
    told = [_interquartile(results), _against_softmax(results), *_chosen(results)]
    if settings["seeds"] < FEW:
        told.append(f"With {settings['seeds']} seeds a test can tell next to nothing apart; bold says little.")
    if settings["trials"] == 0:
        told.append("No search was made: all heads have the default settings.")
    if table_of(results).has_paper:
        told += _beside_the_paper(settings)
    return tuple(text for text in told if text)


def _beside_the_paper(settings: dict[str, Any]) -> Iterator[str]:
    yield (
        "The paper's final returns are taken as means over 10 seeds; ours are of the last 100 episodes of a run, which "
        "favours short ones. What a final return is, the paper does not say."
    )
    if settings["steps"] < PAPER_STEPS:
        yield "Rates fall to 0 over a run: this is not the beginning of a longer training, but a short one."
    if settings["trials"]:
        yield (
            "The paper trains the ten best configurations of its search over ten seeds and does not say whose mean it "
            "prints. The table has our search's best one; the best by the final seeds themselves would flatter all."
        )


def _interquartile(results: Results) -> str:
    told = []
    for (game, head), trials in results.final.items():
        scores = [trial.metrics["score"] for trial in trials if trial.config["rank"] == 0]
        if len(scores) > 2 and all(map(math.isfinite, scores)):
            low, high = bootstrap(scores, interquartile_mean)
            told.append(f"{game} {head} {interquartile_mean(scores):.1f} [{low:.1f}, {high:.1f}]")
    return f"Interquartile means over seeds, with 95% bootstrap intervals: {'; '.join(told)}." if told else ""


def _against_softmax(results: Results) -> str:
    told = []
    for game, head in results.final:
        ours, theirs = results.scores(game, head), results.scores(game, "softmax") if head != "softmax" else []
        if min(len(ours), len(theirs)) > 1 and all(map(math.isfinite, (*ours, *theirs))):
            told.append(f"{game} {head} p = {welch(ours, theirs):.2g}")
    return f"Against softmax, by Welch's test: {'; '.join(told)}." if told else ""


def _chosen(results: Results) -> list[str]:
    found = []
    for (game, head), tried in results.tried.items():
        if tried:
            best = min(tried, key=lambda trial: trial.value).config
            values = ", ".join(f"{name} {best[name]:.3g}" for name in SPACE)
            found.append(f"{game} {head}, the best of {len(tried)} trials: {values}.")
    return found


def write_report(results: Results, folder: Path) -> Path:
    """Write report.html, report.md, the values and the curves as CSV; the path of the page."""
    settings, table = results.settings, table_of(results)
    done = sum(len(trials) for trials in (*results.final.values(), *results.tried.values()))
    report = Report(
        title="PPO beside the paper" if table.has_paper else "PPO",
        summary=(
            f"Policies of {', '.join(settings['heads'])} on {', '.join(settings['games'])}, "
            f"{settings['steps']:,} steps each. {done} trials are finished."
        ),
        provenance=results.provenance,
        tables=(table,),
        remarks=remarks_of(results),
        figures=tuple(figures_of(results)),
    )
    return write_pages(report, folder, {"values.csv": values_csv(results), "curves.csv": curves_csv(results)})


def values_csv(results: Results) -> str:
    """One line a finished trial."""
    lines = [",".join(("game", "head", "stage", "rank", "seed", *SPACE, "score", "episodes"))]
    for (game, head), final in results.final.items():
        for trial in [*results.tried[game, head], *final]:
            config = trial.config
            chosen = (f"{config[name]:g}" if name in config else "" for name in SPACE)
            place = (game, head, config["stage"], f"{config.get('rank', '')}", f"{config['seed']}")
            measured = (f"{trial.metrics['score']:g}", f"{trial.metrics['episodes']:.0f}")
            lines.append(",".join((*place, *chosen, *measured)))
    return "\n".join(lines) + "\n"


def curves_csv(results: Results) -> str:
    """One line a point of a final run's curve: the mean score of the episodes that ended in the part before it."""
    lines = ["game,head,rank,seed,step,score"]
    for (game, head), trials in results.final.items():
        for trial in trials:
            place, curve = f"{game},{head},{trial.config['rank']},{trial.config['seed']}", trial.record["curve"]
            points = zip(curve["step"], curve["score"], strict=True)
            lines += [f"{place},{step:.0f},{score:g}" for step, score in points]
    return "\n".join(lines) + "\n"


# -- figures -----------------------------------------------------------------------------------------------------


def figures_of(results: Results) -> list[PageFigure]:
    """Learning curves of the final runs."""
    panels = curve_panels(results)
    if not panels:
        return []
    caption = (
        "Mean score of the episodes that end within each hundredth of training: the mean over seeds, and its 95% "
        "bootstrap interval (with two seeds both runs)."
    )
    return [PageFigure("Learning curves", caption, serialize(draw_curves(panels), "Scores over training"))]


def curve_panels(results: Results) -> list[CurvePanel]:
    """One panel a game, one curve a head."""
    panels = []
    for game in results.settings["games"]:
        curves = {}
        for head in results.settings["heads"]:
            runs = [t.record["curve"] for t in results.final[game, head] if t.config["rank"] == 0]
            runs = [run for run in runs if run["step"]]
            if runs:
                curves[head] = _curve(runs, results.settings["steps"])
        if curves:
            panels.append(CurvePanel(game, curves))
    return panels


def _curve(runs: list[dict[str, list[float]]], steps: int) -> Curve:
    grid: NDArray[Any] = np.linspace(steps / GRID, steps, GRID)
    values = np.stack([np.interp(grid, run["step"], run["score"]) for run in runs])
    if len(runs) < 3:
        return Curve(grid, values.mean(0), values.min(0), values.max(0))
    ends = np.array([bootstrap(column, lambda found: float(np.mean(found)), draws=500) for column in values.T])
    return Curve(grid, values.mean(0), ends[:, 0], ends[:, 1])


@in_look
def draw_curves(panels: list[CurvePanel]) -> Figure:
    """Scores against training steps, one panel a game."""
    figure, every = in_panels(len(panels))
    for axes, panel in zip(every, panels, strict=True):
        for name, curve in panel.curves.items():
            draw_curve(axes, name, curve)
        axes.set(title=panel.group, xlabel="steps of all copies")
    label_left(every, "score")
    legend(figure, [key(name) for name in names_of(panel.curves for panel in panels)])
    return figure
