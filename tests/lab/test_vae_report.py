"""The VAE's report: every number stands in its place beside the paper's, and what went astray is named."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from scipy import stats

from catnat_lab.experiment import Finished, Results
from catnat_lab.report.page import as_csv
from catnat_lab.report.table import judge, verdict
from catnat_lab.vae.report import curves_of, figures_of, paper_of, remarks_of, summary_of, tables_of
from catnat_lab.vae.study import preset, sizes

HEADS = ("softmax", "catnat-paper")
SIGMOID = ("catnat-sigmoid", "catnat-paper")
Made = dict[str, float]


def place(data: str, cell: str, head: str, seed: int) -> float:
    """A number that no other run has."""
    n, k = sizes(cell)
    return 1000 * n + 10 * k + len(head) / 100 + 0.1 * seed + (0.5 if data == "binary" else 0)


def unlike_any(data: str, cell: str, head: str, seed: int) -> Made:
    return {"nll": place(data, cell, head, seed), "kl": 10.0}


def results(
    cells: tuple[str, ...],
    metrics: Callable[[str, str, str, int], Made] = unlike_any,
    heads: tuple[str, ...] = HEADS,
) -> Results:
    """A finished study with three seeds."""
    settings = preset("paper", "adam").as_dict() | {"cells": list(cells), "searched": [cells[0]], "heads": list(heads)}
    curve = {"step": [500.0, 1000.0], "train": [9.0, 8.0], "validation": [9.5, 8.5], "dead": [0.25, 0.75]}

    def finished(data: str, cell: str, head: str, seed: int) -> Finished:
        config = {"stage": "final", "rate": 0.002, "seed": seed}
        return Finished(1.0, metrics(data, cell, head, seed), {"curve": curve}, config)

    places = [(data, cell, head) for data in settings["data"] for cell in cells for head in heads]
    trials = {where: [finished(*where, seed) for seed in (3, 1, 2)] for where in places}
    return Results(settings | {"source": "test digits"}, trials, {})


@pytest.mark.parametrize(
    ("cells", "grid"),
    [
        (("10x8", "20x8", "10x16", "20x16"), True),
        (("20x16", "10x32", "30x8"), False),
        (("10x8",), False),
        (("20x8", "10x8"), False),
    ],
)
def test_every_number_stands_in_its_place(cells: tuple[str, ...], grid: bool) -> None:
    found = results(cells)
    (table,) = tables_of(found)
    assert (table.group_name == "N") == grid
    assert len(table.groups) * len(table.columns) == 2 * len(cells)  # no place stays empty
    paper = paper_of("adam")
    for data in ("grey", "binary"):
        for cell in cells:
            n, k = map(str, sizes(cell))
            column = next(c for c in table.columns if c.heading == (f"{data}, K = {k}" if grid else data))
            for head in HEADS:
                shown = table.cell(n if grid else f"{n} x {k}", head, column)
                assert shown.values == tuple(place(data, cell, head, seed) for seed in (1, 2, 3))
                assert (shown.paper_mean, shown.paper_std, shown.paper_bold) == paper[data, cell, head]


def test_groups_and_columns_of_a_grid_are_in_order() -> None:
    (table,) = tables_of(results(("20x16", "10x16", "20x8", "10x8")))
    assert table.groups == ("10", "20")
    assert [column.heading for column in table.columns][:2] == ["grey, K = 8", "grey, K = 16"]


def test_the_verdict_is_over_all_cells_and_every_line_is_tested_against_softmax() -> None:
    (table,) = tables_of(results(("10x8", "20x8", "10x16", "20x16"), heads=("sparsemax", *HEADS)))
    judgement = judge(table)
    assert verdict(judgement) == "No difference from softmax is seen."
    assert len(judgement.against) == 2 * 8


def test_runs_astray_are_named_with_what_became_of_them() -> None:
    def metrics(data: str, cell: str, head: str, seed: int) -> Made:
        astray = {
            ("grey", "softmax", 1): (206.0, 0.0),
            ("binary", "catnat-paper", 1): (240.0, 10 * math.log(8)),
            ("binary", "catnat-paper", 2): (math.nan, 0.0),
            ("binary", "catnat-paper", 3): (207.0, 0.5),
        }
        nll, kl = astray.get((data, head, seed), (100.0 + seed, 12.0))
        return {"nll": nll, "kl": kl}

    (told,) = [text for text in remarks_of(results(("10x8",), metrics)) if "behind the best" in text]
    assert "softmax grey 10x8, 1 of 3 (KL at most 20.8): 206.0 with KL 0.0. " in told
    # all seeds of a head may be lost
    assert "catnat-paper binary 10x8, 2 of 3 (KL at most 20.8): 240.0 with KL 20.8, 207.0 with KL 0.5." in told
    assert "catnat-paper grey" not in told


def test_the_worse_side_is_astray_where_higher_is_better() -> None:
    def metrics(data: str, cell: str, head: str, seed: int) -> Made:
        return {"nll": 1.0, "kl": 5.0, "elbo": 1.0, "elbo_paper": -150.0 if (head, seed) == ("softmax", 2) else -90.0}

    found = results(("10x8",), metrics)
    found.settings["table"] = "mlp"
    (told,) = [text for text in remarks_of(found) if "behind the best" in text]
    assert "softmax grey 10x8, 1 of 3 (KL at most 20.8): -150.0 with KL 5.0. " in told
    assert "catnat" not in told


def test_the_papers_activation_and_the_sigmoid_are_compared_by_cells() -> None:
    def metrics(data: str, cell: str, head: str, seed: int) -> Made:
        gap = {"10x8": 1.0, "10x16": 2.0}[cell] + (0.5 if data == "binary" else 0)
        return {"nll": 100.0 + seed + (gap if head == "catnat-paper" else 0), "kl": 9.0}

    (told,) = [
        text for text in remarks_of(results(("10x8", "10x16"), metrics, SIGMOID)) if "minus catnat-sigmoid" in text
    ]
    p = stats.ttest_1samp([1.0, 2.0, 1.5, 2.5], 0.0).pvalue
    assert told.endswith(f"means of 4 cells: +1.75 on average, +1.00 to +2.50 (t-test over the cells, p = {p:.2g}).")


@pytest.mark.parametrize("widen", [0, 2])
def test_a_grid_that_may_be_widened_is_told(widen: int) -> None:
    found = results(("10x8",))
    found.settings["widen"] = widen
    assert ("widened" in summary_of(found)) == bool(widen)


def test_curves_are_written_by_seed() -> None:
    rows = list(csv.DictReader(as_csv(curves_of(results(("10x8",)))).splitlines()))
    assert len(rows) == 2 * 2 * 3 * 2  # data, heads, seeds, points
    expected = {"data": "grey", "variables": "10", "classes": "8", "head": "softmax", "rate": "0.002", "seed": "1"}
    measured = {"step": "1000", "minus_elbo_train": "8", "minus_elbo_validation": "8.5"}
    assert rows[1] == expected | measured | {"outside": ""}  # softmax has no range
    assert next(row for row in rows if row["head"] == "catnat-paper")["outside"] == "0.25"
    rows = list(csv.DictReader(as_csv(curves_of(results(("10x8",), heads=("catnat-sigmoid", "catnat")))).splitlines()))
    assert {row["head"]: row["outside"] for row in rows[::2]} == {"catnat-sigmoid": "", "catnat": "0.25"}


def test_nodes_outside_the_range_are_told_of_the_heads_that_have_one() -> None:
    made = results(("10x8",), heads=("softmax", "catnat", "catnat-sigmoid", "catnat-paper"))
    told = next(text for text in remarks_of(made) if text.startswith("Nodes outside"))
    assert told.endswith("training: catnat 75.0 to 75.0%, catnat-paper 75.0 to 75.0%.")
    curves, outside = (each.figure for each in figures_of(made, Path()))
    drawn = [{line.get_label() for line in figure.axes[0].lines} for figure in (curves, outside)]
    assert drawn == [set(made.settings["heads"]), {"catnat", "catnat-paper"}]
