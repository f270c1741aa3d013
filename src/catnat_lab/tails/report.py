"""The study as tables and one figure; every sentence is computed from the runs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from catnat_lab.experiment import Results
from catnat_lab.files import write
from catnat_lab.heads import DEFAULT
from catnat_lab.report.figures import Strip, draw_differences
from catnat_lab.report.page import as_csv
from catnat_lab.report.table import Table, grid
from catnat_lab.stats import ALPHA, Comparison, compare_all, summarize
from catnat_lab.studies import Study
from catnat_lab.tails.study import NOTE, study_name
from catnat_lab.tails.tasks import PAPER, SIGMOID, SOFTMAX, Outline, outline_of
from catnat_lab.tails.verdict import DECIDE, ERROR, LOST, Finding, candidates, findings, rate_factor, rate_means, safest

NAMES = {SIGMOID: "catnat-sigmoid", DEFAULT: "catnat", PAPER: "catnat-paper"}
MEANS = "mean ± standard deviation over the final seeds"
Found = Mapping[str, tuple[Outline, list[Finding]]]


def load(study: Study) -> Results:
    settings = study.note(NOTE)
    places = [(name, head) for name, task in settings.items() for head in task["heads"]]
    trials = {place: study.finished(study_name(*place)) for place in places}
    return Results(settings, dict(trials), study.note("tails provenance") or {})


def write_report(results: Results, folder: Path) -> tuple[Path, tuple[Table, ...]]:
    """Write tails.md, with tables of its own, which is printed too, the numbers and the figure."""
    tasks = map(outline_of, results.settings.values())
    found = {task.name: (task, findings(task, results)) for task in tasks}
    text = markdown(found, results)
    write(folder / "tails.csv", as_csv(values_of(found, results)))
    figure(found).savefig(folder / "tails.svg", facecolor="white")
    print(text)
    return write(folder / "tails.md", text), ()


def markdown(found: Found, results: Results) -> str:
    """A table for every task, then the rule's verdict and what became the default."""
    text = ["# How natural should it be?", *_summary(found)]
    for task, every in found.values():
        text += [f"## {task.name}", f"{task.measure}, {_better(task)} is better; {MEANS}."]
        text += _table(every, task, results) if every else ["Not finished yet."]
    return "\n\n".join([*text, *_rates(found, results), *_verdict(found, results)]) + "\n"


def _better(task: Outline) -> str:
    return "lower" if task.lower_is_better else "higher"


def _summary(found: Found) -> Iterator[str]:
    """The default beside softmax, a line for every task."""
    own = {name: {each.head: each for each in every} for name, (_, every) in found.items()}
    own = {name: heads for name, heads in own.items() if DEFAULT in heads}
    against = compare_all({name: (heads[DEFAULT].values, heads[SOFTMAX].values) for name, heads in own.items()})
    rows = [["task", "measure", "softmax", *NAMES.values(), "catnat minus softmax [95%]", "p", "catnat is"]]
    for name, heads in own.items():
        task, gap = found[name][0], against[name]
        verdict = "**better**" if (gap.difference < 0) == task.lower_is_better else "**worse**"
        cells = [_mean(heads[head].values) if head in heads else "" for head in (SOFTMAX, *NAMES)]
        told = [_gap(gap), f"{gap.p:.2g}", verdict if gap.p < ALPHA else "not significantly different"]
        rows.append([name, f"{task.measure}; {_better(task)} is better", *cells, *told])
    yield grid(rows, names=2, words=1)
    yield (
        f"{MEANS.capitalize()}; each head at its best rate, which other seeds chose. "
        f"p: Welch's test, corrected by Holm over the tasks; significant below {ALPHA}."
    )


def _gap(found: Comparison) -> str:
    return f"{found.difference:+.3g} [{found.low:+.3g}, {found.high:+.3g}]"


def _mean(values: Sequence[float]) -> str:
    result = summarize(values)
    return f"{result.mean:.4g} ± {result.std:.2g}"


def _table(every: Sequence[Finding], task: Outline, results: Results) -> Iterator[str]:
    columns = ["head", "best rate", "result", "minus softmax [95%]", "Cohen's d", "p (Welch, Holm)", "robustness"]
    rows = [[*columns, *every[0].more]]
    for each in every:
        gap = each.against
        against = ["", "", ""] if each.head == SOFTMAX else [_gap(gap), f"{gap.effect:+.1f}", f"{gap.p:.2g}"]
        rate = f"{each.rate:g}{' (edge)' if each.at_edge else ''}"
        more = [f"{each.robustness:.2f}", *map(_mean, each.more.values())]
        rows.append([each.head, rate, _mean(each.values), *against, *more])
    yield grid(rows, names=1)
    absent = [head for head in task.heads if head not in {each.head for each in every}]
    final = {head: len(results.stage((task.name, head), "final")) for head in absent}
    for told, is_there in (("Not finished", False), ("With a final run that diverged", True)):
        if heads := [head for head in absent if (final[head] >= task.seeds) == is_there]:
            yield f"{told}: {', '.join(heads)}."
    if ERROR in every[0].more:
        errors = {head: rate_means(task, head, results, ERROR).values() for head in task.heads}
        least = {head: min(finite) for head, some in errors.items() if (finite := [*filter(math.isfinite, some)])}
        told = ", ".join(f"{head} {error:.4f}" for head, error in least.items())
        yield f"The least {ERROR} of all rates, the mean over the search seeds: {told}."


def _rates(found: Found, results: Results) -> Iterator[str]:
    yield "## Rates that are equivalent to softmax's"
    yield (
        "By how much to multiply a rate at which softmax still learns slowly, so the head ends where softmax does: "
        "the median over the rates below softmax's best. Then the best rates; * is an end of those that were tried."
    )
    rows = [["task", *NAMES.values(), "best: softmax", *NAMES.values()]]
    for task, every in found.values():
        if best := {each.head: f"{each.rate:g}{'*' if each.at_edge else ''}" for each in every}:
            factors = [_factor(rate_factor(task, head, results)) for head in NAMES]
            rows.append([task.name, *factors, *(best.get(head, "") for head in (SOFTMAX, *NAMES))])
    yield grid(rows, names=1)


def _factor(factor: float) -> str:
    if math.isnan(factor):
        return ""
    return "out of reach" if factor == math.inf else "ahead at all" if factor == 0 else f"{factor:.2g}"


def _verdict(found: Found, results: Results) -> Iterator[str]:
    ranked = candidates(found, results)
    if not ranked:
        yield "No member of the family is finished on any task."
        return
    counted = sum(1 for name, (_, every) in found.items() if every and name.startswith(DECIDE))
    yield "## The rule's verdict"
    head = ["member", f"qualifies on, of {counted} graph and VAE tasks", "least robustness"]
    yield grid([head, *([each.head, f"{each.qualified}", f"{each.least:.2f}"] for each in ranked)], names=1)
    yield f"First by the rule, as it was written before the runs: **{ranked[0].head}**."
    yield "## Who trains where softmax trains"
    yield (
        "The rule does not ask that, and a default must train with softmax's settings; so this was added when the runs "
        f"were known. A classifier's run is lost if it diverged, or errs on more than {LOST:g}% of the images. Counted "
        "are the search runs of all rates that are lost where softmax's run of the same rate and seed is not, and the "
        "final runs."
    )
    safe = safest(ranked)
    head = ["member", "lost runs", "lost final runs", "worst graph or VAE task, in tolerances behind the best member"]
    yield grid([head, *([c.head, f"{c.lost}", f"{c.lost_finals}", f"{c.worst:.2f}"] for c in safe)], names=1)
    fewest = safe[0].lost + safe[0].lost_finals
    yield (
        f"{ranked[0].head} loses {ranked[0].lost} and {ranked[0].lost_finals}. The fewest, {fewest} in all: "
        f"{', '.join(c.head for c in safe if c.lost + c.lost_finals == fewest)}. Of the fewest **{safe[0].head}** "
        "has the best worst task."
    )
    if waiting := [name for name, (_, every) in found.items() if not every]:
        yield f"Preliminary: without {'; '.join(waiting)}."


def values_of(found: Found, results: Results) -> Iterator[dict[str, object]]:
    """Every head, rate and task: the mean validation result by rate, and the final seeds' at the best one."""
    for task, every in found.values():
        finals = {each.head: each for each in every}
        for head in task.heads:
            for rate, value in rate_means(task, head, results).items():
                row = {"task": task.name, "head": head, "rate": rate, "validation": task.sign * value}
                names = ("final mean", "final std", "final seeds", "robustness")
                final: list[object] = [""] * 4
                if head in finals and finals[head].rate == rate:
                    result = summarize(finals[head].values)
                    final = [result.mean, f"{result.std:.3g}", result.count, f"{finals[head].robustness:.3f}"]
                yield row | dict(zip(names, final, strict=True))


def figure(found: Found) -> Figure:
    """A strip for every finished task: how much better than softmax, with 95% intervals."""
    strips = []
    for task, every in found.values():
        own = {NAMES[each.head]: each.against for each in every if each.head in NAMES}
        label = f"{task.name}\n({task.measure.split(',')[-1].strip()})"
        strips += [Strip(label, own, task.lower_is_better)] if own else []
    return draw_differences(strips)
