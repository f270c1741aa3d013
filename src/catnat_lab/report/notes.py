"""What a table lacks, and what its means are over: a dash is never without its reason."""

from __future__ import annotations

from statistics import fmean

from catnat_lab.report.table import Cell, Column, Table


def notes(table: Table) -> tuple[str, ...]:
    """Missing values by line and reason, diverged runs one by one, and the numbers of seeds where they differ."""
    lacking: dict[tuple[str, str], dict[str, list[str]]] = {}  # (line, reason) to column's heading to groups
    diverged = []
    for line in table.rows:
        for column in table.columns:
            for group in table.groups:
                cell = table.cell(group, line, column)
                for reason in _lacks(cell, table.has_paper):
                    lacking.setdefault((line, reason), {}).setdefault(column.heading, []).append(group)
                if cell.diverged:
                    place = f"{table.group_name} {group}, {column.heading}, {line}"
                    diverged.append(f"{place}: {_divergence(cell, column)}.")
    missing = [f"{line}: {reason}{_where(table, places)}." for (line, reason), places in lacking.items()]
    return (*missing, *diverged, *_counts(table))


def _lacks(cell: Cell, has_paper: bool) -> list[str]:
    found = []
    if len(cell.values) < 2:
        found.append("one value only" if cell.values else "no value yet")
    if not has_paper:
        return found
    if cell.paper_mean is None:
        found.append("the paper gives no number")
    elif cell.paper_std is None:
        found.append("the paper gives no deviation, so its mean is not tested")
    return found


def _where(table: Table, places: dict[str, list[str]]) -> str:
    """Nothing when it is everywhere; otherwise the columns and, where not all, their groups."""

    def at(groups: list[str]) -> str:
        return "" if len(groups) == len(table.groups) else f" at {table.group_name} {', '.join(groups)}"

    first, *others = places.values()
    if len(places) == len(table.columns) and all(groups == first for groups in others):
        return at(first)
    return f" ({'; '.join(f'{heading}{at(groups)}' for heading, groups in places.items())})"


def _divergence(cell: Cell, column: Column) -> str:
    text = f"{cell.diverged} of {len(cell.values)} runs diverged"
    if not cell.finite:
        return text
    return f"{text}; the mean of the other {len(cell.finite)} is {fmean(cell.finite):.{column.digits}f}"


def _counts(table: Table) -> list[str]:
    counts = {cell.summary.count for cell in table.cells.values() if cell.summary is not None}
    if not counts - {table.paper_count}:
        return []
    ours = " or ".join(str(count) for count in sorted(counts))
    if not table.has_paper:
        return [f"Means are over {ours} seeds."]
    return [f"Our means are over {ours} seeds, the paper's over {table.paper_count}."]
