"""Tables and values that the tests of the report share."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from rich.console import Console

from catnat_lab.experiment import Finished
from catnat_lab.report.figures import (
    Curve,
    CurvePanel,
    curve_of,
    draw_curves,
    draw_differences,
    draw_pictures,
    strips_of,
)
from catnat_lab.report.page import PageFigure, Report, terminal
from catnat_lab.report.table import Cell, Column, Table, judge

LINES = ("softmax", "sparsemax", "catnat-sigmoid", "catnat-paper")
SPREAD = np.linspace(-1, 1, 10) / np.std(np.linspace(-1, 1, 10), ddof=1)  # deviation 1, mean 0
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
        "measure": "energy score",
        "group_name": "θ*",
        "groups": ("0.1",),
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
                cells[group, line, column.key] = Cell(mine, mean, 0.01, line == "catnat-paper")
    return Table("Graphs", "score", "θ*", groups, LINES, columns, cells, reference_line="optimal")


def shown(what: Table, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, no_color=True, force_terminal=False).print(terminal(what, width))
    return out.getvalue()


def found(what: Table) -> list[tuple[str, str]]:
    """The disagreements' kinds and lines."""
    return [(entry.kind, entry.key[1]) for entry in judge(what).disagreements]


def curve(*runs: Any) -> Curve:
    """Of runs that recorded these values."""
    records = [{"curve": {"step": list(range(len(run))), "score": run}} for run in runs]
    found = curve_of([Finished(0.0, {}, record, {}) for record in records], "score")
    assert found is not None
    return found


def curve_panels() -> list[CurvePanel]:
    draws = np.random.default_rng(0)
    groups = ("0.1", "0.25", "0.5", "0.75", "0.9")
    runs = {group: {line: draws.normal(8, 0.1, (4, 9)) for line in LINES} for group in groups}
    return [
        CurvePanel(group, {line: curve(*some) for line, some in every.items()}, 7.0) for group, every in runs.items()
    ]


def report(*tables: Table, **changed: Any) -> Report:
    settings: dict[str, Any] = {"title": "T", "summary": "S", "provenance": {"command": "x"}, "tables": tables}
    return Report(**{**settings, **changed})


def drawn() -> tuple[PageFigure, ...]:
    every = [
        draw_curves(curve_panels(), "score"),
        draw_pictures({line: np.eye(24) for line in LINES}, "YlGnBu"),
        draw_differences(strips_of(judge(large()))),
        draw_curves(curve_panels(), "score"),
    ]
    return tuple(PageFigure(f"Figure {i}", f"Caption {i}", figure) for i, figure in enumerate(every))
