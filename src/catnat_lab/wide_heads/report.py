"""The study as a table, a figure and numbers; every sentence is computed from the runs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from catnat_lab.experiment import Finished, Results
from catnat_lab.files import write
from catnat_lab.report.figures import Curve, CurvePanel, curve_of, draw_curves
from catnat_lab.report.page import as_csv
from catnat_lab.report.study import is_at_an_end, points
from catnat_lab.report.table import DASH, Table, grid
from catnat_lab.stats import ALPHA, Comparison, compare, compare_all, summarize
from catnat_lab.studies import Study
from catnat_lab.wide_heads.heads import RIVALS, SOFTMAX
from catnat_lab.wide_heads.train import CLOCK, NOTE, study_name

MEASURE = "nats per token"


def load(study: Study) -> Results:
    settings = study.note(NOTE)
    found: dict[tuple[str, ...], list[Finished]] = {
        (head,): study.finished(study_name(settings["task"], head)) for head in settings["heads"]
    }
    return Results(settings | {"clock": study.note(CLOCK) or {}}, found, study.note("words provenance") or {})


@dataclass(frozen=True)
class Line:
    """A head whose final runs are finite numbers, two at least."""

    head: str
    rate: str
    values: tuple[float, ...]  # on the test part
    curve: Curve  # validation by steps
    against: Comparison | None  # with softmax, corrected by Holm over the heads; None of softmax itself
    ms: float  # of a step; not a number where nothing was timed
    peak: float  # MiB

    @property
    def mean(self) -> float:
        return summarize(self.values).mean

    @property
    def steps(self) -> NDArray[Any]:
        return np.asarray(self.curve.steps, float)

    def seconds_to(self, level: float) -> float:
        """Of training until its mean curve is down there; infinite where it never is."""
        nats = np.minimum.accumulate(np.asarray(self.curve.mean, float))
        return math.inf if nats[-1] > level else float(np.interp(-level, -nats, self.steps)) * self.ms / 1000


def lines_of(results: Results) -> list[Line]:
    """The best first."""
    settings, lines = results.settings, []
    values = {head: results.final((head,), "test") for head in settings["heads"]}
    values = {head: own for head, own in values.items() if len(own) > 1 and all(map(math.isfinite, own))}
    base = values.get(SOFTMAX)
    against = compare_all({head: (own, base) for head, own in values.items() if base and head != SOFTMAX})
    for head, own in values.items():
        final = results.stage((head,), "final")
        curve, rate, tried = curve_of(final, "validation"), final[0].config["rate"], settings["rates"]
        assert curve is not None
        told = f"{rate:g}{' (edge)' if is_at_an_end(rate, tried) else ''}"
        timed = settings["clock"].get(head, {"ms": math.nan, "MiB": math.nan})
        lines.append(Line(head, told, own, curve, against.get(head), timed["ms"], timed["MiB"]))
    return sorted(lines, key=lambda line: line.mean)


def write_report(results: Results, folder: Path) -> tuple[Path, tuple[Table, ...]]:
    """Write wide_heads.md, which is printed too, all values and curves, and the figure."""
    lines = lines_of(results)
    text = "\n\n".join(markdown(lines, results)) + "\n"
    write(folder / "values.csv", as_csv(values_of(results)))
    write(folder / "curves.csv", as_csv(curves_of(results)))
    if lines:
        figure(lines).savefig(folder / "wide_heads.svg", facecolor="white")
    print(text)
    return write(folder / "wide_heads.md", text), ()


def verdict(lines: list[Line]) -> str:
    softmax = next((line for line in lines if line.head == SOFTMAX), None)
    tree = next((line for line in lines if line.head not in RIVALS and not line.head.startswith(SOFTMAX)), None)
    if softmax is None or tree is None or (gap := tree.against) is None:
        return "Too few runs have ended well to compare a catnat with softmax."
    sure = f"{'' if gap.p < ALPHA else 'not significant, '}p = {gap.p:.2g}"
    where = "ahead of" if gap.difference < 0 else "behind"
    speed = "" if math.isnan(tree.ms) else f"; a step of training takes {tree.ms / softmax.ms:.2f} of softmax's time"
    return (
        f"The best catnat, {tree.head}, is {abs(gap.difference):.3f} nats per token {where} softmax "
        f"(95% interval {gap.low:+.3f} to {gap.high:+.3f}, {sure}){speed}. The best head of all is {lines[0].head}."
    )


def markdown(lines: list[Line], results: Results) -> Iterator[str]:
    s, level = results.settings, level_of(lines)
    yield f"# How good is a wide head? {s['task'].capitalize()}, {s['classes']:,} classes"
    absent = [head for head in s["heads"] if head not in {line.head for line in lines}]
    so_far = f"So far {len(lines)} of {len(s['heads'])} heads can be compared. " if lines and absent else ""
    yield so_far + verdict(lines)
    columns = ["head", f"{MEASURE}, test [95%]", "minus softmax [95%]", "p (Welch, Holm)", "best rate", "ms per step"]
    rows = [[*columns, f"seconds to {level:.2f} in validation", "peak MiB"]]
    for line in lines:
        own = compare(line.values, (0.0, 0.0))  # beside a constant its interval is Student's
        gap = line.against
        against = [f"{gap.difference:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]", f"{gap.p:.2g}"] if gap else ["", ""]
        costs = [_number(line.ms, 1), _number(line.seconds_to(level), 1), _number(line.peak, 0)]
        rows.append([line.head, f"{line.mean:.3f} [{own.low:.3f}, {own.high:.3f}]", *against, line.rate, *costs])
    if lines:
        yield grid(rows, names=1)
    if absent:
        yield f"Not finished, or with a run that diverged: {', '.join(absent)}."
    counts = sorted({len(line.values) for line in lines}) or [0]
    seeds = " to ".join(dict.fromkeys(map(str, (counts[0], counts[-1]))))
    tried = ", ".join(f"{rate:g}" for rate in s["rates"])
    yield (
        f"{seeds} of {s['seeds']} final seeds, {s['steps']:,} steps of {s['batch']} x {s['length']} tokens; "
        f"{s['layers']} layers of width {s['width']}. All heads of a seed share the network's first weights and the "
        f"batches; the tests do not pair them, and intervals are over seeds on one text. The best rate of {tried} is "
        f"that with the least validation nats after {s['search_steps']} steps of another seed."
    )
    if not math.isnan(level):
        yield (
            "A step is timed with network and Adam, alone on its device: the median of interleaved rounds. Seconds are "
            "that times steps, without judging, and without the new tree of sigmoid-refitted. "
            f"{level:.2f} is where softmax's validation is after half its steps."
        )


def level_of(lines: list[Line]) -> float:
    """What softmax has reached after half its steps."""
    for line in lines:
        if line.head == SOFTMAX:
            return round(float(np.interp(line.steps[-1] / 2, line.steps, np.asarray(line.curve.mean, float))), 2)
    return math.nan


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else DASH


def values_of(results: Results) -> Iterator[dict[str, Any]]:
    """Every run."""
    for (head,), trials in results.trials.items():
        for trial in trials:
            judged = {"validation": trial.value, "test": trial.metrics.get("test", "")}
            yield {"head": head} | trial.config | judged | results.settings["clock"].get(head, {})


def curves_of(results: Results) -> Iterator[dict[str, Any]]:
    """Validation over training of every final run."""
    clock = results.settings["clock"]
    for point in points(results, lambda place: {"head": place[0]}, ("seed",), {"validation": "validation"}):
        seconds = point["step"] * clock.get(point["head"], {}).get("ms", math.nan) / 1000
        yield {"head": point["head"], "seed": point["seed"], "step": point["step"], "seconds": seconds} | point


def figure(lines: list[Line]) -> Figure:
    """Validation by steps, and by seconds; the band is one standard deviation over seeds."""
    timed = all(line.ms > 0 for line in lines)
    by_steps = {line.head: line.curve for line in lines}
    by_seconds = {line.head: replace(line.curve, steps=line.steps * line.ms / 1000) for line in lines}
    along = "seconds of training, alone on its device"
    panels = [CurvePanel("By steps", by_steps), CurvePanel("By seconds", by_seconds, along=along, is_log=timed)]
    return draw_curves(panels, f"{MEASURE}, validation")
