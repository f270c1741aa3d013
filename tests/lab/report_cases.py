"""Tables and values that the tests of the report share."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib import rcParams
from rich.console import Console

from catnat_lab.report import Cell, Column, PageFigure, Report, Table, curves, judge, terminal
from catnat_lab.report import gsl_figures as figures
from catnat_lab.stats import Excess

LINES = ("softmax", "sparsemax", "catnat-sigmoid", "catnat-natural")
SPREAD = np.linspace(-1, 1, 10) / np.std(np.linspace(-1, 1, 10), ddof=1)  # deviation 1, mean 0
SETTINGS = dict(rcParams)  # before the first figure
HOSTILE = "<b>&\"'| *x*"


def values(mean: float, std: float = 0.01) -> tuple[float, ...]:
    return tuple(mean + std * SPREAD)


def cell(mean: float, paper: float | None = None, bold: bool = False, std: float = 0.01) -> Cell:
    """Ten values of this mean, beside a paper's number that agrees unless it is given."""
    return Cell(values(mean, std), mean if paper is None else paper, std, bold)


def table(lines: dict[str, Cell], optimal: Cell | None = None, **changed: Any) -> Table:
    """One group and one column with these lines."""
    every = {("0.1", line, "es"): content for line, content in lines.items()}
    if optimal is not None:
        every["0.1", "optimal", "es"] = optimal
    lower = changed.pop("lower_is_better", True)
    settings: dict[str, Any] = {
        "title": "Graphs",
        "group_name": "θ*",
        "groups": ("0.1",),
        "line_name": "parameterization",
        "lines": tuple(lines),
        "columns": (Column("es", "Energy score", 3, lower),),
        "cells": every,
        "reference_line": None if optimal is None else "optimal",
    }
    return Table(**{**settings, **changed})


def large() -> Table:
    """Five groups and four columns, as in the paper, with our values drawn around the paper's."""
    draws = np.random.default_rng(0)
    groups, columns = ("0.1", "0.25", "0.5", "0.75", "0.9"), tuple(Column(f"c{i}", f"Score {i}", 4) for i in range(4))
    cells = {}
    for group in groups:
        for column in columns:
            for place, line in enumerate((*LINES, "optimal")):
                mean = 10.5 - 0.1 * place
                mine = tuple(draws.normal(mean, 0.01, 10))
                cells[group, line, column.key] = Cell(mine, mean, 0.01, line == "catnat-natural")
    return Table("Graphs", "θ*", groups, "parameterization", LINES, columns, cells, "optimal")


def shown(what: Table, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, no_color=True, force_terminal=False).print(terminal(what))
    return out.getvalue()


def found(what: Table) -> list[tuple[str, tuple[str, ...]]]:
    return [(entry.kind, entry.lines) for entry in judge(what).disagreements]


def flat(height: float) -> curves.Curve:
    return curves.Curve.of_runs(range(5), height + np.zeros((3, 5)))


def curve_panels() -> list[curves.CurvePanel]:
    draws = np.random.default_rng(0)
    return [
        curves.CurvePanel(
            group, {line: curves.Curve.of_runs(range(9), draws.normal(8, 0.1, (4, 9))) for line in LINES}, 7.0
        )
        for group in ("0.1", "0.25", "0.5", "0.75", "0.9")
    ]


def search_panels() -> list[figures.SearchPanel]:
    search = figures.Search([(0.001, 0.03), (0.01, 0.01), (0.1, float("nan"))], [(0.005, 0.009)], 0.005)
    return [figures.SearchPanel(group, dict.fromkeys(LINES, search)) for group in ("0.1", "0.9")]


def excess_panels() -> list[figures.ExcessPanel]:
    every = dict.fromkeys(LINES, Excess(0.03, 0.01))
    return [figures.ExcessPanel(group, every, every) for group in ("0.1", "0.5", "0.9")]


def report(*tables: Table, **changed: Any) -> Report:
    settings: dict[str, Any] = {"title": "T", "summary": "S", "provenance": {"Command": "x"}, "tables": tables}
    return Report(**{**settings, **changed})


def drawn() -> tuple[PageFigure, ...]:
    svgs = [
        figures.learning_curves(curve_panels()),
        figures.graphs("0.1", np.eye(24), {line: np.eye(24) for line in LINES}),
        figures.searches(search_panels()),
        figures.excesses(excess_panels()),
    ]
    return tuple(PageFigure(f"Figure {i}", f"Caption {i}", svg) for i, svg in enumerate([*svgs, svgs[0]]))
