"""The figures of graph structure learning. Each comes as a function that draws it and one that gives its SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from numpy.typing import ArrayLike, NDArray

from catnat_lab.report.curves import CurvePanel, draw_curve, focus_on, names_of
from catnat_lab.report.drawing import blank, hint, in_look, in_panels, is_left, key, label_left, legend
from catnat_lab.report.svg import INK, serialize, style
from catnat_lab.report.table import Column, Table
from catnat_lab.stats import Excess, Summary

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Search:
    """The learning rates tried and what came of them, first on a coarse grid, then around the best; the rate chosen."""

    coarse: Sequence[tuple[float, float]]
    refined: Sequence[tuple[float, float]] = ()
    chosen: float | None = None


@dataclass(frozen=True)
class SearchPanel:
    """The searches at one θ*, by parameterization."""

    group: str
    searches: Mapping[str, Search]


@dataclass(frozen=True)
class TradePanel:
    """Error of θ and energy score of every rate at one θ*, from the smallest rate to the largest, by parameterization.

    The chosen one has a place in its list.
    """

    group: str
    points: Mapping[str, Sequence[tuple[float, float]]]
    chosen: Mapping[str, int]


@dataclass(frozen=True)
class ExcessPanel:
    """Energy score above the optimal model's at one θ*, by parameterization: ours and, where known, the paper's."""

    group: str
    ours: Mapping[str, Excess]
    paper: Mapping[str, Excess] = field(default_factory=dict)

    @classmethod
    def of_table(cls, table: Table, group: str, column: Column) -> ExcessPanel:
        """One column of a table, less its reference line. What is missing, or diverged, is left out."""
        cells = {line: table.cell(group, line, column) for line in table.lines}
        optimal = table.cell(group, table.reference_line or "", column)
        pairs = {line: (cell.summary, optimal.summary) for line, cell in cells.items()}
        printed = {line: (table.paper_summary(cell), table.paper_summary(optimal)) for line, cell in cells.items()}
        return cls(group, _excesses(pairs), _excesses(printed))


def _excesses(pairs: Mapping[str, tuple[Summary | None, Summary | None]]) -> dict[str, Excess]:
    """Differences of means with their standard errors, as `catnat_lab.stats.excess`, from summaries."""
    found = {}
    for line, (a, b) in pairs.items():
        if a is not None and b is not None:
            error = math.hypot(a.std / math.sqrt(a.count), b.std / math.sqrt(b.count))
            found[line] = Excess(a.mean - b.mean, error)
    return found


@in_look
def draw_learning_curves(panels: Sequence[CurvePanel]) -> Figure:
    """Energy score on validation against training steps, one panel a θ*."""
    figure, every = in_panels(len(panels))
    for axes, panel in zip(every, panels, strict=True):
        for name, curve in panel.curves.items():
            draw_curve(axes, name, curve)
        if panel.optimal is not None:
            axes.axhline(panel.optimal, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label="optimal")
        focus_on(axes, panel)
        axes.set(title=f"θ* = {panel.group}", xlabel="training step")
        axes.xaxis.set_major_locator(MaxNLocator(4))
    label_left(every, "energy score (validation)")
    entries = [key(name) for name in names_of(panel.curves for panel in panels)]
    legend(figure, [*entries, Line2D([], [], color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label="optimal")])
    return figure


@in_look
def draw_graphs(true: ArrayLike, learned: Mapping[str, ArrayLike]) -> Figure:
    """Edge probabilities, true and learned on one scale, and below each learned graph its absolute error."""
    truth = np.asarray(true, dtype=float)
    graphs = {name: np.asarray(graph, dtype=float) for name, graph in learned.items()}
    errors = {name: np.abs(graph - truth) for name, graph in graphs.items()}
    figure = blank(4.2)
    grid = figure.subplots(2, 1 + len(graphs), squeeze=False)
    top = _image(grid[0, 0], truth, "true", "YlGnBu", _top([truth, *graphs.values()]))
    for axes, (name, graph) in zip(grid[0, 1:], graphs.items(), strict=True):
        _image(axes, graph, name, "YlGnBu", top.get_clim()[1])
    grid[1, 0].remove()
    bottom: ScalarMappable | None = None
    for axes, error in zip(grid[1, 1:], errors.values(), strict=True):
        bottom = _image(axes, error, "", "YlOrRd", _top(errors.values()))
    _bar(figure, top, list(grid[0]), "edge probability")
    if bottom is not None:
        _bar(figure, bottom, list(grid[1, 1:]), "|learned − true|")
    return figure


def _top(matrices: Iterable[Array]) -> float:
    """The end of a scale that begins at 0 and holds every finite entry."""
    entries = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    return float(entries.max()) if entries.size and entries.max() > 0 else 1.0


def _image(axes: Axes, matrix: Array, title: str, colours: str, top: float) -> ScalarMappable:
    axes.set(title=title, xticks=[], yticks=[])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(True)
    return axes.imshow(matrix, cmap=colours, vmin=0, vmax=top, interpolation="none")


def _bar(figure: Figure, image: ScalarMappable, axes: list[Axes], label: str) -> None:
    bar = figure.colorbar(image, ax=axes, shrink=0.85, aspect=14, pad=0.01)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_locator(MaxNLocator(4))
    bar.set_label(label)


@in_look
def draw_searches(panels: Sequence[SearchPanel]) -> Figure:
    """Mean absolute error of θ against the learning rate on log scales, one panel a θ*; the chosen rate is ringed."""
    figure, every = in_panels(len(panels))
    for axes, panel in zip(every, panels, strict=True):
        axes.set(title=f"θ* = {panel.group}", xlabel="learning rate", xscale="log", yscale="log")
        for name, search in panel.searches.items():
            _draw_search(axes, name, search)
        for axis in (axes.xaxis, axes.yaxis):
            _label_log(axis)
    label_left(every, "θ-MAE")
    hints = [
        hint(marker="o", markerfacecolor="none", label="coarse"),
        hint(marker="o", label="refined"),
        hint(marker="o", markerfacecolor="none", markersize=9, label="chosen"),
        hint(marker="x", label="diverged"),
    ]
    legend(figure, [*(key(name) for name in names_of(panel.searches for panel in panels)), *hints])
    return figure


def _draw_search(axes: Axes, name: str, search: Search) -> None:
    look = style(name)
    points = sorted([*search.coarse, *search.refined])
    kept = [(rate, value) for rate, value in points if np.isfinite(value)]
    axes.plot(*_columns(kept), color=look.colour, linewidth=1, label=name)
    for some, face in ((search.coarse, "none"), (search.refined, look.colour)):
        finite = [(rate, value) for rate, value in some if np.isfinite(value)]
        axes.plot(*_columns(finite), look.marker, color=look.colour, markerfacecolor=face, linestyle="none")
    chosen = [
        (rate, value) for rate, value in kept if search.chosen is not None and np.isclose(rate, search.chosen, atol=0)
    ]
    axes.plot(*_columns(chosen), "o", color=look.colour, markerfacecolor="none", markersize=10, linestyle="none")
    lost = [rate for rate, value in points if not np.isfinite(value)]
    edge = axes.get_xaxis_transform()  # a diverged run has no value: it is marked at the upper edge
    axes.plot(lost, [0.97] * len(lost), "x", color=look.colour, transform=edge, linestyle="none")


def _label_log(axis: Axis) -> None:
    """Plain numbers on a log axis, as many as its range has room for: a narrow range may hold no power of ten."""
    low, high = axis.get_view_interval()
    if math.log10(high / low) < 1.7:  # decades
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [rate for rate, _ in points], [value for _, value in points]


@in_look
def draw_trades(panels: Sequence[TradePanel]) -> Figure:
    """Energy score against the error of θ, a line through all rates a parameterization; the chosen rate is ringed."""
    figure, every = in_panels(len(panels))
    for axes, panel in zip(every, panels, strict=True):
        axes.set(title=f"θ* = {panel.group}", xlabel="θ-MAE", xscale="log")
        for name, points in panel.points.items():
            look = style(name)
            kept = [point for point in points if np.isfinite(point).all()]
            axes.plot(*_columns(kept), look.marker + "-", color=look.colour, linewidth=1, markersize=3, label=name)
            if name in panel.chosen:
                ring = _columns([points[panel.chosen[name]]])
                axes.plot(*ring, "o", color=look.colour, markerfacecolor="none", markersize=10, linestyle="none")
        _label_log(axes.xaxis)
    label_left(every, "energy score")
    for axes, panel in zip(every, panels, strict=True):
        scores = sorted(score for points in panel.points.values() for _, score in points if np.isfinite(score))
        low, middle = scores[0], scores[len(scores) // 2]
        axes.set_ylim(low - 0.1 * (middle - low), middle + 0.5 * (middle - low))  # what is far above is cut off
    chosen = hint(marker="o", markerfacecolor="none", markersize=9, label="chosen")
    legend(figure, [*(key(name) for name in names_of(panel.points for panel in panels)), chosen])
    return figure


@in_look
def draw_excesses(panels: Sequence[ExcessPanel]) -> Figure:
    """Energy score above the optimal model's, a dot and an error bar a parameterization, one panel a θ*."""
    figure, every = in_panels(len(panels), height=1.9)
    names = names_of(panel.ours for panel in panels)
    for axes, panel in zip(every, panels, strict=True):
        for place, name in enumerate(names):
            _draw_excess(axes, place - 0.13, name, panel.ours.get(name), filled=True)
            _draw_excess(axes, place + 0.17, name, panel.paper.get(name), filled=False)
        axes.axvline(0, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set(title=f"θ* = {panel.group}", xlabel="energy score above optimal", yticks=range(len(names)))
        axes.set(ylim=(len(names) - 0.5, -0.5), yticklabels=names if is_left(axes) else [])
        axes.xaxis.set_major_locator(MaxNLocator(5))
    paper = [hint(marker="o", markerfacecolor="none", label="the paper")] if any(p.paper for p in panels) else []
    legend(figure, [hint(marker="o", label="ours"), *paper])
    return figure


def _draw_excess(axes: Axes, place: float, name: str, excess: Excess | None, filled: bool) -> None:
    if excess is None or not np.isfinite(excess.mean):
        return
    look = style(name)
    face = look.colour if filled else "none"
    shown: dict[str, Any] = {"fmt": look.marker, "color": look.colour, "markerfacecolor": face}
    axes.errorbar(excess.mean, place, xerr=excess.error, elinewidth=1, alpha=1 if filled else 0.75, **shown)


def learning_curves(panels: Sequence[CurvePanel]) -> str:
    """The SVG of `draw_learning_curves`."""
    label = "Line charts of the energy score on validation against training steps, one panel a θ*"
    return serialize(draw_learning_curves(panels), f"{label}: {_told(p.group for p in panels)}.")


def graphs(group: str, true: ArrayLike, learned: Mapping[str, ArrayLike]) -> str:
    """The SVG of `draw_graphs`, for the θ* that ``group`` names."""
    label = f"Heat maps of edge probabilities at θ* = {group}: the true graph beside those learned by {_told(learned)}"
    return serialize(draw_graphs(true, learned), f"{label}; below, their absolute errors.")


def searches(panels: Sequence[SearchPanel]) -> str:
    """The SVG of `draw_searches`."""
    label = "Line charts of the mean absolute error of θ against the learning rate, one panel a θ*"
    return serialize(draw_searches(panels), f"{label}: {_told(p.group for p in panels)}.")


def trades(panels: Sequence[TradePanel]) -> str:
    """The SVG of `draw_trades`."""
    label = "Line charts of the energy score on validation against the mean absolute error of θ, one panel a θ*"
    return serialize(draw_trades(panels), f"{label}: {_told(p.group for p in panels)}.")


def excesses(panels: Sequence[ExcessPanel]) -> str:
    """The SVG of `draw_excesses`."""
    label = "Dot charts of the energy score above the optimal model's by parameterization, one panel a θ*"
    return serialize(draw_excesses(panels), f"{label}: {_told(p.group for p in panels)}.")


def _told(names: Iterable[str]) -> str:
    return ", ".join(names)
