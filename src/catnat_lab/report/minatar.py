"""The report of MinAtar: many seeds a head, so interquartile means with intervals, and tests, whatever they say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from catnat_lab.errors import UserError
from catnat_lab.report import PageFigure, Report, markdown, page, write
from catnat_lab.report.curves import Curve, CurvePanel
from catnat_lab.report.rl import draw_curves
from catnat_lab.report.svg import serialize
from catnat_lab.report.table import Cell, Column, Table
from catnat_lab.rl.minatar_study import NOTE, PROVENANCE, best_rate, study_name
from catnat_lab.stats import bootstrap, interquartile_mean, summarize, welch
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
                told.append(f"{game}, {head} less softmax: {gap:+.2f} (Welch's test, p = {welch(ours, theirs):.2g}).")
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
    """Write report.html, report.md and the values as CSV; the path of the page."""
    table, remarks, settings = table_of(results), remarks_of(results), results.settings
    report = Report(
        title="PPO on MinAtar",
        summary=(
            f"Policies of {', '.join(settings['heads'])} on {', '.join(settings['games'])}, {settings['seeds']} seeds "
            f"of {settings['steps']:,} steps each; a rate for every head by seeds of its own."
        ),
        provenance=results.provenance,
        tables=(table,),
        remarks=remarks,
        figures=tuple(figures_of(results)),
        rerun=tuple([results.provenance["command"]] if "command" in results.provenance else []),
    )
    why = "\n".join(["**What we found**", "", *(f"- {remark}" for remark in remarks)])
    write(folder / "report.md", "\n\n".join([markdown(table).rstrip(), why]) + "\n")
    lines = ["game,head,rate,seed,score"]
    for (game, head), trial in results.final.items():
        rate = trial.config["rate"]
        lines += [f"{game},{head},{rate:g},{seed},{score:g}" for seed, score in enumerate(trial.record["scores"], 1)]
    write(folder / "values.csv", "\n".join(lines) + "\n")
    return write(folder / "report.html", page(report))


def figures_of(results: Results) -> list[PageFigure]:
    """Learning curves."""
    panels = []
    for game in results.settings["games"]:
        curves = {}
        for head in results.settings["heads"]:
            if (game, head) in results.final:
                values = np.nan_to_num(np.array(results.final[game, head].record["curves"], dtype=float))
                steps = np.linspace(0, results.settings["steps"], values.shape[1] + 1)[1:]
                ends = np.array([bootstrap(column, interquartile_mean, draws=300) for column in values.T])
                middle = np.array([interquartile_mean(column) for column in values.T])
                curves[head] = Curve(steps, middle, ends[:, 0], ends[:, 1])
        if curves:
            panels.append(CurvePanel(game, curves))
    if not panels:
        return []
    caption = "Interquartile mean over the seeds of the mean score in every part of training, and its 95% interval."
    return [PageFigure("Learning curves", caption, serialize(draw_curves(panels), "Scores over training"))]
