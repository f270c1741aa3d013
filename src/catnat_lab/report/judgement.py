"""What a table says beside the paper's: computed once, shown by every output.

A *contest* is one group and one column: the lines compete in it, the reference line does not. A contest is judged when
every line has at least two values; until then it is open, and nothing in it is bold. A line with a diverged run is
shown without a mean; it cannot be bold, and the others are judged without it.

Bold, as in the paper: the best mean, and every line that Welch's test does not tell from it.

Three things count as a disagreement with the paper, and nothing else does:

bold
    Our bold set is not the paper's. One entry a contest.
order
    Two lines differ significantly in the paper and in ours, with opposite signs. One entry a pair.
value
    Our mean is significantly off the paper's mean (Welch's test from the paper's mean, deviation and count), and by
    more than 2% of it and more than its rounding. One entry a cell, the reference line's cells included. Only where
    the table says that means should be the same.

Where effects are smaller than 2% of the value, as in the energy score, only bold and order can see them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from catnat_lab.report.notes import notes
from catnat_lab.report.table import Cell, Column, Table
from catnat_lab.stats import Summary, bold, welch_from_summaries

ALPHA = 0.05
TOLERANCE = 0.02  # of the paper's mean: a smaller offset is a matter of data and hardware, not of the claim

Verdict = Literal["yes", "tied", "no", "open", "no paper"]
VERDICTS: dict[Verdict, str] = {
    "yes": "the paper's best line is ours too, significantly better than every other",
    "tied": "the paper's best line is among our best, but not significantly better than every other",
    "no": "the paper's best line is not among our best",
    "open": "not all runs are finished",
    "no paper": "the paper gives numbers for fewer than two lines",
}


@dataclass(frozen=True)
class Contest:
    """One group and one column: who is bold in ours and in the paper, and whether the paper's winner is ours."""

    group: str
    column: str
    ours: frozenset[str]  # what we bold, of all lines
    shared: frozenset[str]  # what we bold of the lines that the paper has: this is what can be compared
    paper: frozenset[str]
    verdict: Verdict

    @property
    def same_bold(self) -> bool | None:
        """Whether both bold sets are equal; None when there is nothing to compare."""
        return None if self.verdict in ("open", "no paper") else self.shared == self.paper


@dataclass(frozen=True)
class Difference:
    """Mean of ``first`` less mean of ``second``, in ours and in the paper, with the p-values of Welch's test."""

    group: str
    column: str
    first: str
    second: str
    ours: float
    paper: float
    ours_p: float
    paper_p: float

    @property
    def same_sign(self) -> bool:
        """Whether both differences point the same way. A tie in the paper's printed means agrees with nothing else."""
        return (self.ours > 0) == (self.paper > 0) and (self.ours < 0) == (self.paper < 0)

    @property
    def both_significant(self) -> bool:
        """Whether neither difference can be put down to the seeds."""
        return self.ours_p < ALPHA and self.paper_p < ALPHA


@dataclass(frozen=True)
class Disagreement:
    """One contradiction of the paper; ``lines`` are those it is about."""

    kind: Literal["bold", "order", "value"]
    group: str
    column: str
    lines: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Judgement:
    """All that is computed from a table."""

    contests: dict[tuple[str, str], Contest]  # by (group, column's key)
    differences: tuple[Difference, ...]
    disagreements: tuple[Disagreement, ...]
    notes: tuple[str, ...]  # what is missing, and what the marks do not say

    def is_bold(self, group: str, line: str, column: Column) -> bool:
        """Whether our mean is bold."""
        return line in self.contests[group, column.key].ours


def judge(table: Table) -> Judgement:
    """Judge every contest, pair and cell of a table."""
    contests = {
        (group, column.key): _contest(table, group, column) for group in table.groups for column in table.columns
    }
    differences: list[Difference] = []
    found: list[Disagreement] = []
    for group in table.groups:
        for column in table.columns:
            pairs = _differences(table, group, column)
            differences += pairs
            found += _bold_disagreement(table, group, column, contests[group, column.key])
            found += [_order_disagreement(table, column, d) for d in pairs if d.both_significant and not d.same_sign]
            found += _value_disagreements(table, group, column) if table.compares_values else []
    return Judgement(contests, tuple(differences), tuple(found), notes(table))


def _contest(table: Table, group: str, column: Column) -> Contest:
    cells = {line: table.cell(group, line, column) for line in table.lines}
    paper = frozenset(line for line, cell in cells.items() if cell.paper_bold)
    if any(len(cell.values) < 2 for cell in cells.values()):
        return Contest(group, column.key, frozenset(), frozenset(), paper, "open")
    ours = _bold(cells, column)
    means = {line: cell.paper_mean for line, cell in cells.items() if cell.paper_mean is not None}
    if len(means) < 2:  # nobody to win against
        return Contest(group, column.key, ours, frozenset(), paper, "no paper")
    shared = _bold({line: cells[line] for line in means}, column)
    best = (min if column.lower_is_better else max)(means.values())
    winners = {line for line, mean in means.items() if mean == best}  # several where the printed means are equal
    verdict: Verdict = "no"
    if shared & winners:
        verdict = "yes" if shared <= winners else "tied"
    return Contest(group, column.key, ours, shared, paper, verdict)


def _bold(cells: dict[str, Cell], column: Column) -> frozenset[str]:
    values = {line: cell.values for line, cell in cells.items() if cell.summary is not None}
    return frozenset(bold(values, lower_is_better=column.lower_is_better, alpha=ALPHA)) if values else frozenset()


def _differences(table: Table, group: str, column: Column) -> list[Difference]:
    """Every pair of lines of which both have our values and the paper's mean."""
    found = []
    for first, second in combinations(table.lines, 2):
        a, b = table.cell(group, first, column), table.cell(group, second, column)
        x, y = a.summary, b.summary
        if x is None or y is None or a.paper_mean is None or b.paper_mean is None:
            continue
        ours_p, paper_p = _test(x, y), _test(table.paper_summary(a), table.paper_summary(b))
        ours, paper = x.mean - y.mean, a.paper_mean - b.paper_mean
        found.append(Difference(group, column.key, first, second, ours, paper, ours_p, paper_p))
    return found


def _test(a: Summary | None, b: Summary | None) -> float:
    """Welch's p-value; 1, that is no evidence, where the paper prints too little for a test."""
    return 1.0 if a is None or b is None else welch_from_summaries(a, b)


def _place(table: Table, group: str, column: Column) -> str:
    return f"{table.group_name} {group}, {column.heading}"


def _names(table: Table, lines: frozenset[str]) -> str:
    return ", ".join(line for line in table.lines if line in lines) or "none"


def _bold_disagreement(table: Table, group: str, column: Column, contest: Contest) -> list[Disagreement]:
    if contest.same_bold is not False:
        return []
    changed = tuple(line for line in table.lines if line in contest.shared ^ contest.paper)
    we = "we bold" if contest.shared == contest.ours else "of the lines that the paper has, we bold"
    text = f"the paper bolds {_names(table, contest.paper)}; {we} {_names(table, contest.shared)}."
    return [Disagreement("bold", group, column.key, changed, f"{_place(table, group, column)}: {text}")]


def _order_disagreement(table: Table, column: Column, found: Difference) -> Disagreement:
    ours_first = (found.ours < 0) == column.lower_is_better
    better, worse = (found.first, found.second) if ours_first else (found.second, found.first)
    text = f"{better} is significantly better than {worse} in ours, significantly worse in the paper."
    place = _place(table, found.group, column)
    return Disagreement("order", found.group, column.key, (found.first, found.second), f"{place}: {text}")


def _value_disagreements(table: Table, group: str, column: Column) -> list[Disagreement]:
    found = []
    for line in table.rows:
        cell = table.cell(group, line, column)
        ours, paper = cell.summary, cell.paper_mean
        if ours is None or paper is None or not _is_off(ours.mean, paper, column):
            continue
        p = _test(ours, table.paper_summary(cell))
        if p < ALPHA:
            text = f"{line}: our mean {_off_by(ours.mean, paper, column, line == table.reference_line)} (p = {p:.2g})."
            found.append(Disagreement("value", group, column.key, (line,), f"{_place(table, group, column)}, {text}"))
    return found


def _is_off(ours: float, paper: float, column: Column) -> bool:
    """Whether the offset is more than the tolerance and more than the rounding of the printed number explain."""
    return abs(ours - paper) > max(TOLERANCE * abs(paper), 0.5 * 10.0**-column.digits)


def _off_by(ours: float, paper: float, column: Column, reference: bool) -> str:
    """For example "0.0100 is 23% higher (worse) than the paper's 0.0081". A reference is neither better nor worse."""
    way = "higher" if ours > paper else "lower"
    if not reference:
        way += " (better)" if (ours < paper) == column.lower_is_better else " (worse)"
    share = f"{abs(ours - paper) / abs(paper):.0%} " if paper else ""
    return f"{ours:.{column.digits}f} is {share}{way} than the paper's {paper:.{column.digits}f}"
