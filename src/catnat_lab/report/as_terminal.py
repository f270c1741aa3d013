"""A table for a terminal of 100 columns, readable without colour."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from catnat_lab.report.judgement import Judgement, judge
from catnat_lab.report.table import Column, Table
from catnat_lab.report.words import DASH, NONE_FOUND, agreement, marks, ours, paper

WIDTH = 100
STARS = "* the best mean, and every one that Welch's test does not tell from it."
LEGEND = f"{STARS}   !n disagreement n, below."


def terminal(table: Table) -> RenderableType:
    """The table for `rich.print`: ours above the paper's, and below it where they disagree.

    A table too wide for 100 columns is cut into several below one another.

    Args:
        table: our values and the paper's numbers.

    Returns:
        A renderable without wrapped numbers. Stars mark what is bold elsewhere, since a terminal may not show bold.
    """
    judgement = judge(table)
    parts: list[RenderableType] = [Text(table.title, style="bold")]
    for columns in _packed(table, judgement):
        parts += [_grid(table, judgement, columns), Text()]
    parts.append(Text(LEGEND if table.has_paper else STARS))
    if table.has_paper:
        parts += [Text(sentence) for sentence in agreement(table, judgement)]
        parts += [Text("\nWhere we disagree with the paper", style="bold")]
        entries = [f"{number}. {entry.text}" for number, entry in enumerate(judgement.disagreements, 1)]
        parts += [_indented(text) for text in entries or [NONE_FOUND]]
    if judgement.notes:
        parts += [Text("\nNotes", style="bold"), *(_indented(note) for note in judgement.notes)]
    return Group(*parts)


def _indented(text: str) -> RenderableType:
    return Padding(Text(text), (0, 0, 0, 2))


def _packed(table: Table, judgement: Judgement) -> Iterator[tuple[Column, ...]]:
    """The columns in as few bundles as fit, in their order, at least one a bundle."""
    names = [max(map(len, some)) for some in ((table.group_name, *table.groups), (table.line_name, *table.rows))]
    fixed = sum(width + 2 for width in (*names, len("paper")))
    bundle: list[Column] = []
    used = fixed
    for column in table.columns:
        pairs = (_texts(table, judgement, group, line, column) for group in table.groups for line in table.rows)
        width = max(len(text) for texts in ((column.heading,), *pairs) for text in texts) + 2
        if bundle and used + width > WIDTH:
            yield tuple(bundle)
            bundle, used = [], fixed
        bundle.append(column)
        used += width
    yield tuple(bundle)


def _grid(table: Table, judgement: Judgement, columns: tuple[Column, ...]) -> RichTable:
    grid = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)  # two blanks between columns
    for name in (table.group_name, table.line_name, ""):
        grid.add_column(Text(name), no_wrap=True)
    for column in columns:
        grid.add_column(Text(column.heading), no_wrap=True)
    for group in table.groups:
        for line in table.rows:
            first, second = zip(*(_texts(table, judgement, group, line, column) for column in columns), strict=True)
            new = line == table.rows[0]  # the group's name stands once
            grid.add_row(Text(group if new else ""), Text(line), "ours", *map(_styled, first))
            if table.has_paper:
                grid.add_row("", "", "paper", *map(_styled, second), end_section=line == table.rows[-1])
    return grid


def _texts(table: Table, judgement: Judgement, group: str, line: str, column: Column) -> tuple[str, str]:
    """Ours and the paper's, with a star for bold and the numbers of the disagreements."""
    cell = table.cell(group, line, column)
    upper, lower = (text.replace(" ± ", "±") for text in (ours(cell, column), paper(cell, column)))
    if judgement.is_bold(group, line, column):
        upper += "*"
    numbers = ",".join(map(str, marks(judgement, group, line, column)))
    if numbers:
        upper += f" !{numbers}"
    return upper, lower + ("*" if cell.paper_bold and lower != DASH else "")


def _styled(text: str) -> Text:
    return Text(text, style="bold" if "*" in text else "")
