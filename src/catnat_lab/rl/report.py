"""The report of reinforcement learning, of a sweep and of MinAtar, from what the study holds and nothing else."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from catnat_lab.experiment import Finished
from catnat_lab.heads import is_natural
from catnat_lab.report.figures import Curve, CurvePanel, draw_curves
from catnat_lab.report.page import PageFigure, Report, paper_rows, printed, write_pages
from catnat_lab.report.table import Cell, Column, Table
from catnat_lab.rl.minatar_study import FIRST_SEARCH_SEED
from catnat_lab.rl.minatar_study import NOTE as MINATAR_NOTE
from catnat_lab.rl.settings import PAPER_STEPS
from catnat_lab.rl.sweep import NOTE, SPACE
from catnat_lab.stats import bootstrap, by_ranks, holm, interquartile_mean
from catnat_lab.studies import Study

PAPER_SEEDS, PAPER_TRIALS = 10, 160
GRID = 100  # points of a drawn curve
FEW = 5  # seeds, below which a test says little
SCORES = {
    "rl": "A score is the mean over the last 100 episodes of a run, which favours short ones.",
    "minatar": (
        "A score is the mean over the episodes that end in the last tenth of training, which favours short ones. "
        "Actions are sticky: with probability 0.1 the one before is repeated. Of the settings only the rate was tuned."
    ),
}
SEAQUEST = (
    "Seaquest is pgx's, not quite MinAtar's own: enemy torpedoes that leave the screen are never removed from their "
    "list, and one that left by the left edge stops all behind it there, so that late in a long game most torpedoes in "
    "sight stand still and do no harm. Its scores cannot be compared with those published for MinAtar."
)


class Run(NamedTuple):
    stage: str
    seed: int
    score: float
    chosen: dict[str, float]  # hyperparameters; none: the defaults
    told: dict[str, Any]  # what else values.csv has of it
    curve: dict[str, list[float]]  # steps and scores
    rank: int = 0  # of its configuration in the search
    outside: float = math.nan  # the share of nodes outside the natural range


@dataclass(frozen=True)
class Results:
    kind: str  # rl or minatar
    settings: dict[str, Any]
    runs: dict[tuple[str, str], list[Run]]
    provenance: dict[str, Any]

    def final(self, game: str, head: str) -> list[Run]:
        """The runs of the search's best configuration, one a seed; without a search, of the defaults."""
        return [run for run in self.runs[game, head] if run.stage == "final" and run.rank == 0]

    def finite(self, game: str, head: str) -> list[float]:
        """The scores of the seeds that have one; the table tells how many have none."""
        return [run.score for run in self.final(game, head) if math.isfinite(run.score)]


def load(study: Study) -> Results:
    kind, note = ("minatar", MINATAR_NOTE) if study.note(MINATAR_NOTE) is not None else ("rl", NOTE)
    settings, read = study.note(note), {"minatar": _of_stack, "rl": _of_run}[kind]
    cells = [(game, head) for game in settings["games"] for head in settings["heads"]]
    found = {cell: study.finished(f"{kind} {cell[0]} {cell[1]}") for cell in cells}
    runs = {
        cell: sorted(
            (run for trial in trials for run in read(trial, settings)),
            key=lambda run: (run.stage == "final", run.rank, run.stage == "final" and run.seed),
        )
        for cell, trials in found.items()
    }
    return Results(kind, settings, runs, study.note(f"{kind} provenance") or {})


def _of_run(trial: Finished, settings: dict[str, Any]) -> Iterator[Run]:
    """A sweep's trial is one run."""
    config, score = trial.config, trial.metrics["score"]
    told = {name: config.get(name, "") for name in ("rank", "seed", *SPACE)}
    told |= {"score": score, "episodes": int(trial.metrics["episodes"])}
    chosen = {name: config[name] for name in SPACE if name in config}
    yield Run(config["stage"], config["seed"], score, chosen, told, trial.record["curve"], config.get("rank", 0))


def _of_stack(trial: Finished, settings: dict[str, Any]) -> Iterator[Run]:
    """A trial of MinAtar is all seeds of a rate, or of all rates."""
    if trial.config["stage"] == "rates":
        for rate, scores in trial.record["by rate"].items():
            for seed, score in enumerate(scores, FIRST_SEARCH_SEED):
                told = {"rate": float(rate), "seed": seed, "score": score}
                yield Run("search", seed, score, {"rate": float(rate)}, told, {})
        return
    rate, record = trial.config["rate"], trial.record
    for place, (score, values) in enumerate(zip(record["scores"], record["curves"], strict=True)):
        told = {"rate": rate, "seed": place + 1, "score": score}
        steps = np.linspace(0, settings["steps"], len(values) + 1)[1:].tolist()  # where the parts of training end
        outside = record["outside"][place] if "outside" in record else math.nan
        curve = {"step": steps, "score": values}
        yield Run("final", place + 1, score, {"rate": rate}, told, curve, outside=outside)


def table_of(results: Results) -> Table:
    """Final scores, a sweep's beside the paper's; it has none of MinAtar."""
    settings, steps = results.settings, f"{results.settings['steps']:,} steps"
    is_sweep = results.kind == "rl"
    paper = {(row["game"], row["head"]): printed(row) for row in (paper_rows("rl.csv") if is_sweep else [])}
    scores = {cell: tuple(run.score for run in results.final(*cell)) for cell in results.runs}
    title = (
        f"PPO, {steps}: mean score of the last 100 episodes"
        if is_sweep
        else f"MinAtar, {steps}, {settings['seeds']} seeds: score"
    )
    return Table(
        title=f"{title}; higher is better",
        measure="score",
        group_name="game",
        groups=tuple(settings["games"]),
        lines=tuple(settings["heads"]),
        columns=(Column("score", "score", 1 if is_sweep else 2, False),),
        cells={(*cell, "score"): Cell(found, *paper.get(cell, ())) for cell, found in scores.items()},
        paper_count=PAPER_SEEDS,
        compares_values=is_sweep and settings["steps"] == PAPER_STEPS and settings["trials"] >= PAPER_TRIALS,
    )


def write_report(results: Results, folder: Path) -> tuple[Path, tuple[Table, ...]]:
    settings, table = results.settings, table_of(results)
    done = sum(map(len, results.runs.values()))
    title = "PPO" if results.kind == "rl" else "PPO on MinAtar"
    report = Report(
        title=f"{title}{' beside the paper' if table.has_paper else ''}",
        summary=(
            f"Policies of {', '.join(settings['heads'])} on {', '.join(settings['games'])}, {settings['seeds']} seeds "
            f"of {settings['steps']:,} steps each. {done} runs are finished, those of the search among them."
        ),
        provenance=results.provenance,
        tables=(table,),
        remarks=tuple(remarks_of(results, table)),
        figures=tuple(figures_of(results)),
    )
    return write_pages(report, folder, {"values.csv": values_of(results), "curves.csv": curves_of(results)})


def values_of(results: Results) -> Iterator[dict[str, object]]:
    for (game, head), runs in results.runs.items():
        for run in runs:
            yield {"game": game, "head": head, "stage": run.stage} | run.told


def curves_of(results: Results) -> Iterator[dict[str, object]]:
    """One record a point of a final run's curve: the mean score of the episodes that ended in the part before it."""
    for (game, head), runs in results.runs.items():
        for run in runs:
            place = {"game": game, "head": head} | ({"rank": run.rank} if results.kind == "rl" else {})
            if run.stage == "final":
                for step, score in zip(run.curve["step"], run.curve["score"], strict=True):
                    yield place | {"seed": run.seed, "step": round(step), "score": score}


def remarks_of(results: Results, table: Table) -> Iterator[str]:
    """Interquartile means, differences by ranks, what the search chose, and what the numbers can bear."""
    settings = results.settings
    yield from _interquartile(results)
    yield from _by_ranks(results)
    for (game, head), runs in results.runs.items():
        shares = [run.outside for run in runs if math.isfinite(run.outside)]
        if is_natural(head) and shares:
            told = f"{100 * np.mean(shares):.0f}% on average, {100 * min(shares):.0f} to {100 * max(shares):.0f}%"
            yield f"{game} {head}, nodes outside the natural range in the last tenth of training: {told}."
    yield from _chosen(results)
    if settings["seeds"] < FEW:
        yield f"With {settings['seeds']} seeds a test can tell next to nothing apart; bold says little."
    if settings.get("trials") == 0:
        yield "No search was made: all heads have the default settings."
    yield SCORES[results.kind]
    if table.has_paper:
        yield "The paper's final returns are taken as means over 10 seeds. What a final return is, it does not say."
        if settings["steps"] < PAPER_STEPS:
            yield "Rates fall to 0 over a run: this is not the beginning of a longer training, but a short one."
        if settings["trials"]:
            yield (
                "The paper trains the ten best configurations of its search over ten seeds and does not say whose mean "
                "it prints. The table has our search's best one."
            )
    if "pgx" in results.provenance and results.kind == "minatar" and "Seaquest" in settings["games"]:
        yield SEAQUEST


def _interquartile(results: Results) -> Iterator[str]:
    told = []
    for game, head in results.runs:
        scores = results.finite(game, head)
        if len(scores) > 1:
            low, high = bootstrap(scores, interquartile_mean)
            told.append(f"{game} {head} {interquartile_mean(scores):.2f} [{low:.2f}, {high:.2f}]")
    if told:
        yield f"The interquartile means over seeds, with 95% bootstrap intervals: {'; '.join(told)}."


def _by_ranks(results: Results) -> Iterator[str]:
    """From softmax, which scores lie above or below; the tests are corrected for their number."""
    pairs = {
        (game, head): (results.finite(game, head), results.finite(game, "softmax"))
        for game, head in results.runs
        if head != "softmax" and "softmax" in results.settings["heads"]
    }
    pairs = {cell: pair for cell, pair in pairs.items() if min(map(len, pair)) > 1}
    corrected = holm([by_ranks(*pair) for pair in pairs.values()])
    for ((game, head), (ours, theirs)), p in zip(pairs.items(), corrected, strict=True):
        middle = interquartile_mean(ours) - interquartile_mean(theirs)
        low, high = bootstrap(ours, interquartile_mean, less=theirs)
        yield (
            f"{game}, {head} less softmax: of the interquartile means {middle:+.2f} [{low:+.2f}, {high:+.2f}]; by "
            f"ranks, after Mann and Whitney, p = {p:.2g}, corrected after Holm."
        )


def _chosen(results: Results) -> Iterator[str]:
    """The configuration of the search with the best mean score."""
    for (game, head), runs in results.runs.items():
        tried: dict[tuple[tuple[str, float], ...], list[float]] = {}
        for run in runs:
            if run.stage != "final":
                tried.setdefault(tuple(run.chosen.items()), []).append(run.score)
        means = {chosen: mean for chosen, scores in tried.items() if math.isfinite(mean := float(np.mean(scores)))}
        if means:
            best = max(means, key=means.__getitem__)
            values = ", ".join(f"{name} {value:.3g}" for name, value in best)
            yield f"{game} {head}, the best of {len(tried)} trials: {values}."


def figures_of(results: Results) -> Iterator[PageFigure]:
    """Learning curves of the final runs, one panel a game and one curve a head."""
    panels = []
    for game in results.settings["games"]:
        runs = {head: [run.curve for run in results.final(game, head)] for head in results.settings["heads"]}
        begun = {head: [curve for curve in curves if curve["step"]] for head, curves in runs.items()}
        curves = {head: _curve(some, results.settings["steps"]) for head, some in begun.items() if some}
        panels += [CurvePanel(game, curves)] if curves else []
    if panels:
        caption = (
            "Mean score of the episodes that end within each part of training: the interquartile mean over seeds (of "
            "three or fewer the mean), and its 95% bootstrap interval (of two both runs)."
        )
        yield PageFigure("Learning curves", caption, draw_curves(panels, "score", focus=False))


def _curve(runs: list[dict[str, list[float]]], steps: int) -> Curve:
    grid = np.linspace(steps / GRID, steps, GRID)
    values = np.stack([np.interp(grid, run["step"], np.nan_to_num(np.array(run["score"], float))) for run in runs])
    middle = np.array([interquartile_mean(column) for column in values.T])
    if len(runs) < 3:
        return Curve(grid, middle, values.min(0), values.max(0))
    ends = np.array([bootstrap(column, interquartile_mean, draws=300) for column in values.T])
    return Curve(grid, middle, ends[:, 0], ends[:, 1])
