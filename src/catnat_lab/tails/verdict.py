"""What the runs say: the best rate of every head, its result there, how robust it is, and which default that makes.

The rule, written down before any of these runs:

1. A member of the family (a tail with a gain) qualifies on a task if its result on the final seeds is within one
   standard error of the best member's: the standard error of the difference, paired by seed.
2. Of those that qualify on all graph and VAE tasks the default is the one whose least robustness over all tasks that
   have it is largest. Where none qualifies on all of them, those that qualify on the most are compared.
3. Of equals the larger tail wins, then the gain nearer to 1: the tamer one.

Robustness: around a head's best rate lies a tenfold range of rates, on a logarithmic scale half of it below. It is the
share of that range in which the validation result, interpolated between the rates that were tried, stays within the
task's tolerance of the head's own best. What lies beyond the tried rates does not count as within.

What was added when the runs were known. The rule does not ask whether a member trains at all where softmax does, and a
default must: people swap one line and keep softmax's settings. So a second table counts a member's runs of a classifier
that are lost where softmax, at the same rate and seed, loses none, and its lost final runs, and has its worst result on
the graph and VAE tasks. The default is the member that loses the fewest runs, and of equals the one whose worst result
is best.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from catnat_lab.experiment import Finished, Results
from catnat_lab.heads import activation_of
from catnat_lab.rates import by_rate
from catnat_lab.stats import Comparison, compare_all, summarize
from catnat_lab.tails.tasks import FAMILY, SOFTMAX, Outline

ERROR = "theta-MAE"
POINTS = 1001  # of the tenfold range
DECIDE = ("graphs", "VAE")  # the tasks whose results decide who qualifies
MORE = (ERROR, "lost edges")  # what graphs tell besides
LOST = 50.0  # per cent of a classifier's images wrong


def rate_means(task: Outline, head: str, results: Results, measure: str | None = None) -> dict[float, float]:
    """By rate, where all search seeds are there, the mean of their values or of a measure; lower values are better."""
    tried = results.stage((task.name, head), "search")
    seeds = Counter(trial.config["rate"] for trial in tried)
    return {rate: mean for rate, mean in by_rate(tried, measure).items() if seeds[rate] == task.search_seeds}


def best_rate(means: Mapping[float, float]) -> float:
    return min(means, key=means.__getitem__)


def robustness(task: Outline, means: Mapping[float, float]) -> float:
    """The share of the tenfold range around the best rate that is as good as it, within the task's tolerance."""
    best = best_rate(means)
    rates = sorted(means)
    worse = [abs(means[rate] - means[best]) for rate in rates]  # how much, infinite for a rate that diverged
    points = np.log10(best) + np.linspace(-0.5, 0.5, POINTS)
    lost = 1e9 * task.tolerance  # a line to infinity cannot be interpolated: it leaves the tolerance at once
    found = np.interp(points, np.log10(rates), np.minimum(worse, lost), left=lost, right=lost)
    return float((found <= task.tolerance).mean())


def rate_factor(task: Outline, head: str, results: Results) -> float:
    """By what to multiply a rate below softmax's best to end where softmax does: the median over those rates.

    Infinite where the head ends there at none of its rates, 0 where it is ahead at the smallest of them already.
    """
    softmax, own = rate_means(task, SOFTMAX, results), rate_means(task, head, results)
    below = [rate for rate in softmax if rate < best_rate(softmax)] if len(softmax) == len(task.rates) else []
    if len(own) < len(task.rates) or not below:
        return math.nan
    rising = [rate for rate in own if rate <= best_rate(own)]  # while more is better
    there = np.minimum.accumulate([own[rate] for rate in rising])  # a step back is noise
    factors = []
    for rate in below:
        wanted = softmax[rate]
        if wanted < there[-1] or wanted > there[0]:
            factors.append(math.inf if wanted < there[-1] else 0.0)
        else:
            factors.append(float(10 ** np.interp(-wanted, -there, np.log10(rising)) / rate))
    return float(np.median(factors))


@dataclass(frozen=True)
class Finding:
    head: str
    rate: float
    at_edge: bool  # whether the best rate is the first or the last of those tried
    values: tuple[float, ...]  # of the final seeds, in their order
    robustness: float
    against: Comparison  # with softmax, corrected by Holm over the task's heads
    more: dict[str, tuple[float, ...]]  # what else the final runs tell, by its name


def findings(task: Outline, results: Results) -> list[Finding]:
    """All heads of a task whose runs are all there; none where softmax's are not."""
    means = {head: rate_means(task, head, results) for head in task.heads}
    best = {head: best_rate(found) for head, found in means.items() if len(found) == len(task.rates)}
    finals: dict[str, list[Finished]] = {}
    for head, rate in best.items():
        final = [trial for trial in results.stage((task.name, head), "final") if trial.config["rate"] == rate]
        if len(final) == task.seeds and all(math.isfinite(trial.metrics["test"]) for trial in final):
            finals[head] = final
    if SOFTMAX not in finals:
        return []
    values = {head: tuple(trial.metrics["test"] for trial in final) for head, final in finals.items()}
    more = {
        head: {name: tuple(trial.metrics[name] for trial in final) for name in MORE if name in final[0].metrics}
        for head, final in finals.items()
    }
    against = compare_all({head: (own, values[SOFTMAX]) for head, own in values.items() if head != SOFTMAX})
    against[SOFTMAX] = Comparison(0.0, 0.0, 0.0, 0.0, 1.0)
    ends = min(task.rates), max(task.rates)
    return [
        Finding(head, best[head], best[head] in ends, own, robustness(task, means[head]), against[head], more[head])
        for head, own in values.items()
    ]


def qualifies(task: Outline, found: Finding, every: Sequence[Finding]) -> bool:
    """Whether a member of the family is within one standard error of the best member."""
    members = [each for each in every if each.head in FAMILY]
    best = min(members, key=lambda each: task.sign * summarize(each.values).mean)
    spread = summarize([task.sign * (a - b) for a, b in zip(found.values, best.values, strict=True)])
    return spread.mean <= spread.std / math.sqrt(spread.count)


def lost_runs(task: Outline, head: str, results: Results, stage: str) -> set[tuple[float, int]]:
    """By rate and seed, a classifier's runs that diverged or learned little."""
    found = results.stage((task.name, head), stage)
    return {(trial.config["rate"], trial.config["seed"]) for trial in found if trial.value > LOST}


@dataclass(frozen=True)
class Candidate:
    head: str
    qualified: int  # of the graph and VAE tasks
    least: float  # its least robustness
    lost: int  # search runs of the classifiers that softmax does not lose
    lost_finals: int  # final runs of the classifiers
    worst: float  # behind the best member on a graph or VAE task, in the task's tolerances


def candidates(found: Mapping[str, tuple[Outline, list[Finding]]], results: Results) -> list[Candidate]:
    """The members by the rule, its first one first; by task name, the task and its findings."""
    result = []
    begun = {name: pair for name, pair in found.items() if pair[1]}
    for head in FAMILY:
        own = {name: each for name, (_, every) in begun.items() for each in every if each.head == head}
        if not own:
            continue
        tasks = {name: task for name, (task, _) in begun.items() if head in task.heads}
        counted = [name for name in tasks if name.startswith(DECIDE)]
        passed = sum(qualifies(tasks[name], own[name], begun[name][1]) for name in counted if name in own)
        least = min(each.robustness for each in own.values())
        classifiers = [task for name, task in tasks.items() if name.startswith("classifier")]
        lost = finals = 0
        for task in classifiers:
            softmax, ours = (lost_runs(task, each, results, "search") for each in (SOFTMAX, head))
            lost, finals = lost + len(ours - softmax), finals + len(lost_runs(task, head, results, "final"))
        # a task whose final runs are not all there, or not all numbers, is the worst there is
        worst = max((_behind(*begun[name], own[name]) if name in own else math.inf for name in counted), default=0.0)
        result.append(Candidate(head, passed, least, lost, finals, worst))
    return sorted(result, key=lambda each: (-each.qualified, -each.least, *_tameness(each)))


def _behind(task: Outline, every: Sequence[Finding], found: Finding) -> float:
    """How far behind the best member, in tolerances."""
    best = min(task.sign * summarize(each.values).mean for each in every if each.head in FAMILY)
    return (task.sign * summarize(found.values).mean - best) / task.tolerance


def _tameness(candidate: Candidate) -> tuple[float, float]:
    activation = activation_of(candidate.head)
    return -getattr(activation, "tail", 0.5), abs(math.log(getattr(activation, "gain", 1.0)))


def safest(ranked: Sequence[Candidate]) -> list[Candidate]:
    """The same with the default first."""
    return sorted(ranked, key=lambda each: (each.lost + each.lost_finals, each.worst, *_tameness(each)))
