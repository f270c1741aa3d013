"""The study as tables and one figure; every sentence is computed from the runs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from catnat_lab.heads import DEFAULT
from catnat_lab.report.drawing import in_look
from catnat_lab.report.svg import FAINT, INK
from catnat_lab.stats import holm, summarize, welch
from catnat_lab.tails.jobs import PAPER, SIGMOID, SOFTMAX, Outline
from catnat_lab.tails.verdict import (
    DECIDE,
    LOST,
    Candidate,
    Finding,
    Results,
    candidates,
    rate_factor,
    rate_means,
    safest,
)

PM = "\N{PLUS-MINUS SIGN}"
SHOWN = {
    SIGMOID: ("#009E73", "D", "sigmoid"),
    DEFAULT: (INK, "*", "default"),
    PAPER: ("#D55E00", "o", "the paper's natural"),
}
SIGNIFICANT = 0.05
ERROR = "theta-MAE"
Found = Mapping[str, tuple[Outline, list[Finding]]]


def markdown(found: Found, results: Results) -> str:
    """A table for every task, then the rule's verdict and what became the default."""
    text = ["# How natural should it be?", "", *summary(found), ""]
    for task, every in found.values():
        better = "lower" if task.lower_is_better else "higher"
        text += [
            f"## {task.name}",
            "",
            f"{task.measure}, {better} is better; mean {PM} standard deviation over the final seeds.",
            "",
        ]
        text += _table(every, task, results) if every else ["Not finished yet."]
        text += [""]
    return "\n".join([*text, *_rates(found, results), "", *_verdict(found, results), ""])


def summary(found: Found) -> list[str]:
    """The default beside softmax, a line for every task."""
    own = {name: {each.head: each for each in every} for name, (_, every) in found.items()}
    own = {name: heads for name, heads in own.items() if DEFAULT in heads}
    ps = holm([welch(heads[DEFAULT].values, heads[SOFTMAX].values) for heads in own.values()])
    names = " | ".join(name for _, _, name in SHOWN.values())
    lines = [
        f"| task | measure | softmax | {names} | default minus softmax [95%] | p | the default is |",
        f"| --- | --- |{' ---: |' * 6} --- |",
    ]
    for (name, heads), p in zip(own.items(), ps, strict=True):
        task, default = found[name][0], heads[DEFAULT]
        better = (default.difference < 0) == task.lower_is_better
        verdict = "not told apart" if p >= SIGNIFICANT else "**better**" if better else "**worse**"
        cells = [_mean(heads[head].values) if head in heads else "" for head in (SOFTMAX, *SHOWN)]
        cells += [f"{default.difference:+.3g} [{default.interval[0]:+.3g}, {default.interval[1]:+.3g}]", f"{p:.2g}"]
        best = "lower is better" if task.lower_is_better else "higher is better"
        lines.append(f"| {name} | {task.measure}; {best} | {' | '.join(cells)} | {verdict} |")
    return [
        *lines,
        "",
        f"Mean {PM} standard deviation over the final seeds; each head at its best rate, which other seeds chose. "
        f"p: Welch's test, corrected by Holm over the tasks; told apart below {SIGNIFICANT}.",
    ]


def _table(every: Sequence[Finding], task: Outline, results: Results) -> list[str]:
    columns = ["head", "best rate", "result", "minus softmax [95%]", "Cohen's d", "p (Welch, Holm)", "robustness"]
    columns += list(every[0].more)
    lines = [f"| {' | '.join(columns)} |", f"| --- |{' ---: |' * (len(columns) - 1)}"]
    for each in every:
        against = ["", "", ""]
        if each.head != SOFTMAX:
            low, high = each.interval
            against = [f"{each.difference:+.3g} [{low:+.3g}, {high:+.3g}]", f"{each.effect:+.1f}", f"{each.p:.2g}"]
        rate = f"{each.rate:g}{' (edge)' if each.at_edge else ''}"
        cells = [
            each.head,
            rate,
            _mean(each.values),
            *against,
            f"{each.robustness:.2f}",
            *map(_mean, each.more.values()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    there = {each.head for each in every}
    for told, heads in _absent(task, there, results).items():
        if heads:
            lines += ["", f"{told}: {', '.join(heads)}."]
    if ERROR in every[0].more:
        least = {head: min(errors) for head in task.heads if (errors := _errors(task, head, results))}
        found = ", ".join(f"{head} {error:.4f}" for head, error in least.items())
        lines += ["", f"The least {ERROR} of all rates, the mean over the search seeds: {found}."]
    return lines


def _absent(task: Outline, there: set[str], results: Results) -> dict[str, list[str]]:
    diverged: list[str] = []
    missing: list[str] = []
    for head in task.heads:
        final = [r for job, r in results.items() if job[:2] == (task.name, head) and not job.is_search]
        if head not in there:
            (diverged if len(final) >= task.seeds else missing).append(head)
    return {"Not finished": missing, "With a final run that diverged": diverged}


def _errors(task: Outline, head: str, results: Results) -> list[float]:
    """The mean error of theta of every rate."""
    found = []
    for rate in task.rates:
        some = [r.more[ERROR] for job, r in results.items() if job[:3] == (task.name, head, rate) and job.is_search]
        if len(some) == task.search_seeds and all(map(math.isfinite, some)):
            found.append(sum(some) / len(some))
    return found


def _mean(values: Sequence[float]) -> str:
    result = summarize(values)
    return f"{result.mean:.4g} {PM} {result.std:.2g}"


def _rates(found: Found, results: Results) -> list[str]:
    shown = {head: name for head, (_, _, name) in SHOWN.items()}
    lines = [
        "## Rates that are equivalent to softmax's",
        "",
        "By how much to multiply a rate at which softmax still learns slowly, so the head ends where softmax does: "
        "the median over the rates below softmax's best. Then the best rates; * is an end of those that were tried.",
        "",
        f"| task | {' | '.join(shown.values())} | best: softmax | {' | '.join(shown.values())} |",
        f"| --- |{' ---: |' * (2 * len(shown) + 1)}",
    ]
    for task, every in found.values():
        best = {each.head: f"{each.rate:g}{'*' if each.at_edge else ''}" for each in every}
        if best:
            factors = {head: rate_factor(task, head, results) for head in shown}
            cells = [_factor(factor) for factor in factors.values()]
            cells += [best.get(head, "") for head in (SOFTMAX, *shown)]
            lines.append(f"| {task.name} | {' | '.join(cells)} |")
    return lines


def _factor(factor: float) -> str:
    if math.isnan(factor):
        return ""
    return "out of reach" if factor == math.inf else "ahead at all" if factor == 0 else f"{factor:.2g}"


def _verdict(found: Found, results: Results) -> list[str]:
    ranked = candidates(found, results)
    if not ranked:
        return ["No member of the family is finished on any task."]
    counted = sum(1 for name, (_, every) in found.items() if every and name.startswith(DECIDE))
    safe = safest(ranked)
    lines = [
        "## The rule's verdict",
        "",
        f"| member | qualifies on, of {counted} graph and VAE tasks | least robustness |",
        "| --- | ---: | ---: |",
        *(f"| {each.head} | {each.qualified} | {each.least:.2f} |" for each in ranked),
        "",
        f"First by the rule, as it was written before the runs: **{ranked[0].head}**.",
        "",
        "## Who trains where softmax trains",
        "",
        "The rule does not ask that, and a default must train with softmax's settings; so this was added when the runs "
        f"were known. A classifier's run is lost if it diverged, or errs on more than {LOST:g}% of the images. Counted "
        "are the search runs of all rates that are lost where softmax's run of the same rate and seed is not, and the "
        "final runs.",
        "",
        "| member | lost runs | lost final runs | worst graph or VAE task, in tolerances behind the best member |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {each.head} | {each.lost} | {each.lost_finals} | {each.worst:.2f} |" for each in safe),
        "",
        f"{ranked[0].head} loses {ranked[0].lost} and {ranked[0].lost_finals}. The fewest, {_lost(safe[0])} in all: "
        f"{', '.join(each.head for each in safe if _lost(each) == _lost(safe[0]))}. Of the fewest **{safe[0].head}** "
        "has the best worst task.",
    ]
    waiting = [name for name, (_, every) in found.items() if not every]
    return lines if not waiting else [*lines, "", f"Preliminary: without {'; '.join(waiting)}."]


def _lost(member: Candidate) -> int:
    return member.lost + member.lost_finals


def as_csv(found: Found, results: Results) -> str:
    """Every head, rate and task: the mean validation result by rate, and the final seeds' at the best one."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["task", "head", "rate", "validation", "final mean", "final std", "final seeds", "robustness"])
    for task, every in found.values():
        finals = {each.head: each for each in every}
        for head in task.heads:
            for rate, value in rate_means(task, head, results).items():
                row: list[object] = [task.name, head, f"{rate:g}", f"{value:.6g}"]
                if head in finals and finals[head].rate == rate:
                    result = summarize(finals[head].values)
                    row += [f"{result.mean:.6g}", f"{result.std:.3g}", result.count, f"{finals[head].robustness:.3f}"]
                writer.writerow([*row, *[""] * (8 - len(row))])
    return file.getvalue()


@in_look
def figure(found: Found) -> Figure:
    """A row for every finished task: how much better than softmax, with 95% intervals."""
    rows = [(task, {each.head: each for each in every}) for task, every in found.values() if every]
    drawn = Figure(figsize=(7.2, 0.75 + 0.5 * max(1, len(rows))), layout="constrained")
    for i, (task, heads) in enumerate(rows):
        axes = drawn.add_subplot(max(1, len(rows)), 1, i + 1)
        _draw_row(axes, task, {head: heads[head] for head in SHOWN if head in heads})
    if rows:
        unit = "each row in its own unit; 95% intervals, uncorrected"
        axes.set_xlabel(f"worse than softmax  |  better than softmax ({unit})", fontsize=8)
        handles = [axes.plot([], [], marker, color=colour, label=name)[0] for colour, marker, name in SHOWN.values()]
        drawn.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=8)
    return drawn


def _draw_row(axes: Axes, task: Outline, heads: Mapping[str, Finding]) -> None:
    sign = -1 if task.lower_is_better else 1
    # the paper's natural may be so far behind that the others would be one point
    most = [abs(end) for head, each in heads.items() if head != PAPER for end in each.interval]
    reach = 1.5 * max(filter(math.isfinite, most), default=1.0)
    for place, (head, (colour, marker, _)) in enumerate(SHOWN.items()):
        if head not in heads:
            axes.text(0.0, -place, "not run", color=colour, fontsize=7, ha="center", va="center")
            continue
        better = sign * heads[head].difference
        if abs(better) < reach:
            ends = sorted(sign * end for end in heads[head].interval)
            axes.plot(ends, [-place] * 2, color=colour, linewidth=1.4)
            for end, arrow in zip(ends, "<>", strict=True):
                if abs(end) > reach:  # it goes on
                    axes.plot([math.copysign(0.985 * reach, end)], [-place], arrow, color=colour, markersize=4)
            axes.plot([better], [-place], marker, color=colour, markersize=6)
        else:
            edge = math.copysign(0.97 * reach, better)
            axes.plot([edge], [-place], "<" if better < 0 else ">", color=colour, markersize=6)
            side = "left" if better < 0 else "right"
            axes.text(0.94 * edge, -place, f"{better:+.2g}", color=colour, fontsize=7, ha=side, va="center")
    axes.axvline(0, color=FAINT, linewidth=1)
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-2.7, 0.7)
    axes.set_yticks([-1], [f"{task.name}\n({task.measure.split(',')[-1].strip()})"], fontsize=7)
    axes.tick_params(axis="x", labelsize=7)
