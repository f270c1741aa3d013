"""A table of our values beside the paper's numbers, what it says, and that in words.

Bold, as in the paper: in every group and column the best mean, and every line that Welch's test does not tell from it.
Nothing is bold before every line has two values. A line with a diverged run is shown without a mean; it cannot be bold,
and the others are judged without it. Against softmax every line has a difference with its interval, Cohen's d, and a
p-value that Holm's method corrects over the whole table.

`Judgement.mark` is the one rule for whether a difference is the paper's. Two things count as a disagreement: a
difference from softmax that is significant in both and goes the other way, and, where means should be the same, a mean
that is significantly off the paper's (Welch's test from its mean, deviation and count), and by more than 2% of it, or
1 unit where a table has one, and more than its rounding; the reference's included.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import fmean
from typing import Literal, NamedTuple

from catnat_lab.errors import check, check_distinct
from catnat_lab.stats import (
    ALPHA,
    Comparison,
    Summary,
    bold,
    compare_runs,
    corrected,
    needed,
    standing,
    summarize,
    welch_from_summaries,
)

BASELINE = "softmax"
LINE = "parameterization"  # what the lines of every table are
TOLERANCE = 0.02  # of the paper's mean: a smaller offset is a matter of data and hardware, not of the claim
DASH = "–"
SHOWN = "Means ± standard deviations over the final seeds."
RULE = (
    f"{SHOWN} Bold: the best mean, and every one that Welch's test, uncorrected, does not tell from it (p >= {ALPHA})."
)
AHEAD, BEHIND, UNSEEN, TOO_FEW = "ahead of", "behind", "no difference seen", "too few to tell"
NO_VERDICT = "No verdict: it takes two final runs of every head whose tests differ."
UNTOLD = "Too few repetitions to tell"
MANY = 6  # heads; of more a verdict says how many they are
FEW = 3  # places that a verdict names one by one
MOST = 1000  # repetitions that are named as what it takes
NONE_FOUND = "No disagreement was found in what is finished."
Key = tuple[str, str, str]  # (group, line, column's key)
# Ours is significant and goes the paper's way or the other; or it is where the paper's is not; or it is not.
Mark = Literal["agree", "disagree", "ahead", "behind", "tied", "not run"]


# -- what a table holds ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One measure. ``digits`` are the decimals the paper prints, and so the decimals we print."""

    key: str
    heading: str
    digits: int
    lower_is_better: bool = True

    def printed(self, *numbers: float | None) -> str:
        """Mean and deviation as in a table; a dash where nothing is known."""
        return " ± ".join(f"{x:.{self.digits}f}" for x in numbers if x is not None) or DASH


@dataclass(frozen=True)
class Cell:
    """Our values, one a final seed, and what the paper prints in the same place."""

    values: tuple[float, ...] = ()
    paper_mean: float | None = None
    paper_std: float | None = None
    paper_bold: bool = False

    @property
    def finite(self) -> tuple[float, ...]:
        return tuple(value for value in self.values if math.isfinite(value))

    @property
    def diverged(self) -> int:
        return len(self.values) - len(self.finite)

    @property
    def summary(self) -> Summary | None:
        """Mean and spread of our values; None with fewer than two values, or when one run diverged.

        The mean of the surviving runs alone would flatter a line that diverges, so it does not stand in the table.
        """
        return None if self.diverged or len(self.values) < 2 else summarize(self.values)


@dataclass(frozen=True)
class Table:
    """A results table: ``groups`` of ``lines`` (rows) by ``columns``."""

    title: str
    measure: str  # what its verdict is about, for example "error of θ"
    group_name: str  # what the groups are, for example "θ*"
    groups: tuple[str, ...]
    lines: tuple[str, ...]  # the parameterizations that compete for the bold mark
    columns: tuple[Column, ...]
    cells: dict[Key, Cell]  # a missing one is a run that is not finished and has no paper number
    headline: tuple[str, ...] = ()  # the keys of the columns that the verdict is about; none: all
    reference_line: str | None = None  # is shown, and compared with the paper's, but does not compete
    paper_count: int = 10  # seeds that the paper's means and deviations are over
    compares_values: bool = True  # whether our means should be the paper's: not where ours are trained otherwise
    unit: str = ""  # of differences, where a per cent says nothing: the measure's zero is arbitrary
    # Of `compare`: a diverged run is last in rank, else its line is left out; bold is what is ahead of the baseline.
    is_comparison: bool = False
    unjudged: frozenset[Key] = frozenset()  # lines that are shown, and not compared with the baseline
    looks: int = 1  # how often it was judged while runs were added

    def __post_init__(self) -> None:
        check_distinct(self, "groups", "lines", "rows", "keys")
        known = set(product(self.groups, self.rows, self.keys))
        check("cells", self.cells, known.__contains__, "name a group, a line and a column of the table")

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(column.key for column in self.columns)

    @property
    def rows(self) -> tuple[str, ...]:
        """The lines in the order they are shown: the reference comes last."""
        return self.lines if self.reference_line is None else (*self.lines, self.reference_line)

    @property
    def baseline(self) -> str:
        """The line that all others are compared with: softmax, or the first one where it is not there."""
        return BASELINE if BASELINE in self.lines else self.lines[0]

    @property
    def rule(self) -> str:
        """What stands in a cell, and what is bold."""
        return f"{SHOWN} Bold: what the verdict finds ahead of {self.baseline}." if self.is_comparison else RULE

    @property
    def has_paper(self) -> bool:
        return any(cell.paper_mean is not None for cell in self.cells.values())

    @property
    def whose(self) -> tuple[str, ...]:
        return ("ours", "paper") if self.has_paper else ("ours",)

    @property
    def contests(self) -> Iterator[tuple[str, Column]]:
        return ((group, column) for group in self.groups for column in self.columns)

    @property
    def begun_groups(self) -> tuple[str, ...]:
        """Those in which a line has a final run; they alone are shown."""
        return tuple(group for group in self.groups if group in {key[0] for key in self._known})

    @property
    def begun_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.key in {key[2] for key in self._known})

    @property
    def _known(self) -> list[Key]:
        return [key for key, cell in self.cells.items() if cell.values and key[1] != self.reference_line]

    @property
    def headed(self) -> list[tuple[str, Column]]:
        """The contests that the verdict is about."""
        return [(group, c) for group, c in self.contests if not self.headline or c.key in self.headline]

    def cell(self, group: str, line: str, column: Column) -> Cell:
        return self.cells.get((group, line, column.key), Cell())

    def paper_summary(self, cell: Cell) -> Summary | None:
        """What the paper prints in a cell, for a test; None where its mean or its deviation is missing."""
        if cell.paper_mean is None or cell.paper_std is None or self.paper_count < 2:
            return None
        return Summary(cell.paper_mean, cell.paper_std, self.paper_count)

    def column(self, key: str) -> Column:
        return self.columns[self.keys.index(key)]

    def paper_gap(self, key: Key) -> tuple[float, float] | None:
        """The paper's mean minus that of its baseline, and p by Welch's test of what it prints, not corrected."""
        group, line, column = key
        places = ((group, each, column) for each in (line, self.baseline))
        ours, base = (self.paper_summary(self.cells.get(place, Cell())) for place in places)
        return None if ours is None or base is None else (ours.mean - base.mean, welch_from_summaries(ours, base))

    def place(self, group: str, column: Column, between: str = ", ") -> str:
        """Which of the contests that the verdict is about."""
        names = [f"{self.group_name} {group}"] if len(self.groups) > 1 else []
        return between.join([*names, *([column.heading] if len(self.headline or self.keys) > 1 or not names else [])])

    def label(self, line: str) -> str:
        """The line's name; the reference is named as such, because it does not compete."""
        return f"{line} (reference)" if line == self.reference_line else line


# -- what it says ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disagreement:
    """One contradiction of the paper in a place: of a difference from the baseline, or of a mean."""

    kind: Literal["order", "value"]
    key: Key
    text: str


class Shown(NamedTuple):
    """A cell in words; the marks are places in the list of disagreements, counted from 1."""

    ours: str
    bold: bool
    marks: list[int]
    paper: str
    paper_bold: bool


@dataclass(frozen=True)
class Judgement:
    table: Table
    bold: dict[tuple[str, str], frozenset[str]]  # lines, by group and column's key
    against: dict[Key, Comparison]  # every line minus the baseline, corrected by Holm over all of them

    def shown(self, group: str, line: str, column: Column) -> Shown:
        cell, key = self.table.cell(group, line, column), (group, line, column.key)
        marks = [number for number, each in enumerate(self.disagreements, 1) if each.key == key]
        # a single run is shown, and takes no part in any contest
        ours = (cell.summary.mean, cell.summary.std) if cell.summary else cell.finite if len(cell.values) == 1 else ()
        paper = column.printed(cell.paper_mean, cell.paper_std)
        return Shown(column.printed(*ours), line in self.bold[group, column.key], marks, paper, cell.paper_bold)

    def mark(self, key: Key) -> Mark | None:
        """How a line's difference from the baseline stands beside the paper's; the baseline has none."""
        found, theirs = self.against.get(key), self.table.paper_gap(key)
        if found is None:
            return None if key[1] == self.table.baseline else "not run"
        lower = self.table.column(key[2]).lower_is_better
        ours, paper = standing(found.difference, found.p, lower), standing(*theirs, lower) if theirs else "tied"
        if "tied" in (ours, paper):
            return ours
        return "agree" if ours == paper else "disagree"

    @cached_property
    def disagreements(self) -> tuple[Disagreement, ...]:
        """Place by place: first of differences, then of means."""
        table, places = self.table, self.table.contests
        return tuple(each for place in places for each in (*_reversed(self, *place), *_off(table, *place)))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What is missing, and what the marks do not say."""
        return _notes(self.table)

    def standing(self, *key: str) -> str:
        """What the difference in a place says of a line and the baseline."""
        group, line, column = key
        found = self.against[group, line, column]
        unseen = UNSEEN if self._can_be_seen(found, len(self.table.cells[group, line, column].values)) else TOO_FEW
        said = {"ahead": AHEAD, "behind": BEHIND, "tied": unseen}
        return said[standing(found.difference, found.p, self.table.column(column).lower_is_better)]

    @property
    def _level(self) -> float:
        """What an uncorrected p must be below, where a difference was not seen: by Holm's rule, and by the looks."""
        return ALPHA / self.table.looks / max(1, sum(found.p >= ALPHA for found in self.against.values()))

    def _can_be_seen(self, found: Comparison, count: int) -> bool:
        """Whether any outcome of so many repetitions could have been a verdict."""
        return count > 2 and (found.high < math.inf or 2 / math.comb(2 * count, count) < self._level)

    def needed(self, *key: str) -> str:
        """How many repetitions of each line show a difference of the size seen in four of five studies, roughly.

        At the level that such a difference has to reach; never so few as there are, which have not shown it.
        """
        group, line, column = key
        found = self.against[group, line, column]
        if not found.difference or not math.isfinite(found.effect):
            return ""
        count = needed(found.effect, most=MOST, level=self._level)
        if found.p >= ALPHA:
            count = max(count, 1 + len(self.table.cells[group, line, column].values))
        return f"{count}" if count < MOST else f"over {MOST}"

    def compared(self, group: str, line: str, column: Column) -> tuple[str, bool]:
        """A line against the baseline in words, and whether the difference is significant."""
        found = self.against.get((group, line, column.key))
        if found is None:
            return DASH, False
        difference, low, high = (f"{x:+.{column.digits}f}" for x in (found.difference, found.low, found.high))
        if found.high == math.inf:
            return f"by ranks, p {found.p:.2g}", found.p < ALPHA
        effect = f"{found.effect:+.1f}" if math.isfinite(found.effect) else DASH
        return f"{difference} [{low}, {high}], d {effect}, p {found.p:.2g}", found.p < ALPHA


def judge(table: Table) -> Judgement:
    against: dict[Key, Comparison] = {}
    for group, column in table.contests:
        cells = {line: table.cell(group, line, column) for line in table.lines}
        base = cells.pop(table.baseline)
        for line, cell in cells.items():
            enough = min(len(cell.values), len(base.values)) > 1 and (group, line, column.key) not in table.unjudged
            if enough and (table.is_comparison or not cell.diverged + base.diverged):
                told = compare_runs(cell.values, base.values, column.lower_is_better)
                against[group, line, column.key] = told
    judged = Judgement(table, {}, corrected(against, table.looks))
    ahead = [key for key in judged.against if judged.standing(*key) == AHEAD]
    for group, column in table.contests:
        place = group, column.key
        lines = {key[1] for key in ahead if key[::2] == place} if table.is_comparison else _bold(table, group, column)
        judged.bold[place] = frozenset(lines)
    return judged


def _bold(table: Table, group: str, column: Column) -> set[str]:
    cells = {line: table.cell(group, line, column) for line in table.lines}
    values = {line: cell.values for line, cell in cells.items() if cell.summary is not None}
    is_open = any(len(cell.values) < 2 for cell in cells.values())
    return bold(values, column.lower_is_better) if values and not is_open else set()


def _place(table: Table, group: str, column: Column) -> str:
    return f"{table.group_name} {group}, {column.heading}"


def _reversed(judged: Judgement, group: str, column: Column) -> Iterator[Disagreement]:
    for line in judged.table.lines:
        if judged.mark(key := (group, line, column.key)) == "disagree":
            better, worse = ("better", "worse") if judged.standing(*key) == AHEAD else ("worse", "better")
            told = f"{line} is significantly {better} than {judged.table.baseline} in ours, significantly {worse} in"
            yield Disagreement("order", key, f"{_place(judged.table, group, column)}: {told} the paper.")


def _off(table: Table, group: str, column: Column) -> Iterator[Disagreement]:
    for line in table.rows if table.compares_values else ():
        cell = table.cell(group, line, column)
        mine, paper = cell.summary, table.paper_summary(cell)
        if mine is None or paper is None or (p := welch_from_summaries(mine, paper)) >= ALPHA:
            continue
        off, allowed = mine.mean - paper.mean, 1.0 if table.unit else TOLERANCE * abs(paper.mean)
        if abs(off) > max(allowed, 0.5 * 10.0**-column.digits):
            way = "higher" if off > 0 else "lower"
            if line != table.reference_line:  # which is neither better nor worse
                way += " (better)" if (off < 0) == column.lower_is_better else " (worse)"
            share = f"{abs(off) / abs(paper.mean):.0%} " if paper.mean else ""
            by = f"{abs(off):.{column.digits}f} {table.unit}s " if table.unit else share
            ours, theirs = (f"{each.mean:.{column.digits}f}" for each in (mine, paper))
            text = f"our mean {ours} is {by}{way} than the paper's {theirs} (p = {p:.2g})."
            yield Disagreement("value", (group, line, column.key), f"{_place(table, group, column)}, {line}: {text}")


def _notes(table: Table) -> tuple[str, ...]:
    """Missing values by line and reason, diverged runs one by one, and the numbers of seeds where they differ."""
    lacking: dict[tuple[str, str], list[str]] = defaultdict(list)  # where, by line and reason
    diverged = []
    shown = list(product(table.begun_groups, table.begun_columns))
    for line in table.rows:
        for group, column in shown:
            cell, place = table.cell(group, line, column), _place(table, group, column)
            if len(cell.values) < 2:
                lacking[line, "one value only" if cell.values else "no value yet"].append(place)
            if table.has_paper and cell.paper_mean is None:
                lacking[line, "the paper gives no number"].append(place)
            elif table.has_paper and cell.paper_std is None:
                lacking[line, "the paper gives no deviation, so its mean is not tested"].append(place)
            if cell.diverged:
                told = f"{place}, {line}: {cell.diverged} of {len(cell.values)} runs diverged"
                if cell.finite:
                    told += f"; the mean of the other {len(cell.finite)} is {fmean(cell.finite):.{column.digits}f}"
                diverged.append(f"{told}.")
    waiting = [f"{table.group_name} {group}" for group in table.groups if group not in table.begun_groups]
    waiting += [column.heading for column in table.columns if column not in table.begun_columns]
    missing = [f"Not shown, for no final run of it is finished: {'; '.join(waiting)}."] if shown and waiting else []
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)  # lines, by reason and where
    for (line, reason), places in lacking.items():
        alike[reason, tuple(places)].append(line)
    for (reason, where), lines in alike.items():
        told = "" if len(where) == len(shown) else f" ({'; '.join(where)})"
        missing.append(f"{'All' if len(lines) == len(table.rows) else ', '.join(lines)}: {reason}{told}.")
    counts = sorted({cell.summary.count for cell in table.cells.values() if cell.summary is not None})
    if counts and not (table.has_paper and counts == [table.paper_count]):
        ours, theirs = ("Our means", f", the paper's over {table.paper_count}") if table.has_paper else ("Means", "")
        missing.append(f"{ours} are over {', '.join(map(str, counts))} seeds{theirs}.")
    return (*missing, *diverged)


# -- its words -------------------------------------------------------------------------------------------------------


def verdict(judgement: Judgement) -> str:
    """Which lines are ahead of the baseline or behind it, where and by how much; of a single difference its numbers."""
    table = judgement.table
    if not table.begun_groups:
        return "No final run is finished yet."
    if len(table.lines) == 1:
        return f"{table.lines[0]} was run alone: there is nothing to compare its {table.measure} with."
    judged = [key for key in judgement.against if key[::2] in {(group, column.key) for group, column in table.headed}]
    if not judged:
        return NO_VERDICT
    told, base, looks = [], table.baseline, table.looks
    done, whole = len({key[::2] for key in judged}), len(table.headed)
    if done < whole:
        told.append(f"Judged so far: {done} of {whole} cells")
    for what in (AHEAD, BEHIND, UNSEEN, TOO_FEW):
        keys = [key for key in judged if judgement.standing(*key) == what]
        lines = dict.fromkeys(key[1] for key in keys)
        names = [name for line in lines for name in _named(judgement, line, keys)]
        if len(lines) > MANY:
            names = [f"{len(lines)} of {len(table.lines) - 1} heads"]
        if names and what in (AHEAD, BEHIND):
            told.append(f"{together(names, 'and')} {'are' if names[1:] or len(lines) > MANY else 'is'} {what} {base}")
        elif names and what == UNSEEN and len(keys) == len(judged) > 1:
            told.append(f"No difference from {base} is seen")
        elif names:
            start, link = (
                ("Too few repetitions to tell", "from") if what == TOO_FEW else ("No difference seen between", "and")
            )
            told.append(f"{start} {together(names, 'or')} {link} {base}")
    text = ". ".join(told) + (f": {_numbers(judgement, judged[0])}" if len(judged) == 1 else "")
    if looks > 1:
        text += f". It was looked at {looks} times, and p-values are multiplied by that"
    return ". ".join([text, *_worse_elsewhere(judgement, judged)]) + "."


def _named(judgement: Judgement, line: str, keys: Sequence[Key]) -> list[str]:
    """A line with its places; of many places how many they are, and by how much it is ahead there, or behind."""
    table, own = judgement.table, [key for key in keys if key[1] == line]
    if len(table.headed) == 1:
        return [line]
    if len(table.headed) <= FEW:
        return [f"{line} ({table.place(key[0], table.column(key[2]))})" for key in own]
    gains = [gain for key in own if math.isfinite(gain := _gain(table, key, judgement.against[key]))]
    told = f"{line} ({len(own)} of {len(table.headed)} cells"
    if gains and judgement.standing(*own[0]) in (AHEAD, BEHIND):
        ends = dict.fromkeys(f"{abs(end):.3g}" for end in (min(gains, key=abs), max(gains, key=abs)))
        told += f", by {' to '.join(ends)}{f' {table.unit}s' if table.unit else '%'}"
    return [f"{told})"]


def _numbers(judgement: Judgement, key: Key) -> str:
    """A difference, what the test says of it, and where it does not tell, what that would take."""
    table, found, column = judgement.table, judgement.against[key], judgement.table.column(key[2])
    cells = [table.cell(key[0], line, column) for line in (key[1], table.baseline)]
    seeds = f"{' and '.join(dict.fromkeys(str(len(cell.values)) for cell in cells))} repetitions each"
    if found.high == math.inf:
        return f"by ranks, p = {found.p:.2g}, {seeds}"
    ours, theirs = (column.printed(fmean(cell.finite)) for cell in cells)
    gap, low, high = (f"{x:+.{column.digits}f}" for x in (found.difference, found.low, found.high))
    alone = ", not corrected" if found.p >= ALPHA and found.low * found.high > 0 else ""  # it leaves 0 out; p does not
    interval = f"[95%{alone} {low} to {high}]"
    text = f"{table.measure} {ours} against {theirs}, {gap} {interval}, p = {found.p:.2g}, {seeds}"
    takes = judgement.needed(*key) if found.p >= ALPHA else ""
    return f"{text}; to see one of this size would take {takes}" if takes else text


def _worse_elsewhere(judgement: Judgement, judged: Sequence[Key]) -> Iterator[str]:
    """Of lines that are ahead somewhere, the other columns in which they are behind."""
    table = judgement.table
    for line in dict.fromkeys(key[1] for key in judged if judgement.standing(*key) == AHEAD):
        behind = [key for key in judgement.against if key[1] == line and judgement.standing(*key) == BEHIND]
        columns = dict.fromkeys(table.column(key[2]).heading for key in behind if key not in judged)
        if columns:
            yield f"In {', '.join(columns)} {line} is behind"


def _gain(table: Table, key: Key, found: Comparison) -> float:
    """By how many units a line differs, or by how many per cent of the baseline's mean where there is no unit."""
    base = table.cell(key[0], table.baseline, table.column(key[2])).summary
    whole = 1.0 if table.unit else abs(base.mean) / 100 if base is not None else 0.0
    return found.difference / whole if whole else math.nan


def together(names: Sequence[str], word: str) -> str:
    return f" {word} ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def criteria(table: Table) -> str:
    order = f"A disagreement is a difference from {table.baseline} that is significant in both and goes the other way"
    if not table.compares_values:
        return f"{order}. Means are not compared: ours are trained or tuned in another way."
    far = f"1 {table.unit}" if table.unit else f"{TOLERANCE:.0%}"
    return f"{order}, or a mean significantly off the paper's by more than {far} and more than its rounding."


def comparisons(judgement: Judgement) -> str:
    looks = f", times {judgement.table.looks} looks" if judgement.table.looks > 1 else ""
    return (
        f"Mean minus {judgement.table.baseline}'s, its 95% interval by Welch's test, Cohen's d, and p corrected by "
        f"Holm over all {len(judgement.against)} comparisons{looks}; bold where p < {ALPHA}."
    )


def agreement(judgement: Judgement) -> str:
    """How often our differences from the baseline are the paper's."""
    counts = Counter(map(judgement.mark, product(judgement.table.groups, judgement.table.lines, judgement.table.keys)))
    tested = len(judgement.against)
    found = [
        f"Of {tested} differences from {judgement.table.baseline}, {counts['agree']} are significant in ours and in "
        f"the paper, and alike; {counts['disagree']} go the other way; where the paper's is not, or is not known, "
        f"{counts['ahead']} are ahead and {counts['behind']} behind; {counts['tied']} are not significant in ours."
    ]
    missing = [f"Not tested, because runs are missing or diverged: {counts['not run']}."] * bool(counts["not run"])
    return " ".join([*(found if tested else []), *missing])


# -- as Markdown -----------------------------------------------------------------------------------------------------


def grid(rows: Iterable[Sequence[str]], names: int, words: int = 0) -> str:
    """Rows as a Markdown table: first names, then numbers, which stand at the right, and at last words."""
    head, *body = rows
    ruler = ["---"] * names + ["---:"] * (len(head) - names - words) + ["---"] * words
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ruler, *body))


def escaped(text: str) -> str:
    """The text with Markdown's own marks made harmless: the star of "θ*" must not open an emphasis."""
    return re.sub(r"([\\`*_|<>&\[\]])", r"\\\1", text)
