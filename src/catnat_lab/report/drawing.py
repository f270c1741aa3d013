"""Panels, legends and settings that the figures of every experiment share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from catnat_lab.report.svg import FAINT, LOOK, style

Args = ParamSpec("Args")
MAX_ACROSS = 3  # panels in a row
WIDTH, PANEL_HEIGHT = 9.6, 2.45  # inches
LEGEND_LENGTH = 125  # characters in a row, with the handles


def in_look(draw: Callable[Args, Figure]) -> Callable[Args, Figure]:
    """Draw with our look and leave the global settings as they were."""

    @wraps(draw)
    def drawn(*args: Args.args, **kwargs: Args.kwargs) -> Figure:
        with rc_context(LOOK):
            return draw(*args, **kwargs)

    return drawn


def blank(height: float) -> Figure:
    """An empty figure, as wide as a page, with room between its panels."""
    room = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.07, hspace=0.04, wspace=0.02)  # no title touches a label above
    return Figure(figsize=(WIDTH, height), layout=room)


def in_panels(count: int, height: float = PANEL_HEIGHT) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels of one size, at most three in a row."""
    across = min(MAX_ACROSS, max(count, 1))
    down = -(-count // across) or 1
    figure = blank(height * down + 0.35)
    every: list[Axes] = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in every[count:]:
        axes.remove()
    return figure, every[:count]


def is_left(axes: Axes) -> bool:
    """Whether a panel is the first of its row."""
    place = axes.get_subplotspec()
    return place is not None and place.is_first_col()


def label_left(every: Sequence[Axes], label: str) -> None:
    """Name the vertical axis once a row."""
    for axes in every:
        if is_left(axes):
            axes.set_ylabel(label)


def key(name: str) -> Line2D:
    """The legend's entry of a parameterization."""
    look = style(name)
    return Line2D([], [], color=look.colour, marker=look.marker, label=name)


def hint(**shown: Any) -> Line2D:
    """The legend's entry of a kind of marker, in no parameterization's colour."""
    return Line2D([], [], color=FAINT, linestyle="none", **shown)


def legend(figure: Figure, entries: list[Line2D]) -> None:
    """One legend above all panels, in as many rows as its words need."""
    length = sum(len(str(entry.get_label())) + 6 for entry in entries)
    columns = -(-len(entries) // -(-length // LEGEND_LENGTH)) if entries else 1
    figure.legend(handles=entries, loc="outside upper left", ncols=columns, handlelength=1.8, columnspacing=1.4)
