"""The report of MinAtar: many seeds a head, so interquartile means with intervals, and tests, whatever they say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catnat_lab.errors import UserError
from catnat_lab.report import PageFigure, Report, write_pages
from catnat_lab.report.curves import Curve, CurvePanel
from catnat_lab.report.rl import draw_curves
from catnat_lab.report.svg import serialize
from catnat_lab.report.table import Cell, Column, Table
from catnat_lab.rl.minatar_study import FIRST_SEARCH_SEED, NOTE, PROVENANCE, best_rate, study_name
from catnat_lab.stats import bootstrap, by_ranks, interquartile_mean, summarize, welch
from catnat_lab.store import Finished, Store


@dataclass(frozen=True)
class Results:
    """By game and head, the trial of all final seeds and the search before it."""

    settings: dict[str, Any]
    final: dict[tuple[str, str], Finished]
    searched: dict[tuple[str, str], Finished]
    provenance: dict[str, Any]


def load(store: Store) -> Results:
    """Read a study back."""
    settings = store.note(NOTE)
    if settings is None:
        raise UserError(f"no study of MinAtar in {store.database.name}")
    cells = [(game, head) for game in settings["games"] for head in settings["heads"]]
    known = set(store.names())
    studies = {cell: store.study(study_name(*cell), create=False) for cell in cells if study_name(*cell) in known}

    def trials(stage: str) -> dict[tuple[str, str], Finished]:
        found = {cell: study.finished(stage=stage) for cell, study in studies.items()}
        return {cell: one for cell, (one, *_) in ((c, f) for c, f in found.items() if f)}

    return Results(settings, trials("final"), trials("rates"), store.note(PROVENANCE) or {})


def table_of(results: Results) -> Table:
    """Final scores; the paper has none of MinAtar."""
    settings = results.settings
    return Table(
        title=f"MinAtar, {settings['steps']:,} steps, {settings['seeds']} seeds: score; higher is better",
        group_name="game",
        groups=tuple(settings["games"]),
        line_name="parameterization",
        lines=tuple(settings["heads"]),
        columns=(Column("score", "score", 2, False),),
        cells={(*cell, "score"): Cell(tuple(trial.record["scores"])) for cell, trial in results.final.items()},
        paper_count=settings["seeds"],
    )


def remarks_of(results: Results) -> tuple[str, ...]:
    """Interquartile means, the tests against softmax, the rates."""
    told = [
        "A score is the mean over the episodes that end in the last tenth of training, which favours short ones. "
        "Actions are sticky: with probability 0.1 the one before is repeated, as is pgx's default."
    ]
    for game in results.settings["games"]:
        lines = []
        for head in results.settings["heads"]:
            if (game, head) in results.final:
                scores = _finite(results.final[game, head])
                if len(scores) < 2:
                    continue
                low, high = bootstrap(scores, interquartile_mean)
                lines.append(f"{head} {interquartile_mean(scores):.2f} [{low:.2f}, {high:.2f}]")
        if lines:
            told.append(f"{game}, interquartile means with 95% bootstrap intervals: {', '.join(lines)}.")
        for head in results.settings["heads"]:
            pair = [results.final.get((game, name)) for name in (head, "softmax")]
            if head != "softmax" and all(trial is not None for trial in pair):
                ours, theirs = (_finite(trial) for trial in pair if trial is not None)
                if min(len(ours), len(theirs)) < 2:
                    continue
                gap = summarize(ours).mean - summarize(theirs).mean
                told.append(
                    f"{game}, {head} less softmax: {gap:+.2f} (Welch's test, p = {welch(ours, theirs):.2g}; by ranks, "
                    f"after Mann and Whitney, p = {by_ranks(ours, theirs):.2g})."
                )
    for (game, head), trial in results.searched.items():
        means = ", ".join(f"{rate}: {np.mean(scores):.2f}" for rate, scores in trial.record["by rate"].items())
        told.append(
            f"{game} {head}: rate {best_rate(trial):g}, by {results.settings['search_seeds']} other seeds of "
            f"{results.settings['search_steps']:,} steps ({means})."
        )
    return tuple(told)


def _finite(trial: Finished) -> list[float]:
    """The scores of the seeds that have one; the table tells how many have none."""
    return [score for score in trial.record["scores"] if math.isfinite(score)]


def write_report(results: Results, folder: Path) -> Path:
    """Write report.html, report.md, the values and the curves as CSV; the path of the page."""
    settings = results.settings
    report = Report(
        title="PPO on MinAtar",
        summary=(
            f"Policies of {', '.join(settings['heads'])} on {', '.join(settings['games'])}, {settings['seeds']} seeds "
            f"of {settings['steps']:,} steps each; a rate for every head by seeds of its own."
        ),
        provenance=results.provenance,
        tables=(table_of(results),),
        remarks=remarks_of(results),
        figures=tuple(figures_of(results)),
    )
    return write_pages(report, folder, {"values.csv": values_csv(results), "curves.csv": curves_csv(results)})


def values_csv(results: Results) -> str:
    """One line a seed, of the search too."""
    lines = ["game,head,stage,rate,seed,score"]
    for (game, head), trial in results.searched.items():
        for rate, scores in trial.record["by rate"].items():
            seeds = enumerate(scores, FIRST_SEARCH_SEED)
            lines += [f"{game},{head},search,{rate},{seed},{score:g}" for seed, score in seeds]
    for (game, head), trial in results.final.items():
        place = f"{game},{head},final,{trial.config['rate']:g}"
        lines += [f"{place},{seed},{score:g}" for seed, score in enumerate(trial.record["scores"], 1)]
    return "\n".join(lines) + "\n"


def curves_csv(results: Results) -> str:
    """One line a point of a final seed's curve: the mean score of the episodes that ended in the part before it."""
    lines = ["game,head,seed,step,score"]
    for (game, head), trial in results.final.items():
        for seed, curve in enumerate(trial.record["curves"], 1):
            points = zip(_steps(results, len(curve)), curve, strict=True)
            lines += [f"{game},{head},{seed},{step:.0f},{score:g}" for step, score in points]
    return "\n".join(lines) + "\n"


def _steps(results: Results, points: int) -> NDArray[Any]:
    """Where the parts of training end."""
    return np.linspace(0, results.settings["steps"], points + 1)[1:]


def figures_of(results: Results) -> list[PageFigure]:
    """Learning curves."""
    panels = []
    for game in results.settings["games"]:
        curves = {}
        for head in results.settings["heads"]:
            if (game, head) in results.final:
                values = np.nan_to_num(np.array(results.final[game, head].record["curves"], dtype=float))
                steps = _steps(results, values.shape[1])
                ends = np.array([bootstrap(column, interquartile_mean, draws=300) for column in values.T])
                middle = np.array([interquartile_mean(column) for column in values.T])
                curves[head] = Curve(steps, middle, ends[:, 0], ends[:, 1])
        if curves:
            panels.append(CurvePanel(game, curves))
    if not panels:
        return []
    caption = "Interquartile mean over the seeds of the mean score in every part of training, and its 95% interval."
    return [PageFigure("Learning curves", caption, serialize(draw_curves(panels), "Scores over training"))]
