"""What the reports of all studies are made of: finished runs by cell, head and stage, as curves, searches and CSV.

An experiment says which cells make a panel, what their words mean, and which measures count.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from catnat_lab.experiment import Finished, Results
from catnat_lab.report.figures import Curve, CurvePanel, Panels, curve_of, draw_curves, draw_searches
from catnat_lab.report.page import PageFigure

Place = tuple[str, ...]  # the words that name a cell; the last one is the head


def by_panel(
    results: Results, cells: Mapping[str, Place], heads: Iterable[str], *stages: str
) -> dict[str, dict[str, list[Finished]]]:
    """The runs of some stages, by the titles of cells that are named without their heads."""
    named = list(heads)
    found = {
        title: {head: runs for head in named if (runs := results.stage((*cell, head), *stages))}
        for title, cell in cells.items()
    }
    return {title: runs for title, runs in found.items() if runs}


def learning_curves(
    panels: Panels,
    measure: str,
    caption: str,
    label: str = "",
    title: str = "Learning curves",
    *,
    best: Mapping[str, float] | None = None,
    focus: bool = True,
    curve: Callable[[Iterable[Finished], str], Curve | None] = curve_of,
) -> Iterator[PageFigure]:
    """A panel per cell, a curve per head, and where it is known the best that can be reached; nothing of nothing."""
    drawn = []
    for name, runs in panels.items():
        curves = {head: found for head, some in runs.items() if (found := curve(some, measure))}
        drawn += [CurvePanel(name, curves, (best or {}).get(name))] if curves else []
    if drawn:
        yield PageFigure(title, caption, draw_curves(drawn, label or measure, focus=focus))


def searches(panels: Panels, finals: Panels, measure: str, caption: str) -> Iterator[PageFigure]:
    """A panel per cell: every run of its search by its rate, and the rates that the final runs have."""
    if panels:
        yield PageFigure("The searches", caption, draw_searches(panels, finals, measure))


def is_at_an_end(rate: float, tried: Iterable[float]) -> bool:
    """Whether a better rate may lie beyond those that were tried."""
    rates = set(tried)
    return len(rates) > 1 and rate in (min(rates), max(rates))


def rows(
    results: Results, words: Callable[[Place], dict[str, Any]], metrics: Sequence[str],
    tried: Sequence[str] = ("stage", "rate", "seed"),
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Every run, as in values.csv: the words of its cell, what was tried, and what was measured."""
    for place, runs in results.trials.items():
        for run in runs:
            settings = {name: run.config.get(name, "") for name in tried}
            yield words(place) | settings | {name: run.metrics.get(name, "") for name in metrics}


def points(
    results: Results, words: Callable[[Place], dict[str, Any]], tried: Sequence[str], measures: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Every point of the final runs' curves, as in curves.csv; measures are given by the names of their columns."""
    for place in results.trials:
        for run in results.stage(place, "final"):
            curve = run.record.get("curve") or {"step": []}
            who = words(place) | {name: run.config.get(name, 0) for name in tried}
            for i, step in enumerate(curve["step"]):
                yield who | {"step": round(step)} | {column: curve[key][i] for column, key in measures.items()}
