"""The report says what the data say: bold by the rule, every disagreement and no other, a page that stands alone."""

from __future__ import annotations

import io
import os
import re
import xml.etree.ElementTree as ET
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from rich.console import Console

from catnat_lab.report import Cell, Column, PageFigure, Report, Table, judge, markdown, page, terminal, write
from catnat_lab.report import gsl_figures as figures
from catnat_lab.report.svg import STYLES
from catnat_lab.stats import Excess, excess

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


# --- the judgement


@pytest.mark.parametrize(
    ("means", "std", "lower", "bold"),
    [
        ((7.45, 7.40), 0.010, True, {"b"}),
        ((7.45, 7.40), 0.010, False, {"a"}),
        ((7.45, 7.40), 1.000, True, {"a", "b"}),  # not told apart
        ((7.40, 7.40, 7.50), 0.010, True, {"a", "b"}),
    ],
)
def test_the_best_and_what_is_not_told_from_it_are_bold(
    means: tuple[float, ...], std: float, lower: bool, bold: set[str]
) -> None:
    cells = {name: cell(mean, std=std) for name, mean in zip("abc", means, strict=False)}
    mine = table(cells, lower_is_better=lower)
    assert judge(mine).contests["0.1", "es"].ours == bold
    rows = [line for line in markdown(mine).splitlines() if re.match(r"\| 0\.1 \| [abc] ", line)]
    assert {line.split("|")[2].strip() for line in rows if "**" in line.split("|")[3]} == bold
    rows = [line for line in shown(mine).splitlines() if " ours " in line and "±" in line]
    assert {name for name in cells for line in rows if f" {name} " in line and "*" in line} == bold
    assert Counter(re.findall(r"<strong>", page(report(mine)))) == Counter({"<strong>": len(bold)})


def test_the_reference_never_competes() -> None:
    mine = table({"a": cell(7.45), "b": cell(7.40, bold=True)}, optimal=cell(7.0))
    assert judge(mine).contests["0.1", "es"].ours == {"b"}
    assert found(mine) == []


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((7.45, 7.40), "yes"), ((7.401, 7.40), "tied"), ((7.40, 7.401), "tied"), ((7.40, 7.45), "no")],
)
def test_the_paper_s_winner_is_ours_tied_or_not_among_the_best(ours: tuple[float, float], verdict: str) -> None:
    mine = table({"a": cell(ours[0], 7.45), "b": cell(ours[1], 7.40, bold=True)})
    assert judge(mine).contests["0.1", "es"].verdict == verdict


def test_agreement_gives_no_disagreement() -> None:
    mine = table({"a": cell(7.45), "b": cell(7.40, bold=True)}, optimal=cell(7.39))
    assert found(mine) == [] and judge(mine).contests["0.1", "es"].same_bold is True
    for text in (markdown(mine), shown(mine), page(report(mine))):
        assert "No disagreement was found" in text


def test_another_bold_set_is_a_disagreement() -> None:
    tied = table({"a": cell(7.402, 7.45), "b": cell(7.40, bold=True)})
    assert found(tied) == [("bold", ("a",))]
    for text in (markdown(tied), " ".join(shown(tied).split()), page(report(tied))):
        assert "the paper bolds b; we bold a, b." in text


def test_a_significant_reversal_is_a_disagreement_and_a_weak_one_is_not() -> None:
    reversed_ = table({"a": cell(7.40, 7.45), "b": cell(7.45, 7.40, bold=True)})
    assert found(reversed_) == [("bold", ("a", "b")), ("order", ("a", "b"))]
    assert "a is significantly better than b in ours" in judge(reversed_).disagreements[1].text
    weak = table({"a": cell(7.400, 7.403, bold=True), "b": cell(7.403, 7.400, bold=True)})
    assert found(weak) == []
    assert [difference.same_sign for difference in judge(weak).differences] == [False]


@pytest.mark.parametrize(
    ("paper", "std", "listed"),
    [
        (7.40, 0.01, False),
        (7.30, 0.01, False),  # significant, but by less than 2%
        (7.20, 0.01, True),
        (7.20, 1.00, False),  # by more than 2%, but not significant
        (7.60, 0.01, True),
    ],
)
def test_a_mean_off_the_paper_s_is_listed_when_significant_and_large(paper: float, std: float, listed: bool) -> None:
    mine = table({"a": cell(9.0, std=std), "b": cell(7.40, paper, bold=True, std=std)})
    assert (("value", ("b",)) in found(mine)) is listed


def test_the_reference_s_value_is_compared_with_the_paper_s() -> None:
    mine = table({"a": cell(9.0), "b": cell(8.0, bold=True)}, optimal=cell(7.0, 7.5))
    assert found(mine) == [("value", ("optimal",))]
    assert "7% lower than" in judge(mine).disagreements[0].text  # neither better nor worse


def test_rounding_of_the_printed_number_is_no_disagreement() -> None:
    columns = (Column("es", "θ-MAE", 4),)
    near = table({"a": cell(0.002349, 0.0023, bold=True, std=1e-6)}, columns=columns)  # 2.1% off, and rounds to it
    far = table({"a": cell(0.00244, 0.0023, bold=True, std=1e-6)}, columns=columns)
    assert found(near) == [] and found(far) == [("value", ("a",))]


def test_constants_are_compared_as_such() -> None:
    zero = Cell((0.0,) * 10, 0.0, 0.0)
    lines = {"a": cell(7.4, bold=True)}
    assert found(table(lines, optimal=zero)) == []
    assert found(table(lines, optimal=Cell((1.0,) * 10, 0.0, 0.0))) == [("value", ("optimal",))]


def test_a_line_the_paper_lacks_does_not_make_a_disagreement() -> None:
    mine = table({"a": cell(7.45), "b": cell(7.40, bold=True), "new": Cell(values(7.3))})
    contest = judge(mine).contests["0.1", "es"]
    assert contest.ours == {"new"} and contest.verdict == "yes" and found(mine) == []
    assert "the paper gives no number" in markdown(mine)


# --- what is missing


@pytest.mark.parametrize(
    ("broken", "note", "verdict"),
    [
        (Cell((), 7.45, 0.01), "no value yet", "open"),
        (Cell((7.45,), 7.45, 0.01), "one value only", "open"),
        (Cell((*values(7.45)[:9], float("nan")), 7.45, 0.01), "1 of 10 runs diverged; the mean of the other 9", "yes"),
        (Cell((float("inf"),) * 2, 7.45, 0.01), "2 of 2 runs diverged", "yes"),
        (Cell(values(7.45)), "the paper gives no number", "no paper"),
        (Cell(values(7.45), 7.45), "the paper gives no deviation", "yes"),
        (None, "no value yet", "open"),
    ],
)
def test_what_is_missing_gives_a_dash_and_a_note(broken: Cell | None, note: str, verdict: str) -> None:
    whole = {"a": cell(7.45), "b": cell(7.40, bold=True)}
    cells = {("0.1", line, "es"): content for line, content in ({**whole, "a": broken}).items() if content is not None}
    mine = table(whole, cells=cells)
    contest = judge(mine).contests["0.1", "es"]
    assert contest.verdict == verdict and contest.ours == (set() if verdict == "open" else {"b"})
    assert found(mine) == []
    for text in (markdown(mine), " ".join(shown(mine).split()), page(report(mine))):
        assert note in text
        assert "nan" not in text.lower() and not re.search(r"\binf\b", text)
    has_dash = broken is None or broken.summary is None or broken.paper_mean is None
    row = next(line for line in markdown(mine).splitlines() if line.startswith("| 0.1 | a "))
    assert ("–" in row) is has_dash


def test_nothing_finished_and_no_paper_number_still_gives_a_report() -> None:
    mine = Table("Empty", "θ*", ("0.1",), "line", ("a", "b"), (Column("es", "ES", 3),), {}, "optimal")
    assert judge(mine).disagreements == () and "no value yet" in markdown(mine)
    assert shown(mine) and page(report(mine))


def test_without_a_paper_to_compare_with_nothing_is_said_of_it() -> None:
    cells = {line: Cell(values(mean)) for line, mean in (("a", 1.0), ("b", 2.0))}
    mine = table(cells)
    texts = [markdown(mine), shown(mine), page(report(mine)).split("<h2>Our numbers</h2>")[1].split("</section>")[0]]
    assert all("paper" not in text and "isagree" not in text for text in texts)
    assert "**1.000" in texts[0] and "**2.000" not in texts[0]


def test_other_numbers_of_seeds_are_told() -> None:
    mine = table({"a": Cell(values(7.4)[:3], 7.4, 0.01, True), "b": cell(9.0)})
    assert "Our means are over 3 or 10 seeds, the paper's over 10." in judge(mine).notes


def test_a_table_refuses_what_it_could_not_show() -> None:
    with pytest.raises(ValueError, match="does not have"):
        table({"a": cell(1.0)}, cells={("0.2", "a", "es"): cell(1.0)})
    with pytest.raises(ValueError, match="differ"):
        table({"a": cell(1.0)}, groups=("0.1", "0.1"))
    with pytest.raises(ValueError, match="compete"):
        table({"a": cell(1.0)}, reference_line="a")


# --- the terminal and Markdown


def test_the_terminal_table_fits_and_says_it_all() -> None:
    mine = large()
    text = shown(mine)
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    assert shown(mine, width=500).count("±") == text.count("±") == 2 * 5 * 5 * 4  # no number was wrapped or lost
    assert text.count("Score 3") == 1


def test_a_wide_table_is_cut_into_several() -> None:
    columns = tuple(Column(f"c{i}", f"A long heading {i}", 4) for i in range(9))
    cells = {("0.1", line, column.key): cell(7.4) for line in LINES for column in columns}
    text = shown(Table("Wide", "θ*", ("0.1",), "parameterization", LINES, columns, cells))
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    assert text.count("±") == 2 * 4 * 9 and all(column.heading in text for column in columns)


def test_markdown_tables_are_regular_and_escape_marks() -> None:
    mine = table({HOSTILE: cell(7.4), "b": cell(9.0)})
    text = markdown(mine)
    rows = [re.split(r"(?<!\\)\|", line) for line in text.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {6, 4}  # the numbers and the verdicts
    assert "\\<b\\>\\&" in text and "\\*x\\*" in text


# --- the page


class Reader(HTMLParser):
    """Reads a page, checks that tags are balanced, and keeps ids, attributes and text."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def all(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags for key, value in attributes.items() if key == name and value]


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


def test_the_page_stands_alone() -> None:
    text = page(report(large(), large(), figures=drawn(), rerun=("make a", "make b"), remarks=("We think so.",)))
    assert "http://" not in text and "https://" not in text and "file:" not in text
    assert {link[0] for link in Reader(text).all("href") if not link.startswith("data:image/png;base64,")} == {"#"}
    assert "@import" not in text and "<script" not in text and "<link" not in text
    assert not [ref for ref in re.findall(r"url\(([^)]*)\)", text) if not ref.startswith("#")]
    assert {source.split(":")[0] for source in Reader(text).all("src")} <= {"data"}
    for part in ("What was run", "Where we differ", "How to run it again", "We think so.", "make a\nmake b"):
        assert part in text
    assert "prefers-color-scheme: dark" in text and "@media print" in text


def test_ids_are_unique_and_references_lead_somewhere() -> None:
    tables = (large(), table({"a": cell(7.40, 7.45), "b": cell(7.45, 7.40, bold=True)}))
    text = page(report(*tables, figures=drawn()))
    reader = Reader(text)
    assert [name for name, count in Counter(reader.all("id")).items() if count > 1] == []
    links = [link for link in reader.all("href") if not link.startswith("data:")]
    references = links + re.findall(r"url\((#[^)]*)\)", text)
    assert len(references) > 20 and {ref[1:] for ref in references} <= set(reader.all("id"))


def test_every_figure_is_an_image_with_title_caption_and_label() -> None:
    reader = Reader(page(report(large(), figures=drawn())))
    images = [attributes for tag, attributes in reader.tags if tag == "svg"]
    assert len(images) == 5 and all(image["role"] == "img" and image["aria-label"] for image in images)
    assert Counter(tag for tag, _ in reader.tags)["figcaption"] == 5


def test_a_figure_without_a_label_gets_its_title() -> None:
    text = page(report(large(), figures=(PageFigure(HOSTILE, "c", '<svg viewBox="0 0 1 1"><path id="a"/></svg>'),)))
    image = next(attributes for tag, attributes in Reader(text).tags if tag == "svg")
    assert image["role"] == "img" and image["aria-label"] == HOSTILE


def test_hostile_strings_are_escaped_everywhere() -> None:
    mine = table({HOSTILE: cell(7.40, 7.45), "b": cell(7.45, 7.40, bold=True)}, title=HOSTILE, group_name=HOSTILE)
    svg = figures.learning_curves([figures.CurvePanel(HOSTILE, {HOSTILE: flat(3.0)}, 2.0)])
    hostile = report(
        mine,
        title=HOSTILE,
        summary=HOSTILE,
        provenance={HOSTILE: HOSTILE, "Command": HOSTILE},
        remarks=(HOSTILE,),
        figures=(PageFigure(HOSTILE, HOSTILE, svg),),
        rerun=(HOSTILE,),
    )
    text = page(hostile)
    assert "<b>" not in text and text.count("&lt;b&gt;&amp;") > 15
    assert "b" not in {tag for tag, _ in Reader(text).tags}


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write(tmp_path / "deep" / "page.html", "old θ*")
    assert target.read_text(encoding="utf-8") == "old θ*"
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write(target, "new")
    assert target.read_text(encoding="utf-8") == "old θ*" and list(target.parent.iterdir()) == [target]
    write(target, "new")
    assert target.read_text() == "new" and list(target.parent.iterdir()) == [target]


# --- the figures


def flat(height: float) -> figures.Curve:
    return figures.Curve.of_runs(range(5), height + np.zeros((3, 5)))


def curve_panels() -> list[figures.CurvePanel]:
    draws = np.random.default_rng(0)
    return [
        figures.CurvePanel(
            group, {line: figures.Curve.of_runs(range(9), draws.normal(8, 0.1, (4, 9))) for line in LINES}, 7.0
        )
        for group in ("0.1", "0.25", "0.5", "0.75", "0.9")
    ]


def search_panels() -> list[figures.SearchPanel]:
    search = figures.Search([(0.001, 0.03), (0.01, 0.01), (0.1, float("nan"))], [(0.005, 0.009)], 0.005)
    return [figures.SearchPanel(group, dict.fromkeys(LINES, search)) for group in ("0.1", "0.9")]


def excess_panels() -> list[figures.ExcessPanel]:
    every = dict.fromkeys(LINES, Excess(0.03, 0.01))
    return [figures.ExcessPanel(group, every, every) for group in ("0.1", "0.5", "0.9")]


def test_learning_curves_have_a_panel_a_group_and_a_line_a_parameterization() -> None:
    figure = figures.draw_learning_curves(curve_panels())
    assert [axes.get_title("left") for axes in figure.axes] == [f"θ* = {g}" for g in (0.1, 0.25, 0.5, 0.75, 0.9)]
    for axes in figure.axes:
        colours = {line.get_label(): to_hex(line.get_color()) for line in axes.lines}
        assert colours.pop("optimal") and colours == {line: STYLES[line].colour.lower() for line in LINES}
        assert len(axes.collections) == 4  # the bands
        optimal = next(line for line in axes.lines if line.get_label() == "optimal")
        assert optimal.is_dashed() and set(np.atleast_1d(optimal.get_ydata())) == {7.0}


def test_a_curve_is_the_mean_with_one_deviation_around_it() -> None:
    curve = figures.Curve.of_runs([0, 1], [[1.0, 5.0], [3.0, float("nan")]])
    mean, low, high = (np.asarray(part, dtype=float) for part in (curve.mean, curve.low, curve.high))
    assert np.allclose([mean[0], low[0], high[0]], [2, 2 - 2**0.5, 2 + 2**0.5]) and np.isnan(mean[1])
    figures.learning_curves([figures.CurvePanel("0.1", {"softmax": curve})])
    cut = figures.Curve.of_runs([0, 1, 2], [[1.0, 2.0, 3.0], [3.0, 4.0]])
    assert list(np.asarray(cut.steps)) == [0, 1] and list(np.asarray(cut.mean)) == [2, 3]


def test_a_curve_that_diverged_altogether_is_left_out() -> None:
    nothing = figures.Curve.of_runs(range(5), np.full((3, 5), np.nan))
    assert "nan" not in figures.learning_curves([figures.CurvePanel("0.1", {"softmax": nothing}, None)]).lower()


def test_graphs_share_one_scale_and_errors_another() -> None:
    true = 0.1 * np.eye(24)
    learned = {line: true + 0.01 * place for place, line in enumerate(LINES)}
    figure = figures.draw_graphs(true, learned)
    images = [axes.images[0] for axes in figure.axes if axes.images and axes.get_label() != "<colorbar>"]
    graphs, errors = [images[0], *images[1:5]], images[5:]
    assert len(images) == 9
    for some, top in ((graphs, 0.13), (errors, 0.03)):
        assert len({image.get_clim() for image in some}) == 1 and np.allclose(some[0].get_clim(), (0, top))
    assert np.allclose(np.asarray(errors[2].get_array()), 0.02)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles[:5] == ["true", *LINES]


def places(line: Line2D) -> list[float]:
    return [float(x) for x in np.asarray(line.get_xdata(), dtype=float)]


def test_searches_tell_coarse_refined_chosen_and_diverged() -> None:
    figure = figures.draw_searches(search_panels())
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert axes.get_xscale() == "log"
        lines = [line for line in axes.lines if line.get_label() in LINES]
        assert [places(line) for line in lines] == [[0.001, 0.005, 0.01]] * 4
        coarse, refined, chosen, lost = axes.lines[1:5]
        assert coarse.get_markerfacecolor() == "none" != refined.get_markerfacecolor()
        assert places(refined) == places(chosen) == [0.005]
        assert chosen.get_markersize() > refined.get_markersize()
        assert places(lost) == [0.1] and lost.get_marker() == "x"


@pytest.mark.parametrize("top", [0.0056, 0.009, 0.05, 5.0])
def test_every_axis_of_a_search_has_labels(top: float) -> None:
    search = figures.Search([(0.002, 0.0055), (0.003, top)])
    figure = figures.draw_searches([figures.SearchPanel("0.1", {"softmax": search})])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        assert sum(low <= place <= high for place in axis.get_majorticklocs()) >= 2


def test_excesses_have_a_dot_and_a_bar_for_ours_and_the_paper_s() -> None:
    panels = excess_panels()
    panels[1] = figures.ExcessPanel("0.5", {**panels[1].ours, "softmax": Excess(float("nan"), 0.0)})
    figure = figures.draw_excesses(panels)
    assert [len(axes.containers) for axes in figure.axes] == [8, 3, 8]
    first, second = figure.axes[0].containers[:2]
    assert first[0].get_markerfacecolor() != "none" == second[0].get_markerfacecolor()


def test_excesses_come_from_a_table_as_the_statistics_have_them() -> None:
    diverged = Cell((*values(7.4)[:9], float("nan")), 7.4, 0.01)
    mine = table({"a": cell(7.45, 7.5), "b": diverged, "c": Cell(values(7.6))}, optimal=cell(7.0))
    panel = figures.ExcessPanel.of_table(mine, "0.1", mine.columns[0])
    assert set(panel.ours) == {"a", "c"} and set(panel.paper) == {"a", "b"}
    expected = excess(values(7.45), values(7.0))
    assert np.allclose([panel.ours["a"].mean, panel.ours["a"].error], [expected.mean, expected.error])
    assert np.allclose([panel.paper["a"].mean, panel.paper["a"].error], [0.5, 0.01 * (2 / 10) ** 0.5])


def test_figures_are_text_well_formed_and_leave_no_setting_behind() -> None:
    for figure in drawn():
        root = ET.fromstring(figure.svg)
        words = "".join(root.itertext())
        assert "softmax" in words and "currentColor" in figure.svg and "metadata" not in figure.svg
    assert dict(rcParams) == SETTINGS
    assert figures.learning_curves(curve_panels()) == figures.learning_curves(curve_panels())


def test_nothing_is_drawn_outside_the_figure() -> None:
    search = search_panels()[0].searches["softmax"]
    searches = [figures.SearchPanel("0.1", dict.fromkeys(STYLES, search))]  # the longest legend there is
    for figure in (figures.draw_searches(searches), figures.draw_learning_curves(curve_panels())):
        figure.draw_without_rendering()
        extent, whole = figure.legends[0].get_window_extent(), figure.bbox
        assert extent.x0 >= whole.x0 and extent.x1 <= whole.x1
        assert all(axes.get_window_extent().y1 <= extent.y0 for axes in figure.axes)


def test_an_unknown_parameterization_is_drawn_too() -> None:
    assert "new one" in figures.excesses([figures.ExcessPanel("0.1", {"new one": Excess(0.1, 0.1)})])


def test_one_line_with_a_paper_number_has_nobody_to_win_against() -> None:
    mine = table({"a": cell(1.0), "b": Cell(values(2.0))})
    assert {contest.verdict for contest in judge(mine).contests.values()} == {"no paper"}
