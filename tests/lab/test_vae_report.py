"""The VAE's report: every number stands in its place beside the paper's, and what went astray is named."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable

import pytest

from catnat_lab.report.vae_remarks import remarks_of
from catnat_lab.report.vae_results import Results, curves_csv, paper_table, tables_of
from catnat_lab.store import Finished
from catnat_lab.vae.presets import preset, sizes

HEADS = ("softmax", "catnat-natural")
Made = dict[str, float]


def place(data: str, cell: str, head: str, seed: int) -> float:
    """A number that no other run has."""
    n, k = sizes(cell)
    return 1000 * n + 10 * k + HEADS.index(head) + 0.1 * seed + (0.5 if data == "binary" else 0)


def unlike_any(data: str, cell: str, head: str, seed: int) -> Made:
    return {"nll": place(data, cell, head, seed), "kl": 10.0}


def results(cells: tuple[str, ...], metrics: Callable[[str, str, str, int], Made] = unlike_any) -> Results:
    """A finished study of two heads with three seeds."""
    settings = preset("paper", "adam").as_dict() | {"cells": list(cells), "searched": [cells[0]], "heads": list(HEADS)}
    curve = {"step": [500.0, 1000.0], "train": [9.0, 8.0], "validation": [9.5, 8.5], "dead": [0.25, 0.75]}

    def finished(data: str, cell: str, head: str, seed: int) -> Finished:
        config = {"stage": "final", "rate": 0.002, "seed": seed}
        return Finished(seed, config, 1.0, metrics(data, cell, head, seed), {"curve": curve})

    places = [(data, cell, head) for data in settings["data"] for cell in cells for head in HEADS]
    trials = {where: [finished(*where, seed) for seed in (3, 1, 2)] for where in places}
    return Results(settings, trials, "test digits", {})


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
    paper = paper_table("adam")
    for data in ("grey", "binary"):
        for cell in cells:
            n, k = map(str, sizes(cell))
            column = next(c for c in table.columns if c.heading == (f"{data}, K = {k}" if grid else data))
            for head in HEADS:
                shown = table.cell(n if grid else f"{n} x {k}", head, column)
                assert shown.values == tuple(place(data, cell, head, seed) for seed in (1, 2, 3))
                assert (shown.paper_mean, shown.paper_std, shown.paper_bold) == paper[n, head, f"{data}-{k}"]


def test_groups_and_columns_of_a_grid_are_in_order() -> None:
    (table,) = tables_of(results(("20x16", "10x16", "20x8", "10x8")))
    assert table.groups == ("10", "20")
    assert [column.heading for column in table.columns][:2] == ["grey, K = 8", "grey, K = 16"]


def test_runs_astray_are_named_with_what_became_of_them() -> None:
    def metrics(data: str, cell: str, head: str, seed: int) -> Made:
        astray = {("grey", "softmax", 1): (206.0, 0.0), ("binary", "catnat-natural", 3): (240.0, 10 * math.log(8))}
        nll, kl = astray.get((data, head, seed), (100.0 + seed, 12.0))
        return {"nll": nll, "kl": kl}

    (told,) = [text for text in remarks_of(results(("10x8",), metrics)) if "astray" in text]
    assert "softmax grey 10x8: 206.0 (its posterior is the prior) beside 103.0" in told
    assert "catnat-natural binary 10x8: 240.0 (all of its posterior on one code) beside 102.0" in told
    assert "catnat-natural grey" not in told


def test_curves_are_written_by_seed() -> None:
    rows = list(csv.DictReader(curves_csv(results(("10x8",))).splitlines()))
    assert len(rows) == 2 * 2 * 3 * 2  # data, heads, seeds, points
    expected = {"data": "grey", "variables": "10", "classes": "8", "head": "softmax", "rate": "0.002", "seed": "1"}
    assert rows[1] == expected | {"step": "1000", "train": "8", "validation": "8.5", "dead": "0.75"}
