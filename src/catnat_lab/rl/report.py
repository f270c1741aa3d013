"""The report of reinforcement learning, of a sweep, of MinAtar and of one run, from what was kept and nothing else."""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from catnat_lab.checkpoint import todays_names
from catnat_lab.experiment import Finished, Results
from catnat_lab.heads import is_natural
from catnat_lab.report.figures import Curve
from catnat_lab.report.page import PageFigure, Report, paper_rows, printed, write_pages
from catnat_lab.report.study import Place, by_panel, learning_curves, points, rows
from catnat_lab.report.table import Cell, Column, Table
from catnat_lab.rl.ppo import PAPER_STEPS, result_in
from catnat_lab.rl.search import FIRST_SEARCH_SEED, SPACE, MinAtar, PolicySweep, curve_of
from catnat_lab.stats import bootstrap, holm, improvement, interquartile_mean
from catnat_lab.studies import Study

PAPER_SEEDS, PAPER_TRIALS = 10, 160
GRID = 100  # points of a drawn curve
FEW = 5  # seeds, below which a test says little
ENOUGH = 10  # seeds for a bootstrapped probability: with fewer its interval is too narrow
SCORES = {
    "rl": "A score is the mean over the last 100 episodes of a run, which favours short ones.",
    "minatar": (
        "A score is the mean over the episodes that end in the last tenth of training, which favours short ones. "
        "Actions are sticky: with probability 0.1 the one before is repeated."
    ),
}

# -- what was kept ---------------------------------------------------------------------------------------------------


def load(study: Study) -> Results:
    """Runs by game and head: first those of the search, then the final ones; their kind is rl or minatar."""
    kind = "minatar" if study.note(MinAtar.note) is not None else "rl"
    settings, runs = study.note(MinAtar.note if kind == "minatar" else PolicySweep.note), {}
    for game, head in product(settings["games"], settings["heads"]):
        found = [run for job in study.finished(f"{kind} {game} {head}") for run in _runs(job, settings["steps"])]
        final = [run for run in found if run.config["stage"] == "final"]
        final.sort(key=lambda run: (run.config.get("rank", 0), run.config["seed"]))
        runs[game, head] = [run for run in found if run.config["stage"] != "final"] + final
    return Results(settings | {"kind": kind}, runs, study.note(f"{kind} provenance") or {})


def _runs(job: Finished, steps: int) -> Iterator[Finished]:
    """A job of the sweep is one run; of MinAtar it is all seeds of a rate, or of all rates."""
    config, record = todays_names(job.config), job.record
    if "by rate" in record:
        for rate, scores in record["by rate"].items():
            for seed, score in enumerate(scores, FIRST_SEARCH_SEED):
                yield Finished(-score, {"score": score}, {}, {"stage": "search", "rate": float(rate), "seed": seed})
    elif "scores" in record:
        outside = record.get("outside") or [math.nan] * len(record["scores"])
        for seed, (score, values, share) in enumerate(zip(record["scores"], record["curves"], outside, strict=True), 1):
            ends = np.linspace(0, steps, len(values) + 1)[1:].tolist()  # of the parts of training
            found = {"curve": {"step": ends, "score": values}, "outside": share}
            yield Finished(-score, {"score": score}, found, config | {"seed": seed})
    else:
        yield Finished(job.value, job.metrics, record, config)


def load_run(folder: Path, provenance: dict[str, str]) -> Results:
    """One run of `catnat rl`, by its checkpoint."""
    settings, result = result_in(folder)
    metrics = {"score": result.score, "episodes": float(len(result.episodes))}
    run = Finished(-result.score, metrics, {"curve": curve_of(result)}, {"stage": "final", "seed": settings.seed})
    plan = {"kind": "rl", "games": [settings.game], "heads": [settings.head], "steps": result.steps}
    return Results(plan | {"trials": 0, "seeds": 1}, {(settings.game, settings.head): [run]}, provenance)


def best_of(results: Results, game: str, head: str) -> list[Finished]:
    """The final runs of the search's best configuration, one a seed; without a search, of the defaults."""
    return [run for run in results.stage((game, head), "final") if not run.config.get("rank")]


def scores_of(results: Results, game: str, head: str) -> tuple[float, ...]:
    return tuple(run.metrics["score"] for run in best_of(results, game, head))


# -- the pages -------------------------------------------------------------------------------------------------------


def write_report(results: Results, folder: Path) -> tuple[Path, tuple[Table, ...]]:
    settings, table = results.settings, table_of(results)
    title = "PPO" if settings["kind"] == "rl" else "PPO on MinAtar"
    stages = {run.config["stage"] for runs in results.trials.values() for run in runs}
    searched = ", those of the search among them" if stages - {"final"} else ""
    report = Report(
        title=f"{title}{' beside the paper' if table.has_paper else ''}",
        summary=(
            f"Policies of {', '.join(settings['heads'])} on {', '.join(settings['games'])}, {settings['seeds']} seeds "
            f"of {settings['steps']:,} steps each. {results.finished()} runs are finished{searched}."
        ),
        provenance=results.provenance,
        tables=(table,),
        remarks=tuple(remarks_of(results, table)),
        figures=tuple(figures_of(results)),
    )
    return write_pages(report, folder, {"values.csv": values_of(results), "curves.csv": curves_of(results)})


def write_run_report(results: Results, folder: Path) -> tuple[Path, tuple[Table, ...]]:
    ((game, head),) = results.trials
    table, figures, words = table_of(results), tuple(figures_of(results)), words_of_run(results)[0]
    page = Report(f"PPO on {game} by {head}", words, results.provenance, (table,), figures=figures)
    return write_pages(page, folder, {"curves.csv": curves_of(results)})


def words_of_run(results: Results) -> tuple[str, str]:
    """The score of a single run, and its curve."""
    ((run,),) = results.trials.values()
    points = list(zip(run.record["curve"]["step"], run.record["curve"]["score"], strict=True))
    shown = ", ".join(f"{value:.1f} ({step:,.0f})" for step, value in points[:: max(1, len(points) // 10)])
    count, steps = int(run.metrics["episodes"]), results.settings["steps"]
    words = f"Score {run.metrics['score']:.1f}, of the last 100 of {count:,} episodes in {steps:,} steps."
    return words, f"Over training (steps): {shown or 'no episode has ended'}"


def table_of(results: Results) -> Table:
    """Final scores, a sweep's beside the paper's; it has none of MinAtar."""
    settings, steps = results.settings, f"{results.settings['steps']:,} steps"
    is_sweep = settings["kind"] == "rl"
    paper = {(row["game"], row["head"]): printed(row) for row in (paper_rows("rl.csv") if is_sweep else [])}
    title = f"MinAtar, {steps}, {settings['seeds']} seeds: score"
    if is_sweep:
        title = f"PPO, {steps}: mean score of the last 100 episodes"
    return Table(
        title=f"{title}; higher is better",
        measure="score",
        group_name="game",
        groups=tuple(settings["games"]),
        lines=tuple(settings["heads"]),
        columns=(Column("score", "score", 1 if is_sweep else 2, False),),
        cells={(*cell, "score"): Cell(scores_of(results, *cell), *paper.get(cell, ())) for cell in results.trials},
        paper_count=PAPER_SEEDS,
        compares_values=is_sweep and settings["steps"] == PAPER_STEPS and settings["trials"] >= PAPER_TRIALS,
    )


def values_of(results: Results) -> Iterator[dict[str, Any]]:
    """One record a run."""
    is_sweep = results.settings["kind"] == "rl"
    tried = ("stage", "rank", "seed", *SPACE) if is_sweep else ("stage", "rate", "seed")
    for row in rows(results, _named, ("score", "episodes") if is_sweep else ("score",), tried):
        yield row | ({"episodes": int(row["episodes"])} if is_sweep else {})


def curves_of(results: Results) -> Iterator[dict[str, Any]]:
    """One record a point of a final run's curve: the mean score of the episodes that ended in the part before it."""
    tried = ("rank", "seed") if results.settings["kind"] == "rl" else ("seed",)
    return points(results, _named, tried, {"score": "score"})


def _named(place: Place) -> dict[str, Any]:
    return {"game": place[0], "head": place[1]}


def remarks_of(results: Results, table: Table) -> Iterator[str]:
    """Interquartile means, differences by ranks, what the search chose, and what the numbers can bear."""
    settings = results.settings
    yield from _interquartile(results)
    yield from _by_ranks(results)
    for (game, head), runs in results.trials.items():
        shares = [share for run in runs if math.isfinite(share := run.record.get("outside", math.nan))]
        if is_natural(head) and shares:
            told = f"{100 * np.mean(shares):.0f}% on average, {100 * min(shares):.0f} to {100 * max(shares):.0f}%"
            yield f"{game} {head}, nodes outside the natural range in the last tenth of training: {told}."
    yield from _chosen(results)
    if settings["seeds"] < FEW:
        yield f"With {settings['seeds']} seeds a test can tell next to nothing apart; bold says little."
    if settings.get("trials") == 0:
        yield "No search was made: all heads have the default settings."
    if rates := settings.get("rates"):
        yield "Of the settings only the rate was tuned." if len(rates) > 1 else f"All heads have the rate {rates[0]:g}."
    yield SCORES[settings["kind"]]
    if table.has_paper:
        yield "The paper's final returns are taken as means over 10 seeds. What a final return is, it does not say."
        if settings["steps"] < PAPER_STEPS:
            yield "Rates fall to 0 over a run: this is not the beginning of a longer training, but a short one."
        if settings["trials"]:
            yield (
                "The paper trains the ten best configurations of its search over ten seeds and does not say whose mean "
                "it prints. The table has our search's best one."
            )


def _finite(results: Results, game: str, head: str) -> list[float]:
    """The scores of the seeds that have one; the table tells how many have none."""
    return list(filter(math.isfinite, scores_of(results, game, head)))


def _interquartile(results: Results) -> Iterator[str]:
    told = []
    for game, head in results.trials:
        scores = _finite(results, game, head)
        if len(scores) > 1:
            low, high = bootstrap(scores)
            told.append(f"{game} {head} {interquartile_mean(scores):.2f} [{low:.2f}, {high:.2f}]")
    if told:
        yield f"The interquartile means over seeds, with 95% bootstrap intervals: {'; '.join(told)}."


def _by_ranks(results: Results) -> Iterator[str]:
    """From softmax, which scores lie above or below; the tests are corrected for their number."""
    pairs = {
        (game, head): (_finite(results, game, head), _finite(results, game, "softmax"))
        for game, head in results.trials
        if head != "softmax" and "softmax" in results.settings["heads"]
    }
    pairs = {cell: pair for cell, pair in pairs.items() if min(map(len, pair)) > 1}
    corrected = holm([mannwhitneyu(*pair).pvalue for pair in pairs.values()])
    for ((game, head), (ours, theirs)), p in zip(pairs.items(), corrected, strict=True):
        middle = interquartile_mean(ours) - interquartile_mean(theirs)
        low, high = bootstrap(ours, less=theirs)
        yield (
            f"{game}, {head} minus softmax: of the interquartile means {middle:+.2f} [{low:+.2f}, {high:+.2f}]; by "
            f"ranks, after Mann and Whitney, p = {p:.2g}, corrected after Holm; {_improvement([(ours, theirs)])}."
        )
    for head in results.settings["heads"]:
        every = {game: pair for (game, other), pair in pairs.items() if other == head}
        if len(every) > 1:
            yield f"{head} over {', '.join(every)}, each game counting alike: {_improvement(list(every.values()))}."


def _improvement(pairs: list[tuple[list[float], list[float]]]) -> str:
    point, low, high = improvement(pairs)
    told = f"a run scores higher than one of softmax with probability {point:.2f}"
    return told if min(len(some) for pair in pairs for some in pair) < ENOUGH else f"{told} [{low:.2f}, {high:.2f}]"


def _chosen(results: Results) -> Iterator[str]:
    """The configuration of the search with the best mean score."""
    for (game, head), runs in results.trials.items():
        tried: dict[tuple[tuple[str, float], ...], list[float]] = {}
        for run in runs:
            if run.config["stage"] != "final":
                chosen = tuple((name, run.config[name]) for name in SPACE if name in run.config)
                tried.setdefault(chosen, []).append(run.metrics["score"])
        means = {chosen: mean for chosen, scores in tried.items() if math.isfinite(mean := float(np.mean(scores)))}
        if means:
            values = ", ".join(f"{name} {value:.3g}" for name, value in max(means, key=means.__getitem__))
            yield f"{game} {head}, the best of {len(tried)} trials: {values}."


def figures_of(results: Results) -> Iterator[PageFigure]:
    """Learning curves of the final runs, one panel a game and one curve a head."""
    settings = results.settings
    cells = {game: (game,) for game in settings["games"]}
    best = Results(settings, {place: best_of(results, *place) for place in results.trials}, {})
    caption = (
        "Mean score of the episodes that end within each part of training: the interquartile mean over seeds (of "
        "three or fewer the mean), and its 95% bootstrap interval (of two both runs)."
    )
    finals = by_panel(best, cells, settings["heads"], "final")
    curve = partial(_curve, steps=settings["steps"])
    yield from learning_curves(finals, "score", caption, focus=False, curve=curve)


def _curve(runs: Iterable[Finished], measure: str, steps: int) -> Curve | None:
    grid, known = (
        np.linspace(steps / GRID, steps, GRID),
        [curve for run in runs if (curve := run.record["curve"])["step"]],
    )
    if not known:
        return None
    found = [np.interp(grid, each["step"], np.nan_to_num(np.array(each[measure], float))) for each in known]
    values = np.stack(found, -1)  # [GRID, seeds]
    ends = (values.min(-1), values.max(-1)) if len(known) < 3 else bootstrap(values, draws=300)
    return Curve(grid, interquartile_mean(values), *ends)
