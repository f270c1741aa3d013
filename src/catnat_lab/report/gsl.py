"""The report of graph structure learning, from what the study holds and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from catnat_lab import rates
from catnat_lab.experiment import Finished
from catnat_lab.gsl.data import true_edges
from catnat_lab.gsl.search import OPTIMAL
from catnat_lab.report import Cell, PageFigure, Report, Table, gsl_figures, write_pages
from catnat_lab.report.curves import Curve, CurvePanel
from catnat_lab.report.gsl_remarks import remarks_of
from catnat_lab.report.gsl_results import COLUMNS, PROVENANCE, Results, is_papers, load, paper_table

__all__ = ["PROVENANCE", "Results", "load", "table_of", "write_report"]


def table_of(results: Results) -> Table:
    """Our final seeds beside the paper's."""
    paper = paper_table() if is_papers(results.settings) else {}
    cells = {}
    for theta in results.thetas:
        for head in (*results.heads, OPTIMAL):
            final = results.stage(theta, head, "final", OPTIMAL)
            for column in COLUMNS:
                key = (f"{theta:g}", head, column.key)
                cells[key] = Cell(
                    tuple(trial.metrics[column.key] for trial in final), *paper.get(key, (None, None, False))
                )
    return Table(
        title=f"Graph structure learning{'' if paper else ', smaller than in the paper'}: lower is better",
        group_name="θ*",
        groups=tuple(f"{theta:g}" for theta in results.thetas),
        line_name="parameterization",
        lines=tuple(results.heads),
        columns=COLUMNS,
        cells=cells,
        reference_line=OPTIMAL,
    )


# -- figures -----------------------------------------------------------------------------------------------------


def figures_of(results: Results, table: Table) -> list[PageFigure]:
    """Learning curves, learned graphs, the search for rates, and the excess over the optimal model."""
    made = []
    curves = [panel for theta in results.thetas if (panel := _curves(results, theta)).curves]
    if curves:
        caption = (
            "Energy score on validation data (the formula, not doubled): mean over the final seeds, one deviation "
            "around it. The scale fits the second half of training; what is higher at the start is cut off."
        )
        made.append(PageFigure("Learning curves", caption, gsl_figures.learning_curves(curves)))
    shown = min(results.thetas, key=lambda theta: abs(theta - 0.5))
    graphs = {head: _graph(final[0]) for head in results.heads if (final := results.stage(shown, head, "final"))}
    if graphs:
        true = true_edges(results.settings["communities"]) * shown
        caption = f"Edge probabilities at θ* = {shown:g}, first final seed, and how far they are from the true ones."
        made.append(
            PageFigure("The true graph and the learned ones", caption, gsl_figures.graphs(f"{shown:g}", true, graphs))
        )
    searches = [found for theta in results.thetas if (found := _searches(results, theta)).searches]
    if searches:
        caption = "The rate is chosen by the validation score, not by this error; the chosen one is marked."
        made.append(PageFigure("Error of θ by learning rate", caption, gsl_figures.searches(searches)))
    trades = [trade for theta in results.thetas if (trade := _trades(results, theta)).points]
    if trades:
        caption = (
            "Energy score on validation data against the error of θ: a point for every rate tried, joined from the "
            "smallest rate to the largest. What is far above the others is cut off."
        )
        made.append(PageFigure("Energy score and error of θ, over all rates", caption, gsl_figures.trades(trades)))
    panels = [gsl_figures.ExcessPanel.of_table(table, group, COLUMNS[0]) for group in table.groups]
    if any(panel.ours for panel in panels):
        caption = "Energy score (twice the formula, as the paper tabulates it) above that of the true model."
        made.append(PageFigure("Excess over the optimal model", caption, gsl_figures.excesses(panels)))
    return made


def _curves(results: Results, theta: float) -> CurvePanel:
    curves = {}
    for head in results.heads:
        runs = [trial.record["curve"] for trial in results.stage(theta, head, "final") if "curve" in trial.record]
        if runs:
            curves[head] = Curve.of_runs(runs[0]["step"], [run["validation_es"] for run in runs])
    known = results.stage(theta, OPTIMAL, OPTIMAL)
    best = [trial.metrics["validation_es"] for trial in known if "validation_es" in trial.metrics]
    return CurvePanel(f"{theta:g}", curves, float(np.mean(best)) if best else None)


def _graph(trial: Finished) -> np.ndarray:
    theta = np.array(trial.record["theta"])
    side = int(len(theta) ** 0.5)
    return theta.reshape(side, side)


def _searches(results: Results, theta: float) -> gsl_figures.SearchPanel:
    searches = {}
    for head in results.heads:
        points = {
            stage: list(rates.by_rate(results.stage(theta, head, stage), "theta_mae").items())
            for stage in ("coarse", "refined")
        }
        if points["coarse"]:
            final = results.stage(theta, head, "final")
            chosen = final[0].config["rate"] if final else None
            searches[head] = gsl_figures.Search(points["coarse"], points["refined"], chosen)
    return gsl_figures.SearchPanel(f"{theta:g}", searches)


def _trades(results: Results, theta: float) -> gsl_figures.TradePanel:
    points, chosen = {}, {}
    for head in results.heads:
        tried = results.stage(theta, head, "coarse", "refined", "tpe")
        if tried:
            errors, scores = (rates.by_rate(tried, measure) for measure in ("theta_mae", "validation_es"))
            points[head] = list(zip(errors.values(), scores.values(), strict=True))
            chosen[head] = list(errors).index(rates.best_rate(tried))
    return gsl_figures.TradePanel(f"{theta:g}", points, chosen)


# -- files -------------------------------------------------------------------------------------------------------


def write_report(results: Results, folder: Path) -> Path:
    """Write report.html, report.md and the table's values as CSV; the path of the page."""
    table = table_of(results)
    report = Report(
        title=f"Graph structure learning{': catnat beside the paper' if table.has_paper else ' by catnat and others'}",
        summary=summary_of(results),
        provenance=results.provenance,
        tables=(table,),
        remarks=remarks_of(results),
        figures=tuple(figures_of(results, table)),
    )
    return write_pages(report, folder, {"values.csv": values_csv(results)})


def summary_of(results: Results) -> str:
    """What was run, in a sentence or two."""
    done = sum(len(trials) for trials in results.trials.values())
    settings = results.settings
    return (
        f"A graph of {settings['communities']} communities is recovered from {settings['pairs']} pairs (x, y) by the "
        f"energy score, for θ* = {', '.join(f'{theta:g}' for theta in results.thetas)} and the parameterizations "
        f"{', '.join(results.heads)}. Rates are chosen by {_judges(settings)}{_grids(settings)}; then "
        f"{settings['seeds']} other seeds are trained at the chosen rate. {done} trials are finished."
    )


def _judges(settings: dict[str, Any]) -> str:
    count = settings.get("search_seeds", 1)
    return "the validation score of one seed" if count == 1 else f"the mean validation score of {count} seeds"


def _grids(settings: dict[str, Any]) -> str:
    if settings["search"] != "grid":
        return f", searched by {settings['search']}"
    refined = ", and a refined one around the best" if settings["refined"] else ""
    return f", on a coarse grid that is widened by up to {settings['widen']} while the best is at its end{refined}"


def values_csv(results: Results) -> str:
    """One line a finished trial."""
    metrics = ("es", "es_paper", "pp_mae", "pp_mse", "theta_mae", "validation_es")
    lines = [",".join(("theta_star", "head", "stage", "rate", "seed", *metrics))]
    for (theta, head), trials in results.trials.items():
        for trial in trials:
            config = trial.config
            values = (f"{trial.metrics[key]:.6g}" if key in trial.metrics else "" for key in metrics)
            lines.append(
                ",".join(
                    (f"{theta:g}", head, config["stage"], f"{config.get('rate', '')}", f"{config['seed']}", *values)
                )
            )
    return "\n".join(lines) + "\n"
