"""The report of graph structure learning, from what the study holds and nothing else."""

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from catnat_lab import search
from catnat_lab.experiment import Config, Finished, Results
from catnat_lab.files import read
from catnat_lab.gsl.train import NOTE, OPTIMAL, PAPER, study_name, true_edges
from catnat_lab.report import figures
from catnat_lab.report.page import PageFigure, Report, paper_rows, printed, write_pages
from catnat_lab.report.study import by_panel, learning_curves, rows
from catnat_lab.report.table import Cell, Column, Key, Table
from catnat_lab.stats import best_in_pairs
from catnat_lab.studies import Study

COLUMNS = (
    Column("es_paper", "ES (twice the formula)", 3),
    Column("pp_mae", "PP-MAE", 4),
    Column("pp_mse", "PP-MSE", 3),
    Column("theta_mae", "MAE on θ", 4),
)
METRICS = ("es", "es_paper", "pp_mae", "pp_mse", "theta_mae", "validation_es")
# How we did what the paper leaves open; shown where the study is of the paper's size.
WEIGHTS = (
    "The paper does not publish the true weights. We scale ours so that the optimal PP-MSE is the paper's (and, at "
    "θ* = 0.75, the optimal PP-MAE); its predictions are means of 32 samples, which adds 1/32 to the squared error. "
    "The paper's tabulated energy score is twice its formula."
)
SEEDS = (
    "Deviations and tests are over seeds on one dataset. They leave out the draw of its 1000 test pairs, which moves "
    "all lines together, and the choice of the rate."
)
NUMBERS_ALONE = (
    "This page is made of the study's numbers alone: learning curves, learned graphs and lost edges are not among them."
)
SPARSE = (
    "Sparsemax has probabilities of exactly 0, where it never learns again, so we project every edge back to 0.001 "
    "after each step. We do not know what the paper did."
)


def load(study: Study) -> Results:
    settings = study.note(NOTE)
    cells = [(theta, head) for theta in settings["thetas"] for head in (*settings["heads"], OPTIMAL)]
    trials = {(f"{theta:g}", head): study.finished(study_name(theta, head)) for theta, head in cells}
    return Results(settings, trials, study.note("gsl provenance") or {})


def load_published(folder: Path, settings: dict[str, Any]) -> Results:
    """What values.csv holds of a study whose database is not kept: no curves, and no learned graphs."""
    trials: dict[tuple[str, str], list[Finished]] = {}
    for row in csv.DictReader(read(folder / "values.csv").splitlines()):
        metrics = {name: float(row[name]) for name in METRICS if row[name]}
        config: Config = {"stage": row["stage"], "seed": int(row["seed"])}
        config |= {"rate": float(row["rate"])} if row["rate"] else {}  # the true graph's has none
        found = Finished(metrics.get("validation_es", math.nan), metrics, {}, config)
        trials.setdefault((row["theta_star"], row["head"]), []).append(found)
    held: dict[str, Any] = {
        "thetas": sorted({float(theta) for theta, _ in trials}),
        "heads": list(dict.fromkeys(head for _, head in trials if head != OPTIMAL)),
        "search_seeds": len(
            {t.config["seed"] for some in trials.values() for t in some if t.config["stage"] == "coarse"}
        ),
    }
    return Results(settings | held, dict(trials), {})


def is_papers(settings: dict[str, Any]) -> bool:
    """Whether this is the paper's problem, trained as long: else its numbers have no place beside ours."""
    paper = PAPER.as_dict()
    return all(settings[key] == paper[key] for key in ("communities", "pairs", "epochs", "batch", "graphs"))


def paper_of() -> dict[Key, tuple[float, float, bool]]:
    return {
        (f"{float(row['theta_star']):g}", row["head"], c.key): printed(row, f"{c.key.removesuffix('_paper')}_")
        for row in paper_rows("gsl.csv")
        for c in COLUMNS
    }


def table_of(results: Results) -> Table:
    paper, cells = paper_of() if is_papers(results.settings) else {}, {}
    for theta, head in results.trials:
        final = results.stage((theta, head), "final", OPTIMAL)
        for column in COLUMNS:
            key = (theta, head, column.key)
            cells[key] = Cell(tuple(trial.metrics[column.key] for trial in final), *paper.get(key, ()))
    return Table(
        title=f"Graph structure learning{'' if paper else ', smaller than in the paper'}: lower is better. "
        "ES: energy score, what is trained; PP-MAE, PP-MSE: errors of predictions; MAE on θ: error of the edges' "
        "probabilities, which are θ*; catnat is the library's default, with a tail of 0.1, catnat-paper has none",
        measure=COLUMNS[-1].heading,
        group_name="θ*",
        groups=tuple(_thetas(results)),
        lines=tuple(results.settings["heads"]),
        columns=COLUMNS,
        cells=cells,
        headline=(COLUMNS[-1].key,),
        reference_line=OPTIMAL,
    )


def _thetas(results: Results) -> list[str]:
    return [f"{theta:g}" for theta in results.settings["thetas"]]


def write_report(results: Results, folder: Path) -> tuple[Path, tuple[Table, ...]]:
    table = table_of(results)
    beside = ": catnat beside the paper" if table.has_paper else " by catnat and others"
    report = Report(
        title=f"Graph structure learning{beside}",
        summary=summary_of(results),
        provenance=results.provenance,
        tables=(table,),
        remarks=tuple(remarks_of(results)),
        figures=tuple(figures_of(results)),
    )
    values = rows(results, lambda place: {"theta_star": place[0], "head": place[1]}, METRICS)
    return write_pages(report, folder, {"values.csv": values})


def summary_of(results: Results) -> str:
    settings, count = results.settings, results.settings.get("search_seeds", 1)
    refined = ", and a refined one around the best" if settings["refined"] else ""
    grids = f", on a coarse grid that is widened by up to {settings['widen']} while the best is at its end{refined}"
    return (
        f"A graph (communities: {settings['communities']}) is recovered from {settings['pairs']} pairs (x, y) by the "
        f"energy score, for θ* = {', '.join(_thetas(results))} and the parameterizations "
        f"{', '.join(settings['heads'])}. Rates are chosen by the mean validation score of {count} "
        f"seed{'s' if count > 1 else ''}{grids}; then {settings['seeds']} other seeds are trained at the chosen rate. "
        f"{results.finished()} trials are finished."
    )


def remarks_of(results: Results) -> list[str]:
    """Computed from the trials and, for a study of the paper's size, what the paper leaves open."""
    found = [_in_pairs(results), _least_errors(results), _lost_edges(results)]
    if not any(trial.record for trials in results.trials.values() for trial in trials):
        found.append(NUMBERS_ALONE)
    if is_papers(results.settings):
        found += [WEIGHTS, SEEDS, SPARSE if "sparsemax" in results.settings["heads"] else ""]
    return [text for text in found if text]


def _in_pairs(results: Results) -> str:
    """Who is the best when runs of one seed are compared with each other."""
    told: dict[str, list[str]] = {}
    for column in COLUMNS:
        for theta in _thetas(results):
            values = {head: results.final((theta, head), column.key) for head in results.settings["heads"]}
            lengths, every = set(map(len, values.values())), [x for numbers in values.values() for x in numbers]
            whole = len(values) > 1 and len(lengths) == 1 and min(lengths) > 1 and all(map(math.isfinite, every))
            if whole and (winner := best_in_pairs(values, column.lower_is_better)) is not None:
                told.setdefault(f"{column.heading}: {winner} at θ* =", []).append(theta)
    who = "; ".join(f"{text} {', '.join(thetas)}" for text, thetas in told.items())
    found = (
        "Runs of one seed share their start, their batches and their random numbers, whatever the parameterization. "
        "Compared seed by seed (paired t-tests, p < 0.05 by Holm's correction over the rivals), these are "
        f"significantly better than every other: {who}."
    )
    return found if told else ""


def _least_errors(results: Results) -> str:
    """The error of θ if it, and not the validation score, had chosen the rate."""
    told = []
    for head in results.settings["heads"]:
        tried = [results.stage((theta, head), *search.SEARCHING) for theta in _thetas(results)]
        errors = [[e for e in search.by_rate(some, "theta_mae").values() if math.isfinite(e)] for some in tried]
        if all(errors):
            told.append(f"{head} {', '.join(f'{min(some):.4f}' for some in errors)}")
    means = "The least error of θ over all rates tried, means over the search seeds,"
    return f"{means} at θ* = {', '.join(_thetas(results))}: {'; '.join(told)}." if told else ""


def _lost_edges(results: Results) -> str:
    """In how many final runs a true edge has all but vanished."""
    true, counts = true_edges(results.settings["communities"]).flatten().numpy(), []
    for head in results.settings["heads"]:
        final = [(float(theta), t) for theta in _thetas(results) for t in results.stage((theta, head), "final")]
        learned = [(theta, np.array(trial.record["theta"])) for theta, trial in final if trial.record]
        lost = [theta for theta, found in learned if (found[true] < theta / 4).any()]
        where = ", ".join(f"{lost.count(theta)} at {theta:g}" for theta in dict.fromkeys(lost))
        counts += [f"{head} {len(lost)} of {len(learned)}{f' ({where})' if where else ''}"] if learned else []
    return f"Final runs that lost a true edge (θ < θ*/4), by θ*: {'; '.join(counts)}." if counts else ""


def figures_of(results: Results) -> Iterator[PageFigure]:
    """Learning curves, energy score against error over all rates, and learned graphs."""
    heads, cells = results.settings["heads"], {f"θ* = {theta}": (theta,) for theta in _thetas(results)}
    optimal = {title: results.stage((*cell, OPTIMAL), OPTIMAL) for title, cell in cells.items()}
    best = {
        title: float(np.mean([trial.metrics.get("validation_es", math.nan) for trial in found]))
        for title, found in optimal.items()
        if found
    }
    finals = by_panel(results, cells, heads, "final")
    caption = (
        "Energy score on validation data (the formula, not doubled): mean over the final seeds, one deviation around "
        "it. The scale fits the second half of training; what is higher at the start is cut off."
    )
    yield from learning_curves(finals, "validation_es", caption, "energy score (validation)", best=best)
    if searched := by_panel(results, cells, heads, *search.SEARCHING):
        caption = (
            "Energy score on validation data against the error of θ: a point for every rate tried, joined from the "
            "smallest rate to the largest. The score chose the ringed one. What is far above is cut off."
        )
        yield PageFigure("Energy score and error of θ, over all rates", caption, draw_trades(searched))
    shown = min(_thetas(results), key=lambda theta: abs(float(theta) - 0.5))
    true: NDArray[Any] = true_edges(results.settings["communities"]).numpy() * float(shown)
    graphs = {
        head: np.reshape(final[0].record["theta"], true.shape)
        for head, final in finals.get(f"θ* = {shown}", {}).items()
        if final[0].record
    }
    if graphs:
        caption = f"Edge probabilities at θ* = {shown}: the true ones, and those that the first final seed learned."
        drawn = figures.draw_pictures({"true": true} | graphs, "YlGnBu", scale="edge probability")
        yield PageFigure("The true graph and the learned ones", caption, drawn)


@rc_context(fname=figures.LOOK)
def draw_trades(searched: Mapping[str, Mapping[str, list[Finished]]]) -> Figure:
    """Energy score against the error of θ: a panel for every θ*, a line through all rates that a head was tried at.

    The chosen rate is ringed.
    """
    figure, every = figures.in_panels(len(searched), label="energy score")
    ring: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "markersize": 10, "linestyle": "none"}
    for axes, (title, tried) in zip(every, searched.items(), strict=True):
        axes.set(title=title, xlabel="θ-MAE", xscale="log")
        found: list[float] = []
        for name, trials in tried.items():
            look, best = figures.styles([name])[name], search.best_rate(trials)
            errors, scores = (search.by_rate(trials, measure) for measure in ("theta_mae", "validation_es"))
            points = np.array([[*errors.values()], [*scores.values()]])
            kept = points[:, np.isfinite(points).all(0)]
            axes.plot(*kept, linewidth=1, markersize=3, label=name, **look)
            axes.plot(errors[best], scores[best], **look | ring)
            found += filter(math.isfinite, scores.values())
        low, high = axes.get_xlim()
        if math.log10(high / low) < 1.7:  # a narrow range may hold no power of ten
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        found.sort()
        if found and (reach := found[len(found) // 2] - found[0]) > 0:
            axes.set_ylim(found[0] - 0.1 * reach, found[0] + 1.5 * reach)  # what is far above is cut off
    names = [name for tried in searched.values() for name in tried]
    figures.legend(figure, names, Line2D([], [], color=figures.FAINT, label="chosen", **ring))
    return figure
