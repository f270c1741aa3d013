"""The paper's tables and claims beside what was measured here: `python docs/scoreboard.py` writes results/scoreboard.*.

Every mark is computed from the files that the experiments publish: `values.csv` has the final scores, `curves.csv` how
long runs were trained, `provenance.json` the command and what was left out.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

import catnat
import catnat.torch as ct
from catnat_lab import figure
from catnat_lab.files import read as read_text
from catnat_lab.files import write
from catnat_lab.gsl import report as gsl
from catnat_lab.gsl import train as graphs
from catnat_lab.heads import PAPER_HEADS
from catnat_lab.report.page import as_csv, paper_rows, printed
from catnat_lab.report.table import BASELINE, Cell, Column, Judgement, Key, Table, escaped, grid, judge
from catnat_lab.rl.games import MINATAR
from catnat_lab.rl.ppo import PAPER_STEPS
from catnat_lab.rl.report import PAPER_SEEDS
from catnat_lab.stats import ALPHA, compare_all, paired, standing
from catnat_lab.vae import report as vae
from catnat_lab.vae.study import PAPER, PAPER_CELLS

RESULTS = Path(__file__).parents[1] / "results"
HEADS = (*PAPER_HEADS, "catnat")  # the last is the library's default
FALLING = 0.2  # nats in the last tenth of training: a mean that falls by more is not at its end
Row = dict[str, str]
Points = dict[Key, dict[int, list[float]]]  # by place and step, a value for every seed; a final value's step is 0

# -- the tables ------------------------------------------------------------------------------------------------------

MARKS = {"agree": "✓", "tied": "=", "disagree": "✗", "not run": "", "ahead": "▲", "behind": "▼"}
CELL_RULE = (
    f"Every head against softmax in the same cell, by Welch's test, p < {ALPHA} after Holm's correction over the "
    "table; runs of a seed are not paired. **agree** ✓, **disagree** ✗: ours differ significantly, and the paper's do "
    "(by Welch's test of the means and deviations it prints, not corrected), in the same direction or not. **ahead** "
    "▲, **behind** ▼: ours are significantly better or worse than softmax, where the paper's do not differ or it has "
    "no number. **tied** =: ours do not differ significantly, which does not show that they are equal. **not run**: no "
    "two runs of it or of softmax, or one diverged. `catnat` is the library's default."
)


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
        """What `CELL_RULE` says; the baseline has no mark."""
        return self.judgement.mark(key) or ""

    def is_short(self, key: Key) -> bool:
        """Whether it, or softmax beside it, was trained for less than in the paper, or with fewer seeds."""
        seeds = min(len(self.table.cells[one].values) for one in _beside(key))
        length = min(self.lengths.get(one, self.paper_length) for one in _beside(key))
        return 0 < seeds < self.table.paper_count or length < self.paper_length

    @property
    def told(self) -> str:
        """How long ours were trained, of what the paper has."""
        seeds, paper = [len(cell.values) for cell in self.table.cells.values() if cell.values], self.table.paper_count
        told = [f"{_range(seeds)}{f' of {paper}' if paper else ''} seeds"]
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
    """By name, all of a folder of results."""
    boards = {}
    for name, (folder, of) in BOARDS.items():
        said = json.loads(read_text(results / folder / "provenance.json"))
        boards[name] = replace(of(results / folder, name), left_out=said.get("left out", ""))
    return boards


def _graphs(folder: Path, name: str) -> Board:
    def entries(row: Row) -> dict[Key, str]:
        return {(row["theta_star"], row["head"], column.key): row[column.key] for column in gsl.COLUMNS}

    plan, values = graphs.PAPER, _read(folder / "values.csv", entries)
    title, groups = "Graph structure learning, by θ*: lower is better", tuple(f"{theta:g}" for theta in plan.thetas)
    table = _table(title, "θ*", groups, gsl.COLUMNS, values, gsl.paper_of(), plan.seeds)
    command = json.loads(read_text(folder / "provenance.json"))["command"]  # it has no curves.csv: this says how long
    given = dict(re.findall(r"--(preset|epochs) (\S+)", command))
    epochs = int(given.get("epochs") or graphs.PRESETS[given.get("preset", "quick")].epochs)
    return Board(name, table, dict.fromkeys(values, epochs), {}, plan.epochs, "epochs")


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


GAMES = {  # by name, a board's title and digits of a score
    "atari": ("PPO on Atari: score", 0),
    "atari-long": ("PPO on Atari, at the paper's length: score", 0),
    "minatar": ("PPO on MinAtar, not in the paper: score", 1),
}


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
    for row in csv.DictReader(read_text(path).splitlines()):
        if row.get("stage", "final") == "final" and row.get("rank", "0") in ("", "0"):  # the search's best
            for key, value in entries(row).items():
                found.setdefault(key, {}).setdefault(int(row.get("step", 0)), []).append(float(value or "nan"))
    return found


def _table(
    title: str,
    by: str,
    groups: tuple[str, ...],
    columns: tuple[Column, ...],
    values: Points,
    paper: Mapping[Key, tuple[float, float, bool]],
    count: int,
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

# -- the claims ------------------------------------------------------------------------------------------------------

CONFIRMED, OPEN, CONTRADICTED, UNTESTED = "confirmed", "not confirmed", "contradicted", "not tested yet"
RULE = (
    "A claim that one head is better than another is counted over its cells. Ahead or behind: by Welch's test, "
    f"p < {ALPHA} after Holm's correction over the claim. **{CONFIRMED}**: its mean is the better one in at least nine "
    f"of ten, ahead in more than half, behind in none. **{CONTRADICTED}**: by the same rule the reverse is confirmed. "
    f"**{UNTESTED}**: fewer than half were run with the paper's length and number of seeds. **{OPEN}**: all else. "
    "A claim is corrected over its own comparisons and a cell over its table, so their counts differ. "
    "These rules were written when most of the runs were known. How long the paper trained its convolutional VAEs it "
    "does not say, so ours count as long enough, although many means still fell (below). That natural and sigmoid are "
    f"level is **{CONFIRMED}** if the test finds no significant difference and natural is lower in most cells, "
    f"**{CONTRADICTED}** if natural is significantly higher."
)
EXACT = 1e-10  # relative: what rounding alone leaves in float64
DRAWS = "100 draws of 8 classes"
Boards = Mapping[str, Board]


class Finding(NamedTuple):
    mark: str
    statistic: str


def verdict(better: int, ahead: int, behind: int, run: int, total: int) -> str:
    """The rule, of counts of comparisons."""
    if 2 * run < total or not run:
        return UNTESTED
    for mark, means, wins, losses in ((CONFIRMED, better, ahead, behind), (CONTRADICTED, run - better, behind, ahead)):
        if 10 * means >= 9 * run and 2 * wins > run and not losses:
            return mark
    return OPEN


def better(names: str, heads: str, rivals: str, only: str = "", *, ours: bool = False) -> Callable[[Boards], Finding]:
    """Heads against rivals in all cells that the paper has, with ``ours`` in all; ``only``: how their columns start."""

    def judge_it(boards: Boards) -> Finding:
        pairs, compared, total = {}, set[Key](), 0
        for name, head, rival in itertools.product(names.split(), heads.split(), rivals.split()):
            board = boards[name]
            for group, column in board.table.contests:
                keys = [(group, line, column.key) for line in (head, rival)]
                cells = [board.table.cells[key] for key in keys if key in board.table.cells]
                if len(cells) < 2 or not column.key.startswith(tuple(only.split()) or ""):
                    continue
                total += ours or all(cell.paper_mean is not None for cell in cells)
                if all(cell.summary for cell in cells) and not any(map(board.is_short, keys)):
                    pair = cells[0].values, cells[1].values
                    compared.update(keys)
                    pairs[name, *keys] = pair[::-1] if column.lower_is_better else pair  # so that more is better
        found, run = compare_all(pairs).values(), len(pairs)
        judged = [standing(each.difference, each.p, lower_is_better=False) for each in found]
        means, ahead, behind = sum(each.difference > 0 for each in found), judged.count("ahead"), judged.count("behind")
        told = [f"better mean in {means}, ahead in {ahead}, behind in {behind} of {run} comparisons"] if run else []
        told += [f"{total - run} of {total} not run, or for less than in the paper"] if run < total else []
        told += _caveats(boards[names], compared) if names in boards else []
        return Finding(verdict(means, ahead, behind, run, total), "; ".join(told))

    return judge_it


def _caveats(board: Board, keys: Collection[Key]) -> list[str]:
    """Of what was compared: the heads' lost runs in the whole table, and how many means were not at their end."""
    heads = {head for _, head, _ in keys}
    lost = ", ".join(f"{head} {count}" for head, count in board.lost.items() if head in heads)
    told = [f"lost runs: {lost}"] if lost else []
    return told + ([f"still falling: {board.falling(keys)}"] if board.falls else [])


def level(boards: Boards) -> Finding:
    """A t-test over sizes: the kinds of digits of a size share its rate and all else, so they count once."""
    table, gaps = boards["adam"].table, defaultdict[str, list[float]](list)
    for group, column in table.contests:
        natural, sigmoid = (table.cells[group, head, column.key].summary for head in (NATURAL, SIGMOID))
        if natural and sigmoid:
            gaps[column.key].append(natural.mean - sigmoid.mean)
    every, sizes = [gap for some in gaps.values() for gap in some], [fmean(some) for some in gaps.values()]
    p, mean, lower = paired(sizes, [0.0] * len(sizes)), fmean(every), sum(gap < 0 for gap in every)
    marks = {"behind": CONTRADICTED, "ahead": OPEN, "tied": CONFIRMED if 2 * lower > len(every) else OPEN}
    test = f"t-test over {len(sizes)} sizes, p = {p:.2g}"
    statistic = f"natural minus sigmoid {mean:+.2f} nats, lower in {lower} of {len(every)} cells; {test}"
    return Finding(marks[standing(mean, p, lower_is_better=True)], statistic)


def _fisher(activation: catnat.Activation | None) -> tuple[Tensor, Tensor]:
    """Fisher matrices by automatic differentiation at random scores, and nodes' probabilities; None: softmax."""
    scores = torch.randn(100, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)
    if activation is None:
        logits = torch.nn.functional.pad(scores, (0, 1))
        return ct.fisher_matrix(lambda row: torch.log_softmax(row, -1), logits), logits
    pi = catnat.Parameterization(8, activation)
    return ct.fisher_matrix(lambda row: ct.log_catnat(row, pi), scores), ct.reach(scores, pi)


def dense(boards: Boards) -> Finding:
    entries = _fisher(None)[0].abs()
    least = float((entries.amin((-1, -2)) / entries.amax((-1, -2))).min())
    return Finding(CONFIRMED if least > EXACT else CONTRADICTED, f"no entry below {least:.1g} of the largest; {DRAWS}")


def diagonal(boards: Boards) -> Finding:
    found = torch.stack([_fisher(activation)[0] for activation in (catnat.Sigmoid(), catnat.Natural(tail=0.0))])
    return _exact(found - torch.diag_embed(found.diagonal(dim1=-2, dim2=-1)), "off the diagonal")


def constant(boards: Boards) -> Finding:
    matrices, reach = _fisher(catnat.Natural(tail=0.0))
    return _exact(matrices.diagonal(dim1=-2, dim2=-1) / reach - 0.25, "between an entry divided by P(a) and (π / A)²")


def _exact(error: Tensor, what: str) -> Finding:
    most = float(error.abs().max())
    told = f"less than {EXACT:g}" if most < EXACT else f"up to {most:.2g}"
    return Finding(CONFIRMED if most < EXACT else CONTRADICTED, f"{told} {what}; {DRAWS}")


def direct(boards: Boards) -> Finding:
    """A descent's length divided by the distance it covers, on average over the six starts of `catnat figure`."""
    starts, ratios = torch.tensor(list(itertools.permutations(figure.START))), {}
    for head in figure.heads():
        path, _ = figure.descend(head, starts)
        ratios[head.name] = float((path.diff(dim=0).norm(dim=-1).sum(0) / (path[-1] - path[0]).norm(dim=-1)).mean())
    softmax, _, *trees = ratios.values()
    mark = CONFIRMED if max(trees) < softmax else CONTRADICTED if min(trees) > softmax else OPEN
    told = "; ".join(f"{name}: {ratio:.3f}" for name, ratio in ratios.items())
    return Finding(mark, f"length of a descent divided by its distance, {told}")


SOFTMAX, SPARSEMAX, SIGMOID, NATURAL = "softmax", "sparsemax", "catnat-sigmoid", "catnat-paper"
BOTH, OTHERS = f"{SIGMOID} {NATURAL}", f"{SOFTMAX} {SPARSEMAX} {SIGMOID}"
TESTED = "gsl adam sgd mlp atari"
ALL_THREE, AGAINST_SIGMOID = "section 5.1; against all three", "section 5; against sigmoid"
# a claim, where it stands in the paper and what of it is judged, and the judge
CLAIMS: list[tuple[str, str, Callable[[Boards], Finding]]] = [
    ("The softmax has a dense Fisher Information Matrix.", "proposition 4.1", dense),
    ("Catnat yields a diagonal Fisher Information Matrix.", "theorem 4.2", diagonal),
    ("Natural: the diagonal entries do not depend on the node's own score.", "corollary 4.3", constant),
    ("Catnat yields more direct gradient-descent trajectories.", "figure 1; one rate for all", direct),
    ("Consistently higher test performance.", "abstract; against softmax", better(TESTED, BOTH, SOFTMAX)),
    (
        "Natural is superior in the majority of the cases.",
        "section 5; against sigmoid",
        better(TESTED, NATURAL, SIGMOID),
    ),
    ("Graphs: natural outperforms all across all metrics.", ALL_THREE, better("gsl", NATURAL, OTHERS)),
    ("Graphs: natural recovers θ more accurately.", ALL_THREE, better("gsl", NATURAL, OTHERS, "theta")),
    ("Graphs: natural predicts better (ES, MAE, MSE).", ALL_THREE, better("gsl", NATURAL, OTHERS, "es pp")),
    ("VAE, Adam: both catnats beat softmax.", "section 5.2", better("adam", BOTH, SOFTMAX)),
    ("VAE, Adam: both catnats beat sparsemax.", "section 5.2", better("adam", BOTH, SPARSEMAX)),
    ("VAE, Adam: natural slightly better than sigmoid in most settings, equivalent overall.", "section 5.2", level),
    ("VAE, SGD: both catnats beat softmax.", "appendix G", better("sgd", BOTH, SOFTMAX)),
    ("VAE, SGD: both catnats beat sparsemax.", "appendix G", better("sgd", BOTH, SPARSEMAX)),
    ("VAE, dense: catnat outperforms softmax.", "appendix H; sigmoid", better("mlp", SIGMOID, SOFTMAX)),
    (
        "VAE, dense: sigmoid is best for small codes.",
        "appendix H; N = 10, against natural",
        better("mlp", SIGMOID, NATURAL, "10x"),
    ),
    ("PPO: catnat is better than softmax.", "section 5.3; natural", better("atari", NATURAL, SOFTMAX)),
    ("The same on MinAtar.", "not in the paper; natural", better("minatar", NATURAL, SOFTMAX, ours=True)),
]

# -- the files -------------------------------------------------------------------------------------------------------


def write_scoreboard(results: Path, output: Path) -> None:
    boards = read(results)
    write(output / "scoreboard.csv", as_csv(record for board in boards.values() for record in _records(board)))
    write(output / "scoreboard.md", markdown(boards))


def _records(board: Board) -> Iterator[dict[str, object]]:
    for key, cell in board.table.cells.items():
        ours, against = cell.summary, board.judgement.against.get(key)
        gap = board.table.paper_gap(key) if key[1] != BASELINE else None
        found = {"table": board.name, "group": key[0], "column": key[2], "head": key[1]} | {
            "ours": ours and ours.mean, "ours_std": ours and ours.std,
            "paper": cell.paper_mean, "paper_std": cell.paper_std,
            "difference": against and against.difference, "p": against and f"{against.p:.3g}",
            "paper_difference": gap and gap[0], "paper_p": gap and f"{gap[1]:.3g}", "mark": board.mark(key),
            "seeds": len(cell.values), "paper_seeds": board.table.paper_count or None,
            board.unit: board.lengths.get(key), f"paper_{board.unit}": board.paper_length or None,
        }  # fmt: skip
        yield {name: "" if value is None else value for name, value in found.items()}


def _about(board: Board) -> str:
    lost = ", ".join(f"{head} {count}" for head, count in board.lost.items())
    told = [f"{board.name}: {board.table.title}.", f"Ours: {board.told}."]
    told += [f"Runs more than {board.far:g} nats behind the best of their cell: {lost}."] if lost else []
    return " ".join([*told, *([f"Left out: {board.left_out}."] if board.left_out else [])])


def _cell(board: Board, key: Key, column: Column) -> str:
    """Our mean, its mark, and the paper's mean in parentheses, which is slanted where it does not tell itself."""
    cell, gap = board.table.cells[key], board.table.paper_gap(key)
    ours = "" if cell.summary is None else column.printed(cell.summary.mean)
    ours += "°" if cell.values and board.is_short(key) else ""
    paper = "" if cell.paper_mean is None else column.printed(cell.paper_mean)
    slant = "_" if gap and key[1] != BASELINE and gap[1] >= ALPHA else ""
    return " ".join(filter(None, (ours, MARKS.get(board.mark(key)), paper and f"({slant}{paper}{slant})")))


def _cells(board: Board) -> str:
    """A table as the paper has it, but a line for every contest, and a column for every head."""
    table, body = board.table, []
    for group, column in table.contests:
        numbers = [_cell(board, (group, line, column.key), column) for line in table.lines]
        body.append([group, escaped(column.heading), *numbers])
    return f"### {table.title}\n\n{grid([[escaped(table.group_name), '', *table.lines], *body], names=2)}"


def markdown(boards: Boards) -> str:
    claims, counts, against = [["claim", "where", "mark", "statistic"]], [["table", "head", *MARKS]], []
    for claim, where, judge_claim in CLAIMS:
        mark, statistic = judge_claim(boards)
        claims.append([escaped(claim), where, f"**{mark}**", escaped(statistic)])
    for board in boards.values():
        for line in board.table.lines:
            marks = Counter(board.mark(key) for key in board.table.cells if key[1] == line)
            counts += [[board.name, line, *(str(marks[m] or "") for m in MARKS)]] if line != BASELINE else []
        for key, each in board.judgement.against.items():
            if board.mark(key) == "disagree" and (gap := board.table.paper_gap(key)):
                theirs = f"the paper's {gap[0]:+.2g} (p {gap[1]:.2g})"
                against.append(f"{board.name} {', '.join(key)}: ours {each.difference:+.2g} (p {each.p:.2g}), {theirs}")
    parts = [
        "# The paper's tables and claims, beside ours",
        "Written by `python docs/scoreboard.py` from the runs. `scoreboard.csv` has every cell with its tests.",
        CELL_RULE,
        "## Claims",
        RULE,
        grid(claims, names=1, words=3),
        "## Cells",
        "\n".join(f"- {_about(board)}" for board in boards.values()),
        grid(counts, names=2),
        "Cells that disagree, as differences from softmax:",
        "\n".join(f"- {escaped(text)}" for text in against) or "None.",
        "## Every cell",
        "Our mean, its mark, and the paper's mean in parentheses. Slanted: not significantly different from softmax in "
        "the paper itself. °: it, or softmax beside it, was trained for less than in the paper, or with fewer seeds.",
        *map(_cells, boards.values()),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    write_scoreboard(RESULTS, RESULTS)
