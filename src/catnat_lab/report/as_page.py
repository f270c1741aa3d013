"""A report as one HTML file that needs nothing beside itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from catnat_lab.report import words
from catnat_lab.report.judgement import Judgement, judge
from catnat_lab.report.svg import labelled, with_prefix
from catnat_lab.report.table import Table


@dataclass(frozen=True)
class PageFigure:
    """A figure of the page: its title, a caption that says what to see, and its ``<svg>`` element.

    The SVG goes into the page as it is; it is to come from this package's own functions.
    """

    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Report:
    """All that a page shows.

    Args:
        title: the page's title.
        summary: what was found, in a few sentences.
        provenance: what was run: command, commit, machine, versions, date, device time, peak GPU memory and the like.
        tables: our numbers beside the paper's.
        remarks: where we differ from the paper and why we think so; the computed disagreements come by themselves.
        figures: the figures in their order.
        rerun: the commands that run it again, one a line; by default the one that the provenance names.
    """

    title: str
    summary: str
    provenance: Mapping[str, str]
    tables: tuple[Table, ...]
    remarks: tuple[str, ...] = ()
    figures: tuple[PageFigure, ...] = ()
    rerun: tuple[str, ...] = field(default=())

    @property
    def commands(self) -> tuple[str, ...]:
        """That run it again."""
        return self.rerun or tuple(command for name, command in self.provenance.items() if name == "command")


def page(report: Report) -> str:
    """The report as a self-contained HTML page: no script, no font, no picture from elsewhere.

    Args:
        report: what to show.

    Returns:
        The text of the page. Every string of the report is escaped, except the figures' SVG.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    tables = [(table, judge(table)) for table in report.tables]
    return environment.get_template("page.html.j2").render(
        report=report,
        tables=tables,
        has_paper=any(table.has_paper for table in report.tables),
        figures=[_inline(*numbered) for numbered in enumerate(report.figures, 1)],
        **_NAMES,
    )


def _inline(number: int, figure: PageFigure) -> tuple[PageFigure, Markup]:
    """The figure and its SVG made fit for a page: its own ids, an image to assistive software, no namespaces."""
    svg = with_prefix(labelled(figure.svg, figure.title), f"figure-{number}-")
    return figure, Markup(svg.replace(' xmlns="http://www.w3.org/2000/svg"', "", 1))  # HTML knows what an svg is


def _agreement(table: Table, judgement: Judgement) -> str:
    return " ".join(words.agreement(table, judgement))


_NAMES = {
    "DASH": words.DASH,
    "RULE": words.RULE,
    "criteria": words.criteria,
    "NONE_FOUND": words.NONE_FOUND,
    "ours": words.ours,
    "paper": words.paper,
    "marks": words.marks,
    "agreement": _agreement,
    "verdict_legend": words.verdict_legend,
    "line_label": words.line_label,
}


def write(path: Path | str, text: str) -> Path:
    """Write a file whole or not at all: a killed run leaves the old file, never half a new one.

    Args:
        path: where to; missing folders are made.
        text: what.

    Returns:
        The path.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")  # beside it: a rename must not cross disks
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target
