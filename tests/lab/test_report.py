"""The report says what the data say: bold by the rule, every disagreement and no other, a page that stands alone."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace

import pytest

from catnat_lab.errors import UserError
from catnat_lab.report.page import page, text_of
from catnat_lab.report.table import Cell, Column, Table, judge, verdict
from catnat_lab.stats import compare, holm
from tests.lab.report_cases import HOSTILE, LINES, cell, found, large, report, shown, table, values

# --- the judgement


@pytest.mark.parametrize(
    ("means", "std", "lower", "bold"),
    [
        ((7.45, 7.40), 0.010, True, {"b"}),
        ((7.45, 7.40), 0.010, False, {"a"}),
        ((7.45, 7.40), 1.000, True, {"a", "b"}),  # not significantly different
        ((7.40, 7.40, 7.50), 0.010, True, {"a", "b"}),
    ],
)
def test_the_best_and_what_is_not_told_from_it_are_bold(
    means: tuple[float, ...], std: float, lower: bool, bold: set[str]
) -> None:
    cells = {name: cell(mean, std=std) for name, mean in zip("abc", means, strict=False)}
    mine = table(cells, lower_is_better=lower)
    assert judge(mine).bold["0.1", "es"] == bold
    numbers = text_of(report(mine)).split("**Against")[0]
    rows = [line for line in numbers.splitlines() if re.match(r"\| 0\.1 \| [abc] ", line)]
    assert {line.split("|")[2].strip() for line in rows if "**" in line.split("|")[3]} == bold
    rows = [line for line in shown(mine).splitlines() if "±" in line]
    assert {name for name in cells for line in rows if re.search(rf" {name} .* ± [\d.]+\* ", line)} == bold
    assert Counter(re.findall(r"<strong>", page(report(mine)))) == Counter({"<strong>": len(bold)})


def test_the_reference_never_competes() -> None:
    mine = table({"a": cell(7.45), "b": cell(7.40, bold=True)}, optimal=cell(7.0))
    assert judge(mine).bold["0.1", "es"] == {"b"}
    assert found(mine) == []
    for text in (text_of(report(mine)), shown(mine), page(report(mine))):
        assert "No disagreement was found" in text


@pytest.mark.parametrize(
    ("ours", "paper", "mark"),
    [
        (7.40, 7.40, "agree"),
        (7.50, 7.50, "agree"),
        (7.40, 7.50, "disagree"),
        (7.50, 7.40, "disagree"),
        (7.40, 7.451, "ahead"),  # the paper's does not differ significantly
        (7.50, 7.451, "behind"),
        (7.40, None, "ahead"),
        (7.451, 7.40, "tied"),
        (math.nan, 7.40, "not run"),
    ],
)
def test_a_difference_from_softmax_has_a_mark_by_one_rule(ours: float, paper: float | None, mark: str) -> None:
    a = Cell(values(ours), paper, paper and 0.01)
    mine = judge(table({"softmax": cell(7.45), "a": a}))
    assert mine.mark(("0.1", "a", "es")) == mark and mine.mark(("0.1", "softmax", "es")) is None
    orders = [entry.text for entry in mine.disagreements if entry.kind == "order"]
    assert len(orders) == (mark == "disagree")
    if orders:
        assert f"a is significantly {'better' if ours < 7.45 else 'worse'} than softmax in ours, " in orders[0]
        for text in (text_of(report(mine.table)), " ".join(shown(mine.table).split()), page(report(mine.table))):
            assert orders[0].split(", ")[-1] in text


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
    assert (("value", "b") in found(mine)) is listed


def test_the_reference_s_value_is_compared_with_the_paper_s() -> None:
    mine = table({"a": cell(9.0), "b": cell(8.0, bold=True)}, optimal=cell(7.0, 7.5))
    assert found(mine) == [("value", "optimal")]
    assert "7% lower than" in judge(mine).disagreements[0].text  # neither better nor worse


def test_with_a_unit_differences_are_told_in_it() -> None:
    """Where zero is arbitrary, a per cent of the mean says nothing."""
    lines = {"softmax": cell(3.0, 3.9, bold=True), "a": cell(1.8, 3.0, bold=True)}
    (off,) = [each.text for each in judge(table(lines, unit="nat")).disagreements if each.kind == "value"]
    assert "a: our mean 1.800 is 1.200 nats lower (better) than the paper's 3.000" in off
    assert "off the paper's by more than 1 nat and" in text_of(report(table(lines, unit="nat")))
    every = {(f"{i}", line, "es"): content for i in range(4) for line, content in lines.items()}
    told = verdict(judge(table(lines, unit="nat", groups=tuple("0123"), cells=every)))
    assert told == "a (4 of 4 cells, by 1.2 nats) is ahead of softmax."


def test_rounding_of_the_printed_number_is_no_disagreement() -> None:
    columns = (Column("es", "θ-MAE", 4),)
    near = table({"a": cell(0.002349, 0.0023, bold=True, std=1e-6)}, columns=columns)  # 2.1% off, and rounds to it
    far = table({"a": cell(0.00244, 0.0023, bold=True, std=1e-6)}, columns=columns)
    assert found(near) == [] and found(far) == [("value", "a")]


def test_constants_are_compared_as_such() -> None:
    zero = Cell((0.0,) * 10, 0.0, 0.0)
    lines = {"a": cell(7.4, bold=True)}
    assert found(table(lines, optimal=zero)) == []
    assert found(table(lines, optimal=Cell((1.0,) * 10, 0.0, 0.0))) == [("value", "optimal")]


def test_a_line_the_paper_lacks_does_not_make_a_disagreement() -> None:
    mine = table({"a": cell(7.45), "b": cell(7.40, bold=True), "new": Cell(values(7.3))})
    assert judge(mine).bold["0.1", "es"] == {"new"} and found(mine) == []
    assert "the paper gives no number" in text_of(report(mine))


# --- against softmax


def test_every_line_is_compared_with_softmax_and_corrected_over_the_table() -> None:
    rivals = {"softmax": cell(7.45), "a": cell(7.40), "b": cell(7.455)}
    mine = judge(table(rivals, optimal=cell(7.0)))
    alone = {name: compare(rivals[name].values, rivals["softmax"].values) for name in "ab"}
    pvalues = holm([each.p for each in alone.values()])
    assert mine.against == {
        ("0.1", name, "es"): replace(each, p=p) for (name, each), p in zip(alone.items(), pvalues, strict=True)
    }
    column = mine.table.columns[0]
    told, sure = mine.compared("0.1", "a", column)
    assert told.startswith("-0.050 [-0.059, -0.041], d -5.0, p ") and sure
    assert not mine.compared("0.1", "b", column)[1]
    for text in (text_of(report(mine.table)), page(report(mine.table))):
        assert "Against softmax" in text and told in text.replace("\\[", "[").replace("\\]", "]")


def test_without_softmax_the_first_line_is_the_one_to_compare_with() -> None:
    mine = judge(table({"a": cell(7.45), "b": cell(7.40)}))
    assert set(mine.against) == {("0.1", "b", "es")} and "Against a" in text_of(report(mine.table))
    lost = judge(table({"softmax": Cell((1.0, float("nan"))), "b": cell(7.40)}))
    assert lost.against == {} and "Against" not in text_of(report(lost.table))


@pytest.mark.parametrize("lower", [True, False])
def test_the_verdict_says_of_every_line_where_it_stands(lower: bool) -> None:
    sign = 1 if lower else -1
    lines = {"softmax": cell(sign * 10.0), "a": cell(sign * 9.0), "b": cell(sign * 11.0), "c": cell(sign * 9.999)}
    assert verdict(judge(table(lines, lower_is_better=lower))) == (
        "a is ahead of softmax. b is behind softmax. No difference seen between c and softmax."
    )
    many = {"softmax": lines["softmax"], **{f"a{i}": lines["a"] for i in range(7)}, "b": lines["b"]}
    told = verdict(judge(table(many, lower_is_better=lower)))
    assert told == "7 of 8 heads are ahead of softmax. b is behind softmax."
    text = verdict(judge(table({name: lines[name] for name in ("softmax", "a")}, lower_is_better=lower)))
    assert text.startswith(f"a is ahead of softmax: energy score {sign * 9.0:.3f} against {sign * 10.0:.3f}, ")
    assert text.endswith(", 10 repetitions each.")


def test_the_verdict_counts_cells_of_the_columns_it_is_about() -> None:
    columns = (Column("es", "ES", 3), Column("other", "Other", 3))
    cells = {}
    for group, mean in (("0.1", 9.0), ("0.25", 9.25), ("0.5", 9.5), ("0.9", 10.4)):
        cells |= {(group, "softmax", "es"): cell(10.0), (group, "a", "es"): cell(mean)}
        cells |= {(group, "softmax", "other"): cell(1.0), (group, "a", "other"): cell(2.0)}
    wide = {"groups": ("0.1", "0.25", "0.5", "0.9"), "columns": columns, "cells": cells}
    lines = {"softmax": cell(0.0), "a": cell(0.0)}
    text = verdict(judge(table(lines, **wide, headline=("es",))))
    ahead = "a (3 of 4 cells, by 5 to 10%) is ahead of softmax. a (1 of 4 cells, by 4%) is behind softmax."
    assert text == f"{ahead} In Other a is behind."
    assert verdict(judge(table(lines, **wide))).startswith("a (3 of 8 cells, by 5 to 10%) is ahead of softmax. a (5 of")
    few = wide | {"groups": ("0.1", "0.9"), "cells": {key: x for key, x in cells.items() if key[0] in ("0.1", "0.9")}}
    text = verdict(judge(table(lines, **few, headline=("es",))))
    assert text.startswith("a (θ* 0.1) is ahead of softmax. a (θ* 0.9) is behind softmax.")


# --- what is missing


@pytest.mark.parametrize(
    ("broken", "note", "is_open"),
    [
        (Cell((), 7.45, 0.01), "no value yet", True),
        (Cell((7.45,), 7.45, 0.01), "one value only", True),
        (Cell((*values(7.45)[:9], float("nan")), 7.45, 0.01), "1 of 10 runs diverged; the mean of the other 9", False),
        (Cell((float("inf"),) * 2, 7.45, 0.01), "2 of 2 runs diverged", False),
        (Cell(values(7.45)), "the paper gives no number", False),
        (Cell(values(7.45), 7.45), "the paper gives no deviation", False),
        (None, "no value yet", True),
    ],
)
def test_what_is_missing_gives_a_dash_and_a_note(broken: Cell | None, note: str, is_open: bool) -> None:
    whole = {"a": cell(7.45), "b": cell(7.40, bold=True)}
    cells = {("0.1", line, "es"): content for line, content in ({**whole, "a": broken}).items() if content is not None}
    mine = table(whole, cells=cells)
    assert judge(mine).bold["0.1", "es"] == (set() if is_open else {"b"})
    assert found(mine) == []
    for text in (text_of(report(mine)), " ".join(shown(mine).split()), page(report(mine))):
        assert note in text
        assert "nan" not in text.lower() and not re.search(r"\binf\b", text)
    lone = broken is not None and len(broken.values) == 1  # a single value is shown
    has_dash = broken is None or (broken.summary is None and not lone) or broken.paper_mean is None
    row = next(line for line in text_of(report(mine)).splitlines() if line.startswith("| 0.1 | a "))
    assert ("–" in row) is has_dash


def test_groups_and_columns_without_a_final_run_are_named_in_a_note_alone() -> None:
    lines = {"softmax": cell(7.45), "a": cell(7.40, bold=True), "b": Cell((), 7.4, 0.01)}
    waiting = Cell((), 4321.0, 0.01)
    cells = {("0.1", line, "es"): content for line, content in lines.items()}
    cells |= {("0.5", line, "mae"): waiting for line in lines} | {("0.5", "optimal", "es"): cell(1.0)}
    columns = (Column("es", "Energy score", 3), Column("mae", "Error of θ", 3))
    named = {"group_name": "N", "groups": ("0.1", "0.5"), "columns": columns, "reference_line": "optimal"}
    mine = table(lines, cells=cells, **named)
    for text in (text_of(report(mine)), " ".join(shown(mine).split()), page(report(mine))):
        assert "Not shown, for no final run of it is finished: N 0.5; Error of θ." in text
        assert "4321.000" not in text and "b, optimal: no value yet." in text  # of all that is shown
    assert page(report(mine)).count('class="group">0.1<') == 2 and 'class="group">0.5<' not in page(report(mine))
    assert "Not tested, because runs are missing or diverged: 7." in text_of(report(mine))


def test_a_place_that_all_lines_lack_is_one_note() -> None:
    lines = {"softmax": cell(7.45), "a": cell(7.40), "b": Cell((), 7.4, 0.01)}
    cells = {("0.1", line, "es"): content for line, content in lines.items()}
    cells |= {("0.5", line, "es"): Cell((), 7.4, 0.01) for line in lines}
    cells |= {(theta, line, "mae"): lines["a"] for theta in ("0.1", "0.5") for line in lines}
    columns = (Column("es", "ES", 3), Column("mae", "MAE", 3))
    text = text_of(report(table(lines, cells=cells, groups=("0.1", "0.5"), columns=columns)))
    assert text.count("no value yet") == 2
    assert "- softmax, a: no value yet (0.5, ES)." in text.replace("θ\\* ", "")
    assert "- b: no value yet (0.1, ES; 0.5, ES)." in text.replace("θ\\* ", "")
    cells["0.1", "b", "es"] = lines["a"]
    text = text_of(report(table(lines, cells=cells, groups=("0.1", "0.5"), columns=columns)))
    assert "- All: no value yet (0.5, ES)." in text.replace("θ\\* ", "")


def test_the_verdict_on_an_unfinished_table_says_of_what_it_is() -> None:
    lines = {"softmax": cell(7.45), "a": cell(7.40)}
    one = {("0.1", line, "es"): content for line, content in lines.items()}
    begun = one | {("0.5", "a", "es"): cell(7.0)}  # softmax's is missing
    text = verdict(judge(table(lines, cells=begun, groups=("0.1", "0.5"))))
    assert text.startswith("Judged so far: 1 of 2 cells. a (θ* 0.1) is ahead of softmax: energy score 7.400 against")
    assert verdict(judge(table(lines, cells=one))).startswith("a is ahead of softmax: ")


def test_a_head_that_was_run_alone_is_not_called_the_best() -> None:
    assert verdict(judge(table({"a": cell(7.45)}))).startswith("a was run alone")


def test_nothing_finished_and_no_paper_number_still_gives_a_report() -> None:
    mine = Table("Empty", "ES", "θ*", ("0.1",), ("a", "b"), (Column("es", "ES", 3),), {}, reference_line="optimal")
    assert judge(mine).disagreements == () and verdict(judge(mine)) == "No final run is finished yet."
    for text in (page(report(mine, provenance={})), text_of(report(mine, provenance={}))):
        assert "No final run is finished yet." in text and "Empty" not in text
    assert "No verdict" in verdict(judge(replace(mine, cells={("0.1", "a", "es"): Cell((1.0,))})))


def test_what_is_set_aside_says_so_first() -> None:
    mine = report(table({"a": cell(7.45)}), provenance={"set aside": "its rates are too high."})
    for text in (text_of(mine), page(mine)):
        assert "Set aside: its rates are too high." in text
        assert text.index("Set aside") < text.index("a was run alone")


def test_where_a_study_went_on_is_told() -> None:
    mine = report(
        table({"a": cell(7.45)}), provenance={"commit": "abc", "continued with": "command catnat vae --seeds 9"}
    )
    assert "commit abc; continued with command catnat vae --seeds 9; provenance.json" in text_of(mine)
    assert "command catnat vae --seeds 9" in page(mine)


def test_without_a_paper_to_compare_with_nothing_is_said_of_it() -> None:
    cells = {line: Cell(values(mean)) for line, mean in (("a", 1.0), ("b", 2.0))}
    mine = table(cells)
    texts = [text_of(report(mine)), shown(mine), page(report(mine)).split("<h2>Our numbers</h2>")[1]]
    assert all("paper" not in text and "isagree" not in text for text in texts)
    assert "**1.000" in texts[0] and "**2.000" not in texts[0]


def test_other_numbers_of_seeds_are_told() -> None:
    mine = table({"a": Cell(values(7.4)[:3], 7.4, 0.01, True), "b": cell(9.0)})
    assert "Our means are over 3, 10 seeds, the paper's over 10." in judge(mine).notes


def test_a_table_refuses_what_it_could_not_show() -> None:
    with pytest.raises(UserError, match=r"of the table; got \('0.2', 'a', 'es'\)"):
        table({"a": cell(1.0)}, cells={("0.2", "a", "es"): cell(1.0)})
    with pytest.raises(UserError, match="groups must hold at least one value, each once"):
        table({"a": cell(1.0)}, groups=("0.1", "0.1"))
    with pytest.raises(UserError, match="rows must hold at least one value, each once"):
        table({"a": cell(1.0)}, reference_line="a")


# --- the terminal and Markdown


def test_the_terminal_table_fits_and_says_it_all() -> None:
    mine = large()
    text = shown(mine)
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    numbers = [len(re.findall(r"± \d", found)) for found in (text, shown(mine, width=500))]
    assert numbers == [2 * 5 * 5 * 4] * 2  # none was wrapped or lost
    assert text.count("Score 3, ours") == 1


def test_a_table_of_many_measures_fits_too() -> None:
    columns = tuple(Column(f"c{i}", f"A long heading {i}", 4) for i in range(9))
    cells = {("0.1", line, column.key): cell(7.4) for line in LINES for column in columns}
    text = shown(Table("Wide", "score", "θ*", ("0.1",), LINES, columns, cells))
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    assert len(re.findall(r"± \d", text)) == 2 * 4 * 9 and all(column.heading in text for column in columns)


def test_markdown_tables_are_regular_and_escape_marks() -> None:
    mine = table({HOSTILE: cell(7.4), "b": cell(9.0)})
    text = text_of(report(mine))
    rows = [re.split(r"(?<!\\)\|", line) for line in text.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {6, 5}  # the numbers and the comparisons
    assert "\\<b\\>\\&" in text and "\\*x\\*" in text
