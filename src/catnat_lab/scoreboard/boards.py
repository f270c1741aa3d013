"""The paper's tables with our runs in them, read from the files that every experiment publishes.

`values.csv` has the final scores, `curves.csv` how long runs were trained, `provenance.json` the command.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

from catnat_lab.errors import UserError
from catnat_lab.files import read as read_text
from catnat_lab.gsl import presets as graphs
from catnat_lab.gsl import report as gsl
from catnat_lab.heads import PAPER_HEADS
from catnat_lab.report.page import paper_rows, printed
from catnat_lab.report.table import BASELINE, Cell, Column, Judgement, Key, Table, judge
from catnat_lab.rl.report import PAPER_SEEDS
from catnat_lab.rl.settings import MINATAR, PAPER_STEPS
from catnat_lab.stats import ALPHA, welch_from_summaries
from catnat_lab.vae import report as vae
from catnat_lab.vae.presets import PAPER, PAPER_CELLS

GAMES = {  # by name, a board's title and digits of a score
    "atari": ("PPO on Atari: score", 0),
    "atari-long": ("PPO on Atari, at the paper's length: score", 0),
    "minatar": ("PPO on MinAtar, not in the paper: score", 1),
}
HEADS = (*PAPER_HEADS, "catnat")  # the last is the library's default
FALLING = 0.2  # nats in the last tenth of training: a mean that falls by more is not at its end
Row = dict[str, str]
Points = dict[Key, dict[int, list[float]]]  # by place and step, a value for every seed; a final value's step is 0
Paper = Mapping[Key, tuple[float, float, bool]]


@dataclass(frozen=True)
class Board:
    """One table: the paper's numbers and ours, and how long ours were trained."""

    name: str
    table: Table
    lengths: dict[Key, int]
    falls: dict[Key, float]  # of the mean of minus the bound in the last tenth of training
    paper_length: int = 0  # 0: the paper does not say
    unit: str = "steps"
    far: float = 0.0  # a run that ends further behind the best one of its cell is lost; 0: none counts so
    left_out: str = ""  # runs that are published and do not count here, and why, as provenance.json says it

    @cached_property
    def judgement(self) -> Judgement:
        return judge(self.table)

    def mark(self, key: Key) -> str:
        """What `page.CELL_RULE` says; the baseline has no mark."""
        found, theirs = self.judgement.against.get(key), self.paper_gap(key)
        if found is None:
            return "" if key[1] == BASELINE else "not run"
        if found.p >= ALPHA:
            return "tied"
        if theirs is None or theirs[1] >= ALPHA:
            lower = next(column.lower_is_better for column in self.table.columns if column.key == key[2])
            return "ahead" if (found.difference < 0) == lower else "behind"
        return "agree" if found.difference * theirs[0] > 0 else "disagree"

    def paper_gap(self, key: Key) -> tuple[float, float] | None:
        """The paper's mean minus its softmax's, and p by Welch's test of what it prints, not corrected."""
        ours, base = (self.table.paper_summary(self.table.cells[one]) for one in _beside(key))
        return None if ours is None or base is None else (ours.mean - base.mean, welch_from_summaries(ours, base))

    def is_short(self, key: Key) -> bool:
        """Whether it, or softmax beside it, was trained for less than in the paper, or with fewer seeds."""
        seeds = min(len(self.table.cells[one].values) for one in _beside(key))
        length = min(self.lengths.get(one, self.paper_length) for one in _beside(key))
        return 0 < seeds < self.table.paper_count or length < self.paper_length

    @property
    def told(self) -> str:
        """How long ours were trained, of what the paper has."""
        seeds, paper = [len(cell.values) for cell in self.table.cells.values() if cell.values], self.table.paper_count
        told = [f"{_range(seeds)}{f' of {paper}' if paper else ''} seeds"] if seeds else ["not run"]
        if self.lengths:
            of = f" of {self.paper_length:,}" if self.paper_length else ""
            told.append(f"{_range(self.lengths.values())}{of} {self.unit}")
        if self.falls:
            most = f"at most by {max(self.falls.values()):.1f}"
            end = f"in the last tenth the negative validation bound fell by more than {FALLING} nats in"
            told.append(f"{end} {self.falling(self.falls)}, {most}")
        return ", ".join(told)

    def falling(self, keys: Iterable[Key]) -> str:
        """How many of these means were not at their end."""
        falls = [self.falls[key] for key in keys if key in self.falls]
        return f"{sum(fall > FALLING for fall in falls)} of {len(falls)} means"

    @property
    def lost(self) -> dict[str, str]:
        """By head, how many of its runs are lost, of how many; heads that lost none are left out."""
        counts: dict[str, list[bool]] = {}
        for group, column in self.table.contests if self.far else ():
            runs = {line: self.table.cells[group, line, column.key].values for line in self.table.lines}
            known = [value for values in runs.values() for value in values if math.isfinite(value)]
            best = (min if column.lower_is_better else max)(known, default=math.nan)
            for line, values in runs.items():
                counts.setdefault(line, []).extend(not abs(value - best) <= self.far for value in values)
        return {line: f"{sum(lost)} of {len(lost)}" for line, lost in counts.items() if any(lost)}


def _beside(key: Key) -> tuple[Key, Key]:
    return key, (key[0], BASELINE, key[2])


def _range(numbers: Iterable[int]) -> str:
    every = sorted(numbers)
    return " to ".join(dict.fromkeys(f"{number:,}" for number in (every[0], every[-1])))


def read(results: Path) -> dict[str, Board]:
    """By name, all of a folder of results. What is not there is not run."""
    boards = {}
    for name, (folder, of) in BOARDS.items():
        try:
            about = results / folder / "provenance.json"
            said = json.loads(read_text(about)) if about.exists() else {}
            boards[name] = replace(of(results / folder, name), left_out=said.get("left out", ""))
        except (OSError, ValueError, KeyError, csv.Error) as problem:
            raise UserError(f"{results / folder} does not hold what an experiment writes: {problem!r}") from None
    if not any(cell.values for board in boards.values() for cell in board.table.cells.values()):
        raise UserError(f"{results} holds no results: no final run in {', '.join(f for f, _ in BOARDS.values())}")
    return boards


def _graphs(folder: Path, name: str) -> Board:
    def entries(row: Row) -> dict[Key, str]:
        return {(row["theta_star"], row["head"], column.key): row[column.key] for column in gsl.COLUMNS}

    plan, title = graphs.PAPER, "Graph structure learning, by θ*: lower is better"
    groups, values = tuple(f"{theta:g}" for theta in plan.thetas), _read(folder / "values.csv", entries)
    table, lengths = _table(title, "θ*", groups, gsl.COLUMNS, values, gsl.paper_of(), plan.seeds), {}
    if values:  # it has no curves.csv: the command says how long
        command = json.loads(read_text(folder / "provenance.json"))["command"]
        given = dict(re.findall(r"--(preset|epochs) (\S+)", command))
        lengths = dict.fromkeys(values, int(given.get("epochs") or graphs.preset(given.get("preset", "quick")).epochs))
    return Board(name, table, lengths, {}, plan.epochs, "epochs")


def _autoencoders(folder: Path, name: str) -> Board:
    measure, told, lower = vae.MEASURES[name][0]

    def entries(row: Row) -> dict[Key, str]:
        size = f"{row['variables']}x{row['classes']}"
        return {(row["data"], row["head"], size): row[measure if measure in row else "minus_elbo_validation"]}

    paper = {(data, head, size): found for (data, size, head), found in vae.paper_of(name).items()}
    columns = tuple(Column(size, size.replace("x", "×"), 1, lower) for size in PAPER_CELLS)
    title = f"{vae.NAMES[name]}: {told.split(',')[0]}, {'lower' if lower else 'higher'} is better"
    values, curves = (_read(folder / file, entries) for file in ("values.csv", "curves.csv"))
    table = _table(title, "digits", PAPER[name].data, columns, values, paper, vae.PAPER_SEEDS)
    lengths = {key: max(points) for key, points in curves.items() if key in table.cells}
    starts = {key: round(0.9 * last) for key, last in lengths.items()}
    known = [key for key, start in starts.items() if start in curves[key]]
    falls = {key: fmean(curves[key][starts[key]]) - fmean(curves[key][lengths[key]]) for key in known}
    return Board(name, table, lengths, falls, PAPER["mlp"].steps if name == "mlp" else 0, far=vae.FAR)


def _games(folder: Path, name: str) -> Board:
    """PPO's on Atari, the paper's; on MinAtar there are ours alone."""

    def entries(row: Row) -> dict[Key, str]:
        return {(row["game"], row["head"], "score"): row["score"]}

    rows = [] if name == "minatar" else paper_rows("rl.csv")
    paper = {(row["game"], row["head"], "score"): printed(row) for row in rows}
    games = tuple(dict.fromkeys(row["game"] for row in rows)) or tuple(MINATAR)
    title, digits = GAMES[name]
    values, curves = (_read(folder / file, entries) for file in ("values.csv", "curves.csv"))
    columns = (Column("score", "score", digits, lower_is_better=False),)
    table = _table(title, "game", games, columns, values, paper, PAPER_SEEDS if rows else 0)
    lengths = {key: max(points) for key, points in curves.items() if key in table.cells}
    return Board(name, table, lengths, {}, PAPER_STEPS if rows else 0)


def _read(path: Path, entries: Callable[[Row], dict[Key, str]]) -> Points:
    """Of the final runs, the values of all seeds; one that is missing counts as that of a run that diverged."""
    found: Points = {}
    for row in csv.DictReader(read_text(path).splitlines()) if path.exists() else ():
        if row.get("stage", "final") == "final" and row.get("rank", "0") in ("", "0"):  # the search's best
            for key, value in entries(row).items():
                found.setdefault(key, {}).setdefault(int(row.get("step", 0)), []).append(float(value or "nan"))
    return found


def _table(
    title: str, by: str, groups: tuple[str, ...], columns: tuple[Column, ...], values: Points, paper: Paper, count: int
) -> Table:
    """Of the paper's shape, with all its cells, and the default's; heads of our own are left out."""
    known = {BASELINE, *HEADS[-2:], *(line for _, line, _ in (*values, *paper))}
    lines = tuple(head for head in HEADS if head in known)
    keys = [(group, line, column.key) for group in groups for line in lines for column in columns]
    cells = {key: Cell(tuple(values.get(key, {}).get(0, ())), *paper.get(key, ())) for key in keys}
    return Table(title, title, by, groups, lines, columns, cells, paper_count=count)


# By name, the folder under results/ and what reads it.
BOARDS: dict[str, tuple[str, Callable[[Path, str], Board]]] = {
    "gsl": ("gsl", _graphs),
    **{name: (f"vae/{name}", _autoencoders) for name in vae.PAPER_FILES},
    "atari": ("rl/atari", _games),
    "atari-long": ("rl/atari-long", _games),
    "minatar": ("rl/minatar-gymnax", _games),
}
