"""The words and numbers that every output shares."""

from __future__ import annotations

from catnat_lab.report.judgement import ALPHA, TOLERANCE, VERDICTS, Judgement
from catnat_lab.report.table import Cell, Column, Table

DASH = "–"
RULE = (
    "Means ± standard deviations over the final seeds. "
    f"Bold: the best mean, and every one that Welch's test (p < {ALPHA}) does not tell from it."
)
NONE_FOUND = "No disagreement was found in what is finished."


def criteria(table: Table) -> str:
    """What counts as a disagreement."""
    order = "A disagreement is another bold set, or two lines significantly the other way round"
    if not table.compares_values:
        return f"{order}. Means are not compared: ours are not trained for the paper's length."
    return f"{order}, or a mean significantly off the paper's by more than {TOLERANCE:.0%} and more than its rounding."


def ours(cell: Cell, column: Column) -> str:
    """Our mean ± deviation, or a dash."""
    return DASH if cell.summary is None else _pair(cell.summary.mean, cell.summary.std, column)


def paper(cell: Cell, column: Column) -> str:
    """The paper's mean ± deviation, its mean alone, or a dash."""
    return DASH if cell.paper_mean is None else _pair(cell.paper_mean, cell.paper_std, column)


def _pair(mean: float, std: float | None, column: Column) -> str:
    return f"{mean:.{column.digits}f}" + ("" if std is None else f" ± {std:.{column.digits}f}")


def line_label(table: Table, line: str) -> str:
    """The line's name; the reference is named as such, because it does not compete."""
    return f"{line} (reference)" if line == table.reference_line else line


def marks(judgement: Judgement, group: str, line: str, column: Column) -> list[int]:
    """Which entries of the list of disagreements, counted from 1, are about a cell."""
    place = (group, column.key)
    return [
        number
        for number, entry in enumerate(judgement.disagreements, 1)
        if (entry.group, entry.column) == place and line in entry.lines
    ]


def agreement(table: Table, judgement: Judgement) -> list[str]:
    """The whole table in a few sentences."""
    verdicts = [contest.verdict for contest in judgement.contests.values()]
    judged = [verdict for verdict in verdicts if verdict not in ("open", "no paper")]
    found = []
    if judged:
        found.append(
            f"Judged: {len(judged)} of {len(verdicts)} pairs of a {table.group_name} and a measure. The paper's best "
            f"{table.line_name} is significantly the best of ours too in {judged.count('yes')}, tied with others in "
            f"{judged.count('tied')}, not among the best of ours in {judged.count('no')}."
        )
        if extra := [line for line in table.lines if not _in_paper(table, line)]:
            found.append(f"This leaves out {', '.join(extra)}, for which the paper has no number.")
    if count := verdicts.count("open"):
        found.append(f"Not judged, because runs are missing: {count} of {len(verdicts)}.")
    if count := verdicts.count("no paper"):
        found.append(
            f"Not judged, because the paper gives numbers for fewer than two lines: {count} of {len(verdicts)}."
        )
    return found + _signs(judgement)


def _in_paper(table: Table, line: str) -> bool:
    return any(cell.paper_mean is not None for (_, other, _), cell in table.cells.items() if other == line)


def _signs(judgement: Judgement) -> list[str]:
    differences = judgement.differences
    clear = [difference for difference in differences if difference.both_significant]
    if not differences:
        return []
    same, clear_same = (sum(difference.same_sign for difference in some) for some in (differences, clear))
    return [
        f"Of the {len(differences)} differences between two lines, {same} have the paper's sign; "
        f"of the {len(clear)} that are significant both in the paper and in ours, {clear_same}."
    ]


def verdict_legend(judgement: Judgement) -> list[str]:
    """What the verdicts that occur mean."""
    used = {contest.verdict for contest in judgement.contests.values()}
    return [f"{verdict}: {meaning}." for verdict, meaning in VERDICTS.items() if verdict in used]
