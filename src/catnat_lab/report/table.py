"""The input of every report: our values and the paper's numbers, by group, line and column."""

from __future__ import annotations

import math
from dataclasses import dataclass

from catnat_lab.stats import Summary, summarize

Key = tuple[str, str, str]  # (group, line, column's key)


@dataclass(frozen=True)
class Column:
    """One measure. ``digits`` are the decimals the paper prints, and so the decimals we print."""

    key: str
    heading: str
    digits: int
    lower_is_better: bool = True


@dataclass(frozen=True)
class Cell:
    """Our values, one a final seed, and what the paper prints in the same place."""

    values: tuple[float, ...] = ()
    paper_mean: float | None = None
    paper_std: float | None = None
    paper_bold: bool = False

    @property
    def finite(self) -> tuple[float, ...]:
        """The values of the runs that did not diverge."""
        return tuple(value for value in self.values if math.isfinite(value))

    @property
    def diverged(self) -> int:
        """How many of our runs ended in a value that is not finite."""
        return len(self.values) - len(self.finite)

    @property
    def summary(self) -> Summary | None:
        """Mean and spread of our values; None with fewer than two values, or when one run diverged.

        The mean of the surviving runs alone would flatter a line that diverges, so it does not stand in the table.
        """
        return None if self.diverged or len(self.values) < 2 else summarize(self.values)


@dataclass(frozen=True)
class Table:
    """A results table: ``groups`` of ``lines`` (rows) by ``columns``.

    Args:
        title: what the table shows.
        group_name: what the groups are, for example "θ*".
        groups: the groups in their order.
        line_name: what the lines are, for example "parameterization".
        lines: the lines that compete for the bold mark, in their order.
        columns: the measures.
        cells: by (group, line, column's key). A missing key is a run that is not finished and has no paper number.
        reference_line: a line that is shown, and compared with the paper's, but does not compete.
        paper_count: over how many seeds the paper's means and deviations are.
        compares_values: whether our means should be the paper's; not where ours are trained for another length.
    """

    title: str
    group_name: str
    groups: tuple[str, ...]
    line_name: str
    lines: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: dict[Key, Cell]
    reference_line: str | None = None
    paper_count: int = 10
    compares_values: bool = True

    def __post_init__(self) -> None:
        keys = tuple(column.key for column in self.columns)
        for name, values in (("groups", self.groups), ("lines", self.lines), ("columns", keys)):
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name} must be at least one and differ from one another, got {values}")
        if self.reference_line in self.lines:
            raise ValueError(f"the reference line {self.reference_line!r} must not be one of the lines that compete")
        for group, line, key in self.cells:
            if group not in self.groups or line not in self.rows or key not in keys:
                raise ValueError(f"cell {(group, line, key)} names a group, a line or a column the table does not have")

    @property
    def rows(self) -> tuple[str, ...]:
        """The lines in the order they are shown: the reference comes last."""
        return self.lines if self.reference_line is None else (*self.lines, self.reference_line)

    @property
    def has_paper(self) -> bool:
        """Whether the paper has any number to stand beside ours."""
        return any(cell.paper_mean is not None for cell in self.cells.values())

    def cell(self, group: str, line: str, column: Column) -> Cell:
        """The cell, empty where there is none."""
        return self.cells.get((group, line, column.key), Cell())

    def paper_summary(self, cell: Cell) -> Summary | None:
        """What the paper prints in a cell, for a test; None where its mean or its deviation is missing."""
        if cell.paper_mean is None or cell.paper_std is None or self.paper_count < 2:
            return None
        return Summary(cell.paper_mean, cell.paper_std, self.paper_count)
