"""The report of MinAtar: many seeds a head, so interquartile means with intervals, and tests, whatever they say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catnat_lab.errors import UserError
from catnat_lab.experiment import Finished
from catnat_lab.heads import is_natural
from catnat_lab.report import PageFigure, Report, write_pages
from catnat_lab.report.curves import Curve, CurvePanel
from catnat_lab.report.rl import draw_curves
from catnat_lab.report.svg import serialize
from catnat_lab.report.table import Cell, Column, Table
from catnat_lab.rl.minatar_study import FIRST_SEARCH_SEED, NOTE, PROVENANCE, best_rate, study_name
from catnat_lab.stats import (
    bootstrap,
    bootstrap_difference,
    by_ranks,
    holm,
    interquartile_mean,
    summarize,
    welch,
    welch_interval,
)
from catnat_lab.studies import Study


@dataclass(frozen=True)
class Results:
    """By game and head, the trial of all final seeds and the search before it."""

    settings: dict[str, Any]
    final: dict[tuple[str, str], Finished]
    searched: dict[tuple[str, str], Finished]
    provenance: dict[str, Any]


def load(study: Study) -> Results:
    """Read a study back."""
    settings = study.note(NOTE)
    if settings is None:
        raise UserError(f"no study of MinAtar in {study.name}")
    cells = [(game, head) for game in settings["games"] for head in settings["heads"]]

    def trials(stage: str) -> dict[tuple[str, str], Finished]:
        found = {cell: study.finished(study_name(*cell), stage=stage) for cell in cells}
        return {cell: some[0] for cell, some in found.items() if some}

    return Results(settings, trials("final"), trials("rates"), study.note(PROVENANCE) or {})


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
    """Interquartile means, differences from softmax, nodes outside their range, the rates, and what the games are."""
    found = [*_measures(results), *_differences(results), *_outside(results), *_rates(results), SCORES]
    is_pgx = "pgx" in results.provenance  # as of older studies; gymnax has the games now
    return (*found, SEAQUEST) if is_pgx and "Seaquest" in results.settings["games"] else tuple(found)


SCORES = (
    "A score is the mean over the episodes that end in the last tenth of training, which favours short ones. Actions "
    "are sticky: with probability 0.1 the one before is repeated, as is MinAtar's default. Of the settings only the "
    "rate was tuned."
)
SEAQUEST = (
    "Seaquest is pgx's, not quite MinAtar's own: enemy torpedoes that leave the screen are never removed from their "
    "list, and one that left by the left edge stops all behind it there, so that late in a long game most torpedoes in "
    "sight stand still and do no harm. Its scores cannot be compared with those published for MinAtar."
)


def _measures(results: Results) -> Iterator[str]:
    for game in results.settings["games"]:
        lines = []
        for head in results.settings["heads"]:
            scores = _scores(results, game, head)
            if len(scores) > 1:
                low, high = bootstrap(scores, interquartile_mean)
                lines.append(f"{head} {interquartile_mean(scores):.2f} [{low:.2f}, {high:.2f}]")
        if lines:
            yield f"{game}, interquartile means with 95% bootstrap intervals: {', '.join(lines)}."


def _differences(results: Results) -> Iterator[str]:
    """From softmax, with intervals; the tests by ranks are corrected for their number."""
    games, heads = results.settings["games"], results.settings["heads"]
    pairs = {
        (game, head): (_scores(results, game, head), _scores(results, game, "softmax"))
        for game in games
        for head in heads
        if head != "softmax"
    }
    pairs = {cell: pair for cell, pair in pairs.items() if min(map(len, pair)) > 1}
    ranks = [by_ranks(*pair) for pair in pairs.values()]
    for ((game, head), (ours, theirs)), by_rank, corrected in zip(pairs.items(), ranks, holm(ranks), strict=True):
        gap = summarize(ours).mean - summarize(theirs).mean
        low, high = welch_interval(ours, theirs)
        middle = interquartile_mean(ours) - interquartile_mean(theirs)
        least, most = bootstrap_difference(ours, theirs, interquartile_mean)
        yield (
            f"{game}, {head} less softmax: of the means {gap:+.2f} [{low:+.2f}, {high:+.2f}] (Welch's test, p = "
            f"{welch(ours, theirs):.2g}); of the interquartile means {middle:+.2f} [{least:+.2f}, {most:+.2f}]; by "
            f"ranks, after Mann and Whitney, p = {by_rank:.2g}, corrected after Holm {corrected:.2g}."
        )


def _outside(results: Results) -> Iterator[str]:
    for (game, head), trial in results.final.items():
        shares = trial.record.get("outside", [])
        if is_natural(head) and shares:
            told = f"{100 * np.mean(shares):.0f}% on average, {100 * min(shares):.0f} to {100 * max(shares):.0f}%"
            yield f"{game} {head}, nodes outside the natural range in the last tenth of training: {told}."


def _rates(results: Results) -> Iterator[str]:
    for (game, head), trial in results.searched.items():
        means = ", ".join(f"{rate}: {np.mean(scores):.2f}" for rate, scores in trial.record["by rate"].items())
        yield (
            f"{game} {head}: rate {best_rate(trial):g}, by {results.settings['search_seeds']} other seeds of "
            f"{results.settings['search_steps']:,} steps ({means})."
        )


def _scores(results: Results, game: str, head: str) -> list[float]:
    trial = results.final.get((game, head))
    return [] if trial is None else _finite(trial)


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
