"""The scoreboard: every mark by its rule, and pages that say what the runs say."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from typing import Any

import pytest

from catnat_lab.report.table import Cell, Column, Table
from tests.pages import program

scoreboard: Any = program("scoreboard")
FILES = ("scoreboard.md", "scoreboard.csv")
SOFTMAX, SIGMOID, NATURAL = "softmax", "catnat-sigmoid", "catnat-paper"
PLACE = ("g", NATURAL, "c")


def around(mean: float) -> tuple[float, ...]:
    return tuple(mean + 0.1 * step for step in (-2, -1, 0, 1, 2))


def board(natural: Cell, softmax: Cell, *, lower: bool = True, columns: int = 1, **more: object) -> Any:
    """A table of one group, with the same two lines in every column."""
    names = ["c", *(f"c{place}" for place in range(1, columns))]
    cells = {("g", line, name): cell for name in names for line, cell in ((SOFTMAX, softmax), (NATURAL, natural))}
    every = tuple(Column(name, name, 1, lower) for name in names)
    table = Table("a table", "score", "group", ("g",), (SOFTMAX, NATURAL), every, cells, paper_count=5)
    return replace(scoreboard.Board("toy", table, {}, {}), **more)


BASE = Cell(around(10), 10.0, 0.1)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(
    ("ours", "paper", "mark"),
    [
        (around(8), 9.0, "agree"),
        (around(12), 11.0, "agree"),
        (around(10.01), 9.0, "tied"),
        (around(12), 9.0, "disagree"),
        ((), 9.0, "not run"),
        ((8.0,), 9.0, "not run"),
        ((*around(8), float("nan")), 9.0, "not run"),
    ],
)
def test_the_mark_of_a_cell_of_the_paper(ours, paper, mark, lower):
    found = board(Cell(ours, paper, 0.1), BASE, lower=lower)
    assert found.mark(PLACE) == mark
    assert found.mark(("g", SOFTMAX, "c")) == ""


@pytest.mark.parametrize("paper", [(), (10.0, 0.1), (9.95, 0.1), (10.05, 0.1)])
@pytest.mark.parametrize(
    ("ours", "lower", "mark"),
    [(8, True, "ahead"), (8, False, "behind"), (12, True, "behind"), (12, False, "ahead"), (10.01, True, "tied")],
)
def test_the_mark_of_a_cell_in_which_the_paper_tells_nothing_apart(ours, lower, mark, paper):
    assert board(Cell(around(ours), *paper), BASE, lower=lower).mark(PLACE) == mark


def test_marks_are_corrected_for_the_size_of_the_table():
    near = Cell(around(9.76), 9.0, 0.1)
    assert board(near, BASE).mark(PLACE) == "agree"
    assert board(near, BASE, columns=20).mark(PLACE) == "tied"


def test_what_is_shorter_than_the_papers():
    natural = Cell(around(8), 9.0, 0.1)
    assert not board(natural, BASE).is_short(PLACE)
    assert board(replace(natural, values=natural.values[:4]), BASE).is_short(PLACE)
    assert board(natural, replace(BASE, values=BASE.values[:4])).is_short(PLACE)  # softmax's seeds count too
    for length, short in ((99, True), (100, False)):
        assert board(natural, BASE, lengths={PLACE: length}, paper_length=100).is_short(PLACE) is short
    told = board(natural, BASE, lengths={PLACE: 99}, paper_length=100, falls={PLACE: 0.3, ("g", SOFTMAX, "c"): 0.1})
    assert told.told == (
        "5 of 5 seeds, 99 of 100 steps, in the last tenth the negative validation bound fell by more than 0.2 nats "
        "in 1 of 2 means, at most by 0.3"
    )
    assert board(natural, BASE, falls={PLACE: 0.1}).told.endswith("nats in 0 of 1 means, at most by 0.1")


@pytest.mark.parametrize("lower", [True, False])
def test_lost_runs_are_counted_by_head(lower):
    worse = 20.0 if lower else 0.0
    natural = Cell((10.0, worse, float("nan")), 9.0, 0.1)
    softmax = Cell((10.0, 11.0, 9.0), 9.0, 0.1)
    both = board(natural, softmax, lower=lower, columns=2)
    assert replace(both, far=5.0).lost == {NATURAL: "4 of 6"}
    assert replace(both, far=15.0).lost == {NATURAL: "2 of 6"}  # a run that diverged is always lost
    assert both.lost == {}


@pytest.mark.parametrize(
    ("counts", "mark"),
    [
        ((9, 6, 0, 10, 10), "confirmed"),
        ((8, 6, 0, 10, 10), "not confirmed"),  # its mean is the worse one too often
        ((10, 5, 0, 10, 10), "not confirmed"),  # too often not significant
        ((9, 8, 1, 10, 10), "not confirmed"),
        ((2, 1, 2, 10, 10), "not confirmed"),
        ((0, 0, 1, 10, 10), "not confirmed"),  # one test alone contradicts nothing
        ((1, 0, 6, 10, 10), "contradicted"),
        ((1, 1, 6, 10, 10), "not confirmed"),
        ((5, 5, 0, 5, 10), "confirmed"),
        ((4, 4, 0, 4, 10), "not tested yet"),
        ((0, 0, 0, 0, 0), "not tested yet"),
    ],
)
def test_the_mark_of_a_claim(counts, mark):
    assert scoreboard.verdict(*counts) == mark


@pytest.mark.parametrize(
    ("ours", "lower", "mark", "statistic"),
    [
        (8, True, "confirmed", "better mean in 3, ahead in 3, behind in 0 of 3 comparisons"),
        (8, False, "contradicted", "better mean in 0, ahead in 0, behind in 3 of 3 comparisons"),
        (9.99, True, "not confirmed", "better mean in 3, ahead in 0, behind in 0 of 3 comparisons"),
    ],
)
def test_a_claim_is_counted_over_its_cells(ours, lower, mark, statistic):
    boards = {"toy": board(Cell(around(ours), 9.0, 0.1), BASE, lower=lower, columns=3)}
    assert scoreboard.better("toy", NATURAL, SOFTMAX)(boards) == (mark, statistic)
    assert scoreboard.better("toy", NATURAL, SOFTMAX, "c1 c2")(boards)[0] == mark
    told = {"toy": replace(boards["toy"], falls={PLACE: 0.3, ("g", SOFTMAX, "c1"): 0.1}, far=0.05)}
    found = scoreboard.better("toy", NATURAL, SOFTMAX)(told).statistic
    assert found.startswith(f"{statistic}; lost runs: ") and found.endswith(" of 15; still falling: 1 of 2 means")
    assert scoreboard.better("toy", NATURAL, SOFTMAX, "c1 c2")(told).statistic.endswith("; still falling: 0 of 1 means")
    short = {"toy": replace(boards["toy"], lengths={("g", NATURAL, "c"): 9, ("g", NATURAL, "c1"): 9}, paper_length=10)}
    found = scoreboard.better("toy", NATURAL, SOFTMAX)(short)
    assert found.mark == "not tested yet" and "2 of 3 not run" in found.statistic


@pytest.mark.parametrize("groups", ["g", "gh"])
@pytest.mark.parametrize(
    ("gaps", "mark"),
    [
        ((-0.1, 0.1, -0.2), "confirmed"),
        ((0.1, -0.1, 0.2), "not confirmed"),
        ((0.1, 1.0, 0.5), "not confirmed"),  # p is 0.2; it would be 0.02 if both groups of a size counted
        ((0.5, 0.6, 0.4), "contradicted"),
    ],
)
def test_natural_and_sigmoid_are_level_or_not(gaps, mark, groups):
    sizes = dict(zip("abc", gaps, strict=True))
    cells = {(group, SIGMOID, size): Cell(around(10)) for group in groups for size in sizes}
    cells |= {(group, NATURAL, size): Cell(around(10 + gap)) for group in groups for size, gap in sizes.items()}
    columns = tuple(Column(size, size, 1) for size in sizes)
    table = Table("a table", "score", "group", tuple(groups), (SIGMOID, NATURAL), columns, cells)
    assert scoreboard.level({"adam": scoreboard.Board("adam", table, {}, {})}).mark == mark


def test_the_theory_holds_and_would_be_seen_to_fail(monkeypatch):
    for judge in (scoreboard.dense, scoreboard.diagonal, scoreboard.constant):
        assert judge({}).mark == "confirmed"
    softmax, sigmoid = scoreboard._fisher(None), scoreboard._fisher(scoreboard.catnat.Sigmoid())
    monkeypatch.setattr(scoreboard, "_fisher", lambda activation: softmax)
    assert scoreboard.diagonal({}).mark == "contradicted"
    monkeypatch.setattr(scoreboard, "_fisher", lambda activation: sigmoid)
    assert scoreboard.dense({}).mark == scoreboard.constant({}).mark == "contradicted"


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path):
    """What the scoreboard reads of the published results."""
    for folder, _ in scoreboard.BOARDS.values():
        (tmp_path / folder).mkdir(parents=True)
        for name in ("values.csv", "curves.csv", "provenance.json"):
            if (scoreboard.RESULTS / folder / name).exists():
                shutil.copy(scoreboard.RESULTS / folder / name, tmp_path / folder)
    return tmp_path


def test_the_published_scoreboard_is_what_the_results_say_and_has_every_cell_of_the_paper(tmp_path):
    scoreboard.write_scoreboard(scoreboard.RESULTS, tmp_path)
    for name in FILES:
        same = (tmp_path / name).read_text() == (scoreboard.RESULTS / name).read_text()
        assert same, f"results/{name} is older than the results: run python docs/scoreboard.py"
    with (tmp_path / "scoreboard.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sum(row["paper"] != "" for row in rows) == 80 + 72 + 72 + 27 + 4 + 4


def test_a_cell_shows_our_mean_its_mark_and_the_papers():
    shown = board(Cell(around(8), 9.0, 0.1), BASE)
    (column,) = shown.table.columns
    assert scoreboard._cell(shown, PLACE, column) == "8.0 ✓ (9.0)"
    assert scoreboard._cell(shown, ("g", SOFTMAX, "c"), column) == "10.0 (10.0)"
    short = replace(shown, lengths={PLACE: 9}, paper_length=10)
    assert scoreboard._cell(short, PLACE, column) == "8.0° ✓ (9.0)"
    unsure = board(Cell(around(8), 9.99, 0.1), BASE)
    assert scoreboard._cell(unsure, PLACE, column) == "8.0 ▲ (_10.0_)"
    assert scoreboard._cell(board(Cell((), 9.0, 0.1), BASE), PLACE, column) == "(9.0)"


def test_it_follows_the_results_with_new_heads_and_games(copied):
    path = copied / "rl" / "minatar-gymnax" / "values.csv"
    kept = [line for line in path.read_text().splitlines() if not line.startswith(("Asterix", "Freeway"))]
    runs = [f"Asterix,{head},final,0.001,{s},{s}" for head in (SOFTMAX, "catnat", SIGMOID) for s in (1, 2)]
    path.write_text("\n".join([*kept, *runs, ""]))
    found = scoreboard.read(copied)["minatar"]
    assert found.mark(("Asterix", "catnat", "score")) == found.mark(("Asterix", SIGMOID, "score")) == "tied"
    assert found.mark(("Freeway", "catnat", "score")) == "not run"
