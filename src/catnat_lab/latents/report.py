"""The tables of results/latents/RULE.md, and its verdicts, from the rows that are there."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from catnat_lab.latents.records import Results
from catnat_lab.latents.rule import FIRST_ESTIMATOR, Rule, best, dropped, lowest
from catnat_lab.latents.train import Cell
from catnat_lab.report.table import grid
from catnat_lab.stats import ALPHA, Comparison, compare, holm, summarize

AGAINST, OURS = "softmax", "catnat"
NATS = 0.5  # below which a difference is none
MOST_LOST = 2  # final runs: a head that lost so many cannot help
ENOUGH = 4  # sizes of which a head is ahead, or behind


@dataclass(frozen=True)
class Line:
    """A head against softmax in a cell: on the test images, and the difference on the training images."""

    cell: Cell
    head: str
    found: Comparison
    means: tuple[float, float]  # softmax's and the head's
    train: float
    lost: tuple[int, int]

    @property
    def verdict(self) -> str:
        if self.lost[0] >= MOST_LOST:
            return f"softmax lost {self.lost[0]}"
        if self.found.p < ALPHA and self.found.difference < -NATS:
            return "helps" if self.lost[1] < MOST_LOST else f"level: lost {self.lost[1]}"
        return "harms" if self.found.p < ALPHA and self.found.difference > NATS else "level"


def report(done: Results, rule: Rule | None = None) -> str:
    rule = rule or Rule()
    others = [name for name in rule.estimators if name != FIRST_ESTIMATOR]
    rest = [head for head in rule.heads if head not in (AGAINST, OURS)]
    tables = {
        "A: catnat against softmax, ReinMax": lines(rule, done, [FIRST_ESTIMATOR], [OURS]),
        "B: catnat against softmax, the other estimators": lines(rule, done, others, [OURS]),
        "C: the other heads against softmax": lines(rule, done, rule.estimators, rest),
    }
    parts = [
        "# Latent variables: the tables of the rule\n\nBy `python -m catnat_lab.latents report`. RULE.md says how."
    ]
    parts += [_final(name, found) for name, found in tables.items()]
    every = [line for found in tables.values() for line in found]
    parts += [_answers(rule, every), _best_with_best(rule, done), _held_up(rule, done), _searched(rule, done)]
    return "\n\n".join(part for part in parts if part) + "\n"


def lines(rule: Rule, done: Results, estimators: Sequence[str], heads: Sequence[str]) -> list[Line]:
    """Every comparison whose runs are all there, corrected by Holm over all that are planned."""
    found = []
    for cell in _cells(rule, estimators):
        for head in heads:
            runs = {name: [*_final_runs(done, "final", cell, name).values()] for name in (AGAINST, head)}
            if all(len(values) == rule.final_seeds for values in runs.values()):
                found.append(_line(cell, head, runs[AGAINST], runs[head]))
    planned = len(rule.sizes) * len(estimators) * len(heads)
    pvalues = holm([line.found.p for line in found] + [1.0] * (planned - len(found)))
    return [replace(line, found=replace(line.found, p=p)) for line, p in zip(found, pvalues, strict=False)]


def _line(cell: Cell, head: str, softmax: list[tuple[float, float]], other: list[tuple[float, float]]) -> Line:
    kept = [[run for run in runs if all(map(math.isfinite, run))] for runs in (softmax, other)]
    lost = (len(softmax) - len(kept[0]), len(other) - len(kept[1]))
    if min(map(len, kept)) < 2:
        nothing = Comparison(math.nan, math.nan, math.nan, math.nan, 1.0)
        return Line(cell, head, nothing, (math.nan, math.nan), math.nan, lost)
    test, train = ([[run[i] for run in runs] for runs in kept] for i in (0, 1))
    means = tuple(summarize(values).mean for values in test)
    difference = summarize(train[1]).mean - summarize(train[0]).mean
    return Line(cell, head, compare(test[1], test[0]), (means[0], means[1]), difference, lost)


def _final_runs(done: Results, stage: str, cell: Cell, head: str) -> dict[int, tuple[float, float]]:
    """By seed, the bounds on the test and on the training images."""
    return {
        job.run.seed: (measured.get("test", math.nan), measured.get("train", math.nan))
        for job, measured in done.items()
        if (job.stage, job.cell, job.run.head) == (stage, cell, head)
    }


def _final(name: str, found: Sequence[Line]) -> str:
    rows = [
        (
            f"{line.cell.estimator} {_size(line.cell)}",
            line.head,
            *(f"{mean:.2f}" for mean in line.means),
            _interval(line.found),
            f"{line.found.p:.2g}",
            f"{line.train:+.2f}",
            f"{line.lost[0]}, {line.lost[1]}" if any(line.lost) else "",
            line.verdict,
        )
        for line in found
    ]
    head = ("cell", "head", "softmax", "head's", "test: minus softmax", "p (Holm)", "training", "lost", "verdict")
    return f"## {name}\n\n" + (_table(head, rows) if rows else "No cell is finished.")


def _answers(rule: Rule, every: Sequence[Line]) -> str:
    rows = []
    for estimator in rule.estimators:
        for head in rule.heads:
            verdicts = [line.verdict for line in every if (line.cell.estimator, line.head) == (estimator, head)]
            if verdicts:
                counts = [*map(verdicts.count, ("helps", "level", "harms")), len(rule.sizes) - len(verdicts)]
                rows.append((estimator, head, *map(str, counts), answer(verdicts, rule)))
    titles = ("estimator", "head", "helps", "level", "harms", "to come", "answer")
    return "## Ahead, behind or mixed\n\n" + _table(titles, rows) if rows else ""


def answer(verdicts: Sequence[str], rule: Rule) -> str:
    """Of a head under an estimator, from its verdicts size by size."""
    helps, harms = verdicts.count("helps"), verdicts.count("harms")
    if len(verdicts) < len(rule.sizes):
        return "not yet"
    if helps >= ENOUGH and not harms:
        return "ahead"
    return "behind" if harms >= ENOUGH and not helps else "mixed"


def _best_with_best(rule: Rule, done: Results) -> str:
    rows = []
    for size in rule.sizes:
        row = [f"{size[0]}x{size[1]}"]
        for head in rule.heads:
            means = {}
            for estimator in rule.estimators:
                tests = [test for test, _ in _final_runs(done, "final", Cell(*size, estimator), head).values()]
                if len(tests) == rule.final_seeds and all(map(math.isfinite, tests)):
                    means[estimator] = summarize(tests).mean
            least = min(means, key=means.__getitem__, default="")
            row.append(f"{means[least]:.2f} ({least}, of {len(means)})" if means else "")
        if any(row[1:]):
            rows.append(tuple(row))
    return "## Each head by its best estimator, test images\n\n" + _table(("size", *rule.heads), rows) if rows else ""


def _held_up(rule: Rule, done: Results) -> str:
    """Stages that repeat final runs, beside those before: of the same seeds, or of all where they have other seeds."""
    rows = []
    for stage, cell in product(("control", "again"), _cells(rule, [FIRST_ESTIMATOR])):
        now, before = (
            {head: _final_runs(done, which, cell, head) for head in (AGAINST, OURS)} for which in (stage, "final")
        )
        same = {head: {seed: run for seed, run in before[head].items() if seed in runs} for head, runs in now.items()}
        if not (now[OURS] and before[OURS]):
            continue
        means, gaps = list[str](), list[str]()
        for runs in (same if same[OURS] else before, now):
            line = _line(cell, OURS, *([*each.values()] for each in runs.values()))
            counts = (len(each) - lost for each, lost in zip(runs.values(), line.lost, strict=True))
            means += (f"{mean:.2f} ({count})" for mean, count in zip(line.means, counts, strict=True))
            gaps.append(_interval(line.found))
        rows.append((stage, _size(cell), *means, *gaps))
    head = ("stage", "size", "softmax before", "catnat before", "softmax", "catnat")
    titles = (*head, "catnat minus softmax before [95%]", "catnat minus softmax [95%]")
    about = "Means on the test images (runs). Before: the final runs; of `control` those of the same seeds."
    return f"## Full float32, and other seeds\n\n{about}\n\n{_table(titles, rows)}" if rows else ""


def _interval(found: Comparison) -> str:
    return f"{found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def _searched(rule: Rule, done: Results) -> str:
    """The searches: what every head came to at its best setting."""
    rows = []
    for stage in ("coarse", "full"):
        for cell in _cells(rule, rule.estimators):
            if not any(job.stage == stage and job.cell == cell for job in done):
                continue
            without = dropped(rule, done, cell)
            told = []
            for head in rule.heads:
                choice = best(rule, done, stage, cell, head)
                bound = lowest(rule, done, stage, cell, head)
                mark = " dropped" if head in without else ""
                told.append("" if choice is None else f"{bound:.2f} ({choice[0]:g}, {choice[1]:g}){mark}")
            rows.append((stage, cell.estimator, _size(cell), *told))
    columns = ("stage", "estimator", "size", *rule.heads)
    about = "Mean bound on the validation images over the search seeds at the best setting (rate, temperature)."
    return f"## The search\n\n{about} No test is made of these.\n\n" + _table(columns, rows) if rows else ""


def _cells(rule: Rule, estimators: Iterable[str]) -> list[Cell]:
    return [Cell(*size, estimator) for estimator in estimators for size in rule.sizes]


def _size(cell: Cell) -> str:
    return f"{cell.variables}x{cell.classes}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return grid([head, *rows], names=len(head))
