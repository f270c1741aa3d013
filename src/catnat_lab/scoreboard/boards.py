"""The paper's tables with our runs in them, read from the files that every experiment publishes.

`values.csv` has the final scores, `curves.csv` how long runs were trained, `provenance.json` the command.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from catnat_lab.errors import UserError
from catnat_lab.gsl import presets as graphs
from catnat_lab.gsl.report import COLUMNS
from catnat_lab.heads import PAPER_HEADS
from catnat_lab.report.page import paper_rows, printed
from catnat_lab.report.table import ALPHA, BASELINE, Cell, Column, Judgement, Key, Table, judge
from catnat_lab.rl.report import PAPER_SEEDS
from catnat_lab.rl.settings import MINATAR, PAPER_STEPS
from catnat_lab.stats import welch_from_summaries
from catnat_lab.vae import report as vae
from catnat_lab.vae.presets import PAPER, PAPER_CELLS

HEADS = (*PAPER_HEADS, "catnat")  # the last is the library's default
FALLING = 0.2  # nats in the last tenth of training: a mean that falls by more is not at its end
Row = dict[str, str]


@dataclass(frozen=True)
class Board:
    """One table: the paper's numbers and ours, and how long ours were trained."""

    name: str
    table: Table
    lengths: dict[Key, int]
    falls: dict[Key, float]  # of the mean of minus the bound in the last tenth of training
    paper_length: int = 0  # 0: the paper does not say
    unit: str = "steps"

    @cached_property
    def judgement(self) -> Judgement:
        return judge(self.table)

    def mark(self, key: Key) -> str:
        """What `page.CELL_RULE` says; the baseline has no mark."""
        found, theirs = self.judgement.against.get(key), self.paper_gap(key)
        if key[1] == BASELINE:
            return ""
        if found is None:
            return "not run"
        if found.p >= ALPHA:
            return "tied"
        if theirs is None:
            lower = next(column.lower_is_better for column in self.table.columns if column.key == key[2])
            return "ahead" if (found.difference < 0) == lower else "behind"
        return "agree" if found.difference * theirs[0] > 0 else "disagree"

    def paper_gap(self, key: Key) -> tuple[float, float] | None:
        """The paper's mean minus its softmax's, and p by Welch's test of what it prints, not corrected."""
        ours, base = (self.table.paper_summary(cell) for cell in self._beside(key))
        return None if ours is None or base is None else (ours.mean - base.mean, welch_from_summaries(ours, base))

    def is_short(self, key: Key) -> bool:
        """Whether it, or softmax beside it, was trained for less than in the paper, or with fewer seeds."""
        seeds = min(len(cell.values) for cell in self._beside(key))
        lengths = [self.lengths.get((key[0], line, key[2]), self.paper_length) for line in (key[1], BASELINE)]
        return 0 < seeds < self.table.paper_count or min(lengths) < self.paper_length

    def _beside(self, key: Key) -> tuple[Cell, Cell]:
        return self.table.cells[key], self.table.cells[key[0], BASELINE, key[2]]

    @property
    def told(self) -> str:
        """How long ours were trained, of what the paper has."""
        seeds, paper = [len(cell.values) for cell in self.table.cells.values() if cell.values], self.table.paper_count
        told = [f"{_range(seeds)}{f' of {paper}' if paper else ''} seeds"] if seeds else ["not run"]
        if self.lengths:
            of = f" of {self.paper_length:,}" if self.paper_length else ""
            told.append(f"{_range(self.lengths.values())}{of} {self.unit}")
        if self.falls:
            still = f"{sum(fall > FALLING for fall in self.falls.values())} of {len(self.falls)} means"
            most = f"at most by {max(self.falls.values()):.1f}"
            told.append(f"in the last tenth {still} still fell by more than {FALLING} nats, {most}")
        return ", ".join(told)


def _range(numbers: Iterable[int]) -> str:
    every = sorted(set(numbers))
    return " to ".join(f"{number:,}" for number in dict.fromkeys((every[0], every[-1])))


def read(results: Path) -> dict[str, Board]:
    """By name, all of a folder of results. What is not there is not run."""
    boards = {}
    for name, (folder, of) in BOARDS.items():
        try:
            boards[name] = of(results / folder, name)
        except (OSError, ValueError, KeyError, csv.Error) as problem:
            raise UserError(f"{results / folder} does not hold what an experiment writes: {problem!r}") from None
    if not any(cell.values for board in boards.values() for cell in board.table.cells.values()):
        raise UserError(f"{results} holds no results: no final run in {', '.join(f for f, _ in BOARDS.values())}")
    return boards


def _graphs(folder: Path, name: str) -> Board:
    def entries(row: Row) -> list[tuple[Key, str]]:
        return [((row["theta_star"], row["head"], c.key), row[c.key]) for c in COLUMNS]

    paper = {
        (f"{float(row['theta_star']):g}", row["head"], c.key): printed(row, f"{c.key.removesuffix('_paper')}_")
        for row in paper_rows("gsl.csv")
        for c in COLUMNS
    }
    values, lengths, plan = _values(folder, entries), {}, graphs.PAPER
    if values:  # it has no curves.csv: the command says how long
        command = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))["command"]
        given = {key: found[1] for key in ("preset", "epochs") if (found := re.search(rf"--{key} (\S+)", command))}
        lengths = dict.fromkeys(values, int(given.get("epochs") or graphs.preset(given.get("preset", "quick")).epochs))
    groups = tuple(f"{theta:g}" for theta in plan.thetas)
    table = _table(
        "Graph structure learning, by θ*: lower is better", "θ*", groups, COLUMNS, _cells(values, paper), plan.seeds
    )
    return Board(name, table, lengths, {}, plan.epochs, "epochs")


def _autoencoders(folder: Path, name: str) -> Board:
    measure, told, lower = vae.MEASURES[name][0]

    def place(row: Row) -> Key:
        return row["data"], row["head"], f"{row['variables']}x{row['classes']}"

    paper = {(data, head, cell): found for (data, cell, head), found in vae.paper_of(name).items()}
    values = _values(folder, lambda row: [(place(row), row[measure])])
    columns = tuple(Column(size, size.replace("x", "×"), 1, lower) for size in PAPER_CELLS)
    title = f"{vae.NAMES[name]}: {told.split(',')[0]}, {'lower' if lower else 'higher'} is better"
    table = _table(title, "digits", PAPER[name].data, columns, _cells(values, paper), vae.PAPER_SEEDS)
    curves = {k: v for k, v in _curves(folder, place, "minus_elbo_validation").items() if k in table.cells}
    falls = {
        key: fmean(points[start]) - fmean(points[last])
        for key, points in curves.items()
        if (start := round(0.9 * (last := max(points)))) in points
    }
    length = PAPER["mlp"].steps if name == "mlp" else 0
    return Board(name, table, {key: max(points) for key, points in curves.items()}, falls, length)


def _games(folder: Path, name: str) -> Board:
    """PPO's on Atari, the paper's; on MinAtar there are ours alone."""

    def place(row: Row) -> Key:
        return row["game"], row["head"], "score"

    rows = paper_rows("rl.csv") if name == "atari" else []
    paper = {(row["game"], row["head"], "score"): printed(row) for row in rows}
    values = _values(folder, lambda row: [(place(row), row["score"])] if row.get("rank", "0") in ("", "0") else [])
    games = tuple(dict.fromkeys(row["game"] for row in rows)) or MINATAR
    title, digits = ("PPO on Atari: score", 0) if rows else ("PPO on MinAtar, not in the paper: score", 1)
    columns = (Column("score", "score", digits, lower_is_better=False),)
    table = _table(title, "game", games, columns, _cells(values, paper), PAPER_SEEDS if rows else 0)
    lengths = {key: max(points) for key, points in _curves(folder, place, "score").items() if key in table.cells}
    return Board(name, table, lengths, {}, PAPER_STEPS if rows else 0)


def _table(
    title: str, by: str, groups: tuple[str, ...], columns: tuple[Column, ...], cells: dict[Key, Cell], count: int
) -> Table:
    """Of the paper's shape, with all its cells, and the default's; heads of our own are left out."""
    lines = tuple(head for head in HEADS if head in {BASELINE, *HEADS[-2:], *(line for _, line, _ in cells)})
    every = {(g, line, c.key): cells.get((g, line, c.key), Cell()) for g in groups for line in lines for c in columns}
    return Table(title, title, by, groups, lines, columns, every, paper_count=count)


def _cells(values: dict[Key, list[float]], paper: Mapping[Key, tuple[float, float, bool]]) -> dict[Key, Cell]:
    return {key: Cell(tuple(values.get(key, ())), *paper.get(key, ())) for key in {*values, *paper}}


def _values(folder: Path, entries: Callable[[Row], list[tuple[Key, str]]]) -> dict[Key, list[float]]:
    """Of the final runs; a value that is missing counts as that of a run that diverged."""
    found: dict[Key, list[float]] = {}
    for row in _rows(folder / "values.csv"):
        for key, value in entries(row) if row["stage"] == "final" else []:
            found.setdefault(key, []).append(float(value or "nan"))
    return found


def _curves(folder: Path, place: Callable[[Row], Key], measure: str) -> dict[Key, dict[int, list[float]]]:
    """By place and step, the measure of every seed."""
    found: dict[Key, dict[int, list[float]]] = {}
    for row in _rows(folder / "curves.csv"):
        found.setdefault(place(row), {}).setdefault(int(row["step"]), []).append(float(row[measure] or "nan"))
    return found


def _rows(path: Path) -> list[Row]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []


# By name, the folder under results/ and what reads it.
BOARDS: dict[str, tuple[str, Callable[[Path, str], Board]]] = {
    "gsl": ("gsl", _graphs),
    **{name: (f"vae/{name}", _autoencoders) for name in vae.PAPER_FILES},
    **{name: (f"rl/{name}", _games) for name in ("atari", "minatar")},
}
