"""The rule of results/latents/RULE.md as code: what is run next, given what has been measured."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

from catnat_lab.latents.heads import HEADS
from catnat_lab.latents.records import Group, Results
from catnat_lab.latents.train import ESTIMATORS, Cell, Run

SIZES = ((16, 8), (12, 16), (30, 10), (24, 4), (8, 64), (4, 8))  # variables by classes
RATES = (0.0005, 0.001, 0.002)
LOW, HIGH = (0.3, 0.6, 1.0), (0.7, 1.0, 1.4)
TEMPERATURES = {
    "reinmax": HIGH,
    "gumbel-softmax": LOW,
    "straight-through": HIGH,
    "gumbel-rao": LOW,
    "score-function": (1.0,),
}
SHARES = (1.0, 0.707, 0.5)  # of the coarse rate that full-length runs try; if the last is best, half of it too
WIDENED = 2  # how often a grid of rates grows at either end
BEHIND, FAR_BEHIND = 5.0, 10.0  # nats after which a head, or an estimator, is dropped at a size
FIRST, FIRST_ESTIMATOR = ("softmax", "catnat"), "reinmax"  # never dropped
CONTROLLED, REPEATED = (16, 8), ((16, 8), (12, 16))
STAGES = ("coarse", "full", "final", "control", "again")
Choice = tuple[float, float]  # a rate and a temperature


@dataclass(frozen=True)
class Rule:
    """Its numbers; a rehearsal has smaller ones."""

    sizes: tuple[tuple[int, int], ...] = SIZES
    estimators: tuple[str, ...] = tuple(ESTIMATORS)
    heads: tuple[str, ...] = HEADS
    stages: tuple[str, ...] = STAGES
    short: int = 40  # epochs
    long: int = 160
    search_seeds: tuple[int, ...] = (0, 1001)
    final_seeds: int = 16

    def epochs(self, stage: str) -> int:
        return self.short if stage == "coarse" else self.long


def next_group(rule: Rule, done: Results) -> Group | None:
    """The first group in the rule's order that has runs left, with those that are left."""
    for group in _groups(rule, done):
        left = tuple(job.run for job in group.jobs if job not in done)
        if group.stage in rule.stages and left:
            return Group(group.stage, group.cell, left)
    return None


def _groups(rule: Rule, done: Results) -> Iterator[Group]:
    """An estimator after the other: all its coarse searches, then size by size the rest, softmax and catnat first."""
    waves = [[h for h in rule.heads if h in FIRST], [h for h in rule.heads if h not in FIRST]]
    for estimator in rule.estimators:
        cells = [Cell(*size, estimator) for size in rule.sizes]
        for cell in cells:
            yield from _coarse(rule, done, cell)
        for wave in waves:
            for cell in cells:
                yield from _long(rule, done, cell, [h for h in wave if h not in dropped(rule, done, cell)])
        if estimator == FIRST_ESTIMATOR:
            yield from _held_up(rule, done, cells)


def _coarse(rule: Rule, done: Results, cell: Cell) -> Iterator[Group]:
    temperatures = TEMPERATURES[cell.estimator]

    def group(rates: dict[str, list[float]]) -> Group:
        runs = [
            Run(head, rate, temperature, seed)
            for head in rule.heads
            for rate in rates.get(head, ())
            for temperature in temperatures
            for seed in rule.search_seeds
        ]
        return Group("coarse", cell, tuple(runs))

    yield group({head: list(RATES) for head in rule.heads})
    yield group({head: _wider(rule, done, cell, head) for head in rule.heads})


def _wider(rule: Rule, done: Results, cell: Cell, head: str) -> list[float]:
    """The next rate beyond the end where the best is, unless enough were added."""
    means = _means(rule, done, "coarse", cell, head)
    if not means:
        return []
    tried = sorted({job.run.rate for job in done if (job.stage, job.cell, job.run.head) == ("coarse", cell, head)})
    rate, _ = min(means, key=means.__getitem__)
    if rate == tried[0] and sum(each < RATES[0] for each in tried) < WIDENED:
        return [rounded(rate / 2)]
    if rate == tried[-1] and sum(each > RATES[-1] for each in tried) < WIDENED:
        return [rounded(rate * 2)]
    return []


def _long(rule: Rule, done: Results, cell: Cell, heads: list[str]) -> Iterator[Group]:
    """The search at full length, and what stands on it."""
    searched: list[Run] = []
    for head in heads:
        if (coarse := best(rule, done, "coarse", cell, head)) is not None:
            searched += [
                Run(head, rounded(coarse[0] * share), coarse[1], seed) for share in SHARES for seed in rule.search_seeds
            ]
    yield Group("full", cell, tuple(searched))
    lower: list[Run] = []
    for head in heads:
        coarse, full = best(rule, done, "coarse", cell, head), best(rule, done, "full", cell, head)
        if coarse is not None and full is not None and full[0] <= rounded(coarse[0] * SHARES[-1]):
            lower += [Run(head, rounded(coarse[0] * SHARES[-1] / 2), coarse[1], seed) for seed in rule.search_seeds]
    yield Group("full", cell, tuple(lower))
    yield _chosen(rule, done, cell, "final", heads, range(1, rule.final_seeds + 1))


def _held_up(rule: Rule, done: Results, cells: list[Cell]) -> Iterator[Group]:
    """The finals of the first question in full float32, and by other seeds."""
    for cell in cells:
        if (cell.variables, cell.classes) == CONTROLLED:
            yield _chosen(rule, done, cell, "control", FIRST, range(1, 5))
    for cell in cells:
        if (cell.variables, cell.classes) in REPEATED:
            yield _chosen(rule, done, cell, "again", FIRST, range(101, 101 + rule.final_seeds))


def _chosen(rule: Rule, done: Results, cell: Cell, stage: str, heads: Iterable[str], seeds: range) -> Group:
    """Runs at the best settings of the search at full length."""
    found = {head: best(rule, done, "full", cell, head) for head in heads}
    runs = [Run(head, *choice, seed) for head, choice in found.items() if choice is not None for seed in seeds]
    return Group(stage, cell, tuple(runs))


def best(rule: Rule, done: Results, stage: str, cell: Cell, head: str) -> Choice | None:
    """The rate and temperature with the lowest mean bound on validation images."""
    means = _means(rule, done, stage, cell, head)
    return min(means, key=means.__getitem__) if means else None


def lowest(rule: Rule, done: Results, stage: str, cell: Cell, head: str) -> float:
    return min(_means(rule, done, stage, cell, head).values(), default=math.inf)


def dropped(rule: Rule, done: Results, cell: Cell) -> list[str]:
    """Heads that are not run at full length at this size by this estimator."""
    bounds = {head: lowest(rule, done, "coarse", cell, head) for head in rule.heads}
    level = min(bounds.values())
    if not math.isfinite(level):
        return []
    far = False
    if cell.estimator != FIRST_ESTIMATOR:
        before = rule.estimators[: rule.estimators.index(cell.estimator)]
        others = [Cell(cell.variables, cell.classes, estimator) for estimator in before]
        reached = [lowest(rule, done, "coarse", other, head) for other in others for head in rule.heads]
        far = level > min(reached, default=math.inf) + FAR_BEHIND
    return [h for h, bound in bounds.items() if h not in FIRST and (far or bound > level + BEHIND)]


def _means(rule: Rule, done: Results, stage: str, cell: Cell, head: str) -> dict[Choice, float]:
    """By setting, the mean over the search seeds of the bound on validation images; none where one is not finite."""
    found: dict[Choice, list[float]] = {}
    for job, measured in done.items():
        if (job.stage, job.cell, job.run.head) == (stage, cell, head):
            found.setdefault((job.run.rate, job.run.temperature), []).append(measured.get("validation", math.nan))
    return {
        choice: fmean(values)
        for choice, values in found.items()
        if len(values) == len(rule.search_seeds) and all(map(math.isfinite, values))
    }


def rounded(rate: float) -> float:
    """To three digits."""
    return float(f"{rate:.3g}")
