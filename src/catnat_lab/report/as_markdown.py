"""A table as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from catnat_lab.report.judgement import Judgement, judge
from catnat_lab.report.table import Table
from catnat_lab.report.words import DASH, NONE_FOUND, RULE, agreement, criteria, line_label, ours, paper, verdict_legend


def markdown(table: Table) -> str:
    """The table in Markdown: ours beside the paper's, whether the winners agree, where we disagree, what is missing.

    Args:
        table: our values and the paper's numbers.

    Returns:
        A section that begins with a heading of the third level and ends with a newline.
    """
    judgement = judge(table)
    entries = [f"{number}. {_escaped(entry.text)}" for number, entry in enumerate(judgement.disagreements, 1)]
    parts = [f"### {_escaped(table.title)}", RULE, _grid(_rows(table, judgement), names=2)]
    if table.has_paper:
        parts += [
            "**Is the paper's winner ours too?**",
            _grid(_verdict_rows(table, judgement), names=1),
            _list(verdict_legend(judgement)),
            _escaped(" ".join(agreement(table, judgement))),
            "**Where we disagree with the paper**",
            criteria(table),
            "\n".join(entries) or NONE_FOUND,
        ]
    if judgement.notes:
        parts += ["**Notes**", _list(judgement.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows(table: Table, judgement: Judgement) -> Iterator[list[str]]:
    whose = ("ours", "paper") if table.has_paper else ("ours",)
    headings = [f"{column.heading}, {who}" for column in table.columns for who in whose]
    yield [_escaped(name) for name in (table.group_name, table.line_name, *headings)]
    for group in table.groups:
        for line in table.rows:
            row = [_escaped(group), _escaped(line_label(table, line))]
            for column in table.columns:
                cell = table.cell(group, line, column)
                row.append(_strong(ours(cell, column), judgement.is_bold(group, line, column)))
                if table.has_paper:
                    row.append(_strong(paper(cell, column), cell.paper_bold))
            yield row


def _verdict_rows(table: Table, judgement: Judgement) -> Iterator[list[str]]:
    yield [_escaped(name) for name in (table.group_name, *(column.heading for column in table.columns))]
    for group in table.groups:
        yield [_escaped(group), *(judgement.contests[group, column.key].verdict for column in table.columns)]


def _grid(rows: Iterable[list[str]], names: int) -> str:
    """Rows as a Markdown table. The first ``names`` columns are names, the others numbers or words to compare."""
    head, *body = rows
    ruler = ["---"] * names + ["---:"] * (len(head) - names)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ruler, *body))


def _strong(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold and text != DASH else text


def _list(entries: Iterable[str]) -> str:
    return "\n".join(f"- {_escaped(entry)}" for entry in entries)


def _escaped(text: str) -> str:
    """The text with Markdown's own marks made harmless: the star of "θ*" must not open an emphasis."""
    return re.sub(r"([\\`*_|<>&\[\]])", r"\\\1", text)
