"""What every figure shares: the look, panels, curves, pictures, differences from softmax, and the way into a page.

In a page text stays text, ids stay unique, and ink follows the page's colour.
"""

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from catnat_lab.experiment import Finished
from catnat_lab.report.table import Judgement
from catnat_lab.stats import Comparison

INK = "#1a1b1e"  # text and axes; becomes the page's own text colour, so that figures are legible in the dark too
FAINT = "#8a8b8e"  # grid and hints: grey enough for both
MAX_ACROSS = 3  # panels in a row
WIDTH, PANEL_HEIGHT = 9.6, 2.45  # inches
LEGEND_LENGTH = 125  # characters in a row, with the handles
DASHED: Any = {"color": INK, "linewidth": 0.9, "linestyle": (0, (4, 3))}


Panels = Mapping[str, Mapping[str, Sequence[Finished]]]  # by panel's title and by head, its runs: never none


# How a line is drawn, everywhere: in Okabe and Ito's palette, which most colour-blind readers can tell apart, and with
# another marker each, for those who do not see the colours.
STYLES: dict[str, dict[str, Any]] = {
    "softmax": {"color": "#0072B2", "marker": "s"},
    "sparsemax": {"color": "#CC79A7", "marker": "^"},
    "catnat": {"color": INK, "marker": "*"},
    "catnat-sigmoid": {"color": "#009E73", "marker": "D"},
    "catnat-paper": {"color": "#D55E00", "marker": "o"},
    "catnat-revive1e-4": {"color": "#56B4E9", "marker": "P"},
}
STYLES |= {"natural": STYLES["catnat"], "sigmoid": STYLES["catnat-sigmoid"], "paper": STYLES["catnat-paper"]}
SPARE, MARKS = tuple(f"C{i}" for i in range(1, 10)), "Xv<>phd"  # for lines that have no style of their own
STROKES = ("-", "--", ":", "-.")

LOOK = Path(__file__).with_name("look.mplstyle")


def styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """How each of these heads is drawn: by its activation; on other trees, or unknown, with another stroke and mark."""
    found: dict[str, dict[str, Any]] = {}
    trees: dict[str, int] = {}
    for name in dict.fromkeys(names):
        activation = name.partition("[")[0]
        known = STYLES.get(activation)
        nth = trees[activation if known else ""] = trees.get(activation if known else "", -1) + 1
        spare = {"color": SPARE[nth % len(SPARE)], "marker": MARKS[nth % len(MARKS)]}
        stroke = STROKES[(nth if known else nth // len(SPARE)) % len(STROKES)]
        found[name] = {**(known or spare), "linestyle": stroke}
    return found


# -- panels ----------------------------------------------------------------------------------------------------------


def in_panels(
    count: int, height: float = PANEL_HEIGHT, across: int = MAX_ACROSS, label: str = ""
) -> tuple[Figure, list[Axes]]:
    """A figure as wide as a page: ``count`` panels of one size, at most ``across`` a row, whose first has the label."""
    across = min(across, max(count, 1))
    down = -(-count // across) or 1
    room = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.07, hspace=0.04, wspace=0.02)  # no title touches a label above
    figure = Figure(figsize=(WIDTH, height * down + 0.35), layout=room)
    every: list[Axes] = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in every[count:]:
        axes.remove()
    for axes in every[:count:across]:
        axes.set_ylabel(label)
    return figure, every[:count]


def legend(figure: Figure, names: Sequence[str], *others: Line2D) -> None:
    """One legend of parameterizations above all panels, and what else there is, in as many rows as its words need."""
    entries = [*(Line2D([], [], label=name, **look) for name, look in styles(names).items()), *others]
    length = sum(len(str(entry.get_label())) + 6 for entry in entries)
    columns = -(-len(entries) // -(-length // LEGEND_LENGTH)) if entries else 1
    figure.legend(handles=entries, loc="outside upper left", ncols=columns, handlelength=1.8, columnspacing=1.4)


# -- curves ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A measure against training steps: the mean over seeds and the edges of a band around it."""

    steps: NDArray[Any]
    mean: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]


def curve_of(final: Iterable[Finished], measure: str) -> Curve | None:
    """Mean ± one standard deviation over seeds of what finished jobs recorded over training; None of nothing.

    A diverged run ends the curve. Runs of unequal length, as of a study that is not finished, are cut to the shortest.
    """
    runs = [curve for trial in final if (curve := trial.record.get("curve") or {}).get("step")]
    if not runs:
        return None
    length = min(len(run[name]) for run in runs for name in ("step", measure))
    steps, *values = (np.array(some[:length], float) for some in (runs[0]["step"], *(run[measure] for run in runs)))
    mean = np.mean(values, 0)
    spread = np.std(values, 0, ddof=1) if len(runs) > 1 else np.zeros_like(mean)
    return Curve(steps, mean, mean - spread, mean + spread)


@dataclass(frozen=True)
class CurvePanel:
    """The curves of one panel, by parameterization, and what the best possible model would reach."""

    title: str
    curves: Mapping[str, Curve]
    optimal: float | None = None
    along: str = "training step"
    is_log: bool = False


@rc_context(fname=LOOK)
def draw_curves(panels: Sequence[CurvePanel], label: str, *, focus: bool = True) -> Figure:
    """A measure against training steps; where asked, each panel fits the second half of training."""
    figure, every = in_panels(len(panels), label=label)
    looks = styles(name for panel in panels for name in panel.curves)
    for axes, panel in zip(every, panels, strict=True):
        for name, curve in panel.curves.items():
            axes.fill_between(curve.steps, curve.low, curve.high, color=looks[name]["color"], alpha=0.18, linewidth=0)
            few = max(1, len(curve.steps) // 6)
            axes.plot(curve.steps, curve.mean, label=name, markevery=few, markersize=3.5, **looks[name])
        if panel.optimal is not None:
            axes.axhline(panel.optimal, label="optimal", **DASHED)
        if focus:
            _focus_on(axes, panel)
        axes.set(title=panel.title, xlabel=panel.along, xscale="log" if panel.is_log else "linear")
        if not panel.is_log:
            axes.xaxis.set_major_locator(MaxNLocator(4))
    known = [Line2D([], [], label="optimal", **DASHED)] if any(panel.optimal is not None for panel in panels) else []
    legend(figure, [name for panel in panels for name in panel.curves], *known)
    return figure


def _focus_on(axes: Axes, panel: CurvePanel) -> None:
    """What parts the curves is near the optimum, not at the start."""
    edges = [edge for curve in panel.curves.values() for edge in (curve.low, curve.high)]
    late = [edge[len(edge) // 2 :] for edge in edges]
    values = np.concatenate([*late, [np.nan if panel.optimal is None else panel.optimal]])
    values = values[np.isfinite(values)]
    if values.size and np.ptp(values) > 0:
        axes.set_ylim(values.min() - 0.1 * np.ptp(values), values.max() + 0.5 * np.ptp(values))  # with some descent


@rc_context(fname=LOOK)
def draw_searches(panels: Panels, finals: Panels, measure: str) -> Figure:
    """A measure against the rate: every run of a search, their means, and below the rates of the final runs."""
    figure, every = in_panels(len(panels), label=measure)
    looks = styles(name for heads in panels.values() for name in heads)
    for axes, (title, heads) in zip(every, panels.items(), strict=True):
        means: list[float] = []
        for place, (name, runs) in enumerate(heads.items(), 1):
            look, tried = {**looks[name], "linestyle": "none"}, dict[float, list[float]]()
            for run in sorted(runs, key=lambda run: run.config["rate"]):
                tried.setdefault(run.config["rate"], []).append(run.metrics.get(measure, math.nan))
            for rate, values in tried.items():
                axes.plot([rate] * len(values), values, alpha=0.35, markersize=3, **look)
            line = [float(np.mean(values)) for values in tried.values()]
            axes.plot([*tried], line, linewidth=1, label=name, **looks[name] | {"marker": ""})
            chosen = [run.config["rate"] for run in finals.get(title, {}).get(name, [])]
            heights, below = [0.03 * place] * len(chosen), axes.get_xaxis_transform()
            axes.plot(chosen, heights, markersize=5, transform=below, **look)
            means += filter(math.isfinite, line)
        axes.set(title=title, xlabel="rate", xscale="log")
        reach = np.ptp(means) if means else 0.0
        if reach:
            axes.set_ylim(min(means) - 0.25 * reach, max(means) + 0.1 * reach)
    legend(figure, [name for heads in panels.values() for name in heads])
    return figure


# -- pictures and differences ----------------------------------------------------------------------------------------


@rc_context(fname=LOOK)
def draw_pictures(
    pictures: Mapping[str, NDArray[Any]], colours: str, across: int = MAX_ACROSS, scale: str = ""
) -> Figure:
    """Matrices side by side, on one scale from 0 to the largest entry, which is shown where it has a name."""
    height, width = next(iter(pictures.values())).shape
    figure, every = in_panels(len(pictures), WIDTH / min(across, len(pictures)) * height / width + 0.2, across)
    top = max((float(np.nanmax(picture)) for picture in pictures.values()), default=1.0)
    for axes, (title, picture) in zip(every, pictures.items(), strict=True):
        image = axes.imshow(picture, cmap=colours, vmin=0, vmax=top, interpolation="none")
        axes.set(title=title, xticks=[], yticks=[])
        axes.grid(visible=False)
    if scale:
        figure.colorbar(image, ax=every, shrink=0.85, aspect=14, pad=0.01, label=scale)
    return figure


class Strip(NamedTuple):
    """By parameterization, how it compares with the baseline."""

    label: str
    differences: Mapping[str, Comparison]
    lower_is_better: bool


def strips_of(judgement: Judgement) -> list[Strip]:
    """The contests that a table's verdict is about."""
    table, strips = judgement.table, []
    for group, column in table.headed:
        keys = {line: (group, line, column.key) for line in table.lines}
        found = {line: judgement.against[key] for line, key in keys.items() if key in judgement.against}
        if found:
            strips.append(Strip(table.place(group, column, between="\n"), found, column.lower_is_better))
    return strips


@rc_context(fname=LOOK)
def draw_differences(strips: Sequence[Strip], base: str = "softmax") -> Figure:
    """A strip a contest: how much better than the baseline every parameterization is, with its interval."""
    names = list(dict.fromkeys(name for strip in strips for name in strip.differences))
    figure, every = in_panels(len(strips), 0.5 + 0.14 * len(names), across=1)
    for axes, strip in zip(every, strips, strict=True):
        _draw_strip(axes, names, strip)
    if every:
        every[-1].set_xlabel(f"worse than {base}  |  better than {base} (each row in its own unit; 95% intervals)")
    legend(figure, names)
    return figure


def _draw_strip(axes: Axes, names: Sequence[str], strip: Strip) -> None:
    sign = -1 if strip.lower_is_better else 1
    # one that is far off would make one point of all the others
    every = strip.differences.values()
    most = sorted(max(abs(each.low), abs(each.high)) for each in every if math.isfinite(each.high)) or [1.0]
    looks, reach = styles(names), 1.15 * min(most[-1], 4 * most[(len(most) - 1) // 2]) or 1.0
    for place, name in enumerate(names):
        look = {**looks[name], "linestyle": "none"}
        if (found := strip.differences.get(name)) is None:
            axes.text(0.02 * reach, -place, "not run", color=look["color"], fontsize=7, va="center")
            continue
        if found.high == math.inf:
            told = "better by ranks" if sign * found.difference > 0 else "worse by ranks"
            axes.text(0.02 * reach, -place, told, color=look["color"], fontsize=7, va="center")
            continue
        better, ends = sign * found.difference, (sign * found.low, sign * found.high)
        if abs(better) < reach:
            axes.plot(np.clip(ends, -reach, reach), [-place] * 2, color=look["color"], linewidth=1.4)
            axes.plot([better], [-place], markersize=6, label=name, **look)
        else:
            side, edge = ("left", "<") if better < 0 else ("right", ">")
            axes.plot([math.copysign(0.97 * reach, better)], [-place], edge, color=look["color"], label=name)
            text = math.copysign(0.94 * reach, better)
            axes.text(text, -place, f"{better:+.2g}", color=look["color"], fontsize=7, ha=side, va="center")
    axes.axvline(0, color=FAINT, linewidth=1)
    axes.grid(visible=False)
    axes.set(xlim=(-reach, reach), ylim=(0.6 - len(names), 0.6))
    axes.set_yticks([(1 - len(names)) / 2], [strip.label], fontsize=8)


# -- into a page -----------------------------------------------------------------------------------------------------


def inlined(figure: Figure, label: str, prefix: str) -> str:
    """The figure as an ``<svg>`` element of a page: a label for those who hear it, and ids that no other figure has."""
    buffer = io.StringIO()
    with rc_context(fname=LOOK):
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue()
    text = text[text.index("<svg") :].rstrip()
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text, count=2)  # HTML knows what an svg is
    text = text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1).replace("xlink:href=", "href=")
    text = re.sub(r'(<image\b[^>]*?)\sid="[^"]*"', r"\1", text)  # made from the pixels: equal images would share one
    text = re.sub(r'(\sid="|\shref="#|url\(#)', rf"\g<1>{prefix}", text)
    return text.replace(INK, "currentColor")
