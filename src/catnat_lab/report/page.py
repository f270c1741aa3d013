"""A report as one HTML file that needs nothing beside itself, as Markdown or on a terminal, and numbers as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.markdown import Markdown

from catnat_lab.files import write
from catnat_lab.report import table as tables
from catnat_lab.report.figures import draw_differences, inlined, strips_of
from catnat_lab.report.table import Judgement, Table, escaped, judge

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=select_autoescape(["html.j2"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {"escaped": escaped, "strong": lambda text, bold, star: f"**{text}{star}**" if bold else text}


@dataclass(frozen=True)
class PageFigure:
    """A figure of the page: its title, and a caption that says what to see."""

    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Report:
    """All that a page shows. It begins with the verdict on the first table and a figure of it."""

    title: str
    summary: str  # what was run, in a few sentences
    provenance: Mapping[str, str]  # command, commit, machine, versions, date, time and the like
    tables: tuple[Table, ...]
    remarks: tuple[str, ...] = ()  # what else the runs show; the computed disagreements come by themselves
    figures: tuple[PageFigure, ...] = ()
    said: str = ""  # the verdict, in place of the computed one
    rows: tuple[Mapping[str, object], ...] = ()  # every run, to be unfolded

    @cached_property
    def judged(self) -> list[Judgement]:
        return [judge(table) for table in self.tables]

    @property
    def verdict(self) -> str:
        return self.said or tables.verdict(self.judged[0])

    @property
    def shown(self) -> list[Judgement]:
        """Those of tables that have a final run."""
        return [judgement for judgement in self.judged if judgement.table.begun_groups]

    @property
    def every_figure(self) -> tuple[PageFigure, ...]:
        """The verdict's own, where there is something to compare, and the others."""
        first, base = self.judged[0], self.tables[0].baseline
        if not first.against:
            return self.figures
        caption = (
            f"How much better than {base}: {first.table.measure}, difference of means and its 95% interval by Welch's "
            "test, not corrected for the number of comparisons. An arrow with a number lies beyond the scale."
        )
        return PageFigure(f"Against {base}", caption, draw_differences(strips_of(first), base)), *self.figures


def page(report: Report) -> str:
    """The report as a self-contained HTML page: no script, no font, no picture from elsewhere.

    Every string of the report is escaped; figures go in as the SVG that we draw.
    """
    figures = [
        (each, Markup(inlined(each.figure, each.title, f"figure-{number}-")))
        for number, each in enumerate(report.every_figure, 1)
    ]
    lines = as_lines(report.rows)
    return TEMPLATES.get_template("page.html.j2").render(report=report, figures=figures, lines=lines, words=tables)


def text_of(report: Report) -> str:
    across = max(len(table.columns) for table in report.tables)
    given = {"judged": report.shown, "words": tables, "across": across, "star": ""}
    return TEMPLATES.get_template("page.md.j2").render(report=report, **given).rstrip() + "\n"


def terminal(table: Table, width: int) -> Markdown:
    """A table as in the Markdown, with as many measures across as fit; bold has a star, since a pipe shows no bold."""
    across = max(1, (width - 30) // 44)
    given = {"judged": [judge(table)], "words": tables, "across": across, "star": "\\*"}
    return Markdown(TEMPLATES.get_template("tables.md.j2").render(**given))


def write_pages(
    report: Report, folder: Path, numbers: Mapping[str, Iterable[Mapping[str, object]]]
) -> tuple[Path, tuple[Table, ...]]:
    """Write report.html, report.md and the numbers as CSV, by the names of their files; the page's path, its tables."""
    write(folder / "report.md", text_of(report))
    for name, rows in numbers.items():
        write(folder / name, as_csv(rows))
    return write(folder / "report.html", page(report)), report.tables


def as_lines(rows: Iterable[Mapping[str, object]]) -> list[list[object]]:
    """Records under all the names that they have, which come first; numbers with six digits."""
    every = list(rows)
    names = dict.fromkeys(name for row in every for name in row)
    found = [[row.get(name, "") for name in names] for row in every]
    return [[*names], *([f"{x:.6g}" if isinstance(x, float) else x for x in line] for line in found)]


def as_csv(rows: Iterable[Mapping[str, object]]) -> str:
    """Where a text would be a formula to a spreadsheet, it is quoted from it."""
    kept = [{name: _no_formula(value) for name, value in row.items()} for row in rows]
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(as_lines(kept))
    return file.getvalue()


def _no_formula(value: object) -> object:
    """As it is, unless a spreadsheet would compute it; a text that is a number is none."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def paper_rows(name: str) -> list[dict[str, str]]:
    """One of the paper's tables; "head" is the name that its parameterization has here."""
    return list(csv.DictReader(files("catnat_lab").joinpath("paper", name).read_text().splitlines()))


def printed(row: Mapping[str, str], measure: str = "") -> tuple[float, float, bool]:
    """What a row of the paper's has of a measure: mean, deviation, and whether it is bold there."""
    return float(row[f"{measure}mean"]), float(row[f"{measure}std"]), row[f"{measure}bold"] == "True"
