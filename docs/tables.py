"""The tables in these pages, from results/ or computed: `python docs/tables.py` writes them anew, and a test sees it.

A table stands between `<!-- table NAME -->` and `<!-- /table -->`.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations, product
from pathlib import Path
from statistics import fmean, geometric_mean, median, stdev
from typing import Any

import numpy as np
from scipy.stats import f_oneway, fisher_exact, mannwhitneyu, ttest_1samp

from catnat import Natural, Tree
from catnat_lab.files import read
from catnat_lab.stats import ALPHA, Comparison, bootstrap, compare, compare_all, holm, improvement, interquartile_mean

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
PAPER = DOCS.parent / "src" / "catnat_lab" / "paper"
HEADS = ("sparsemax", "softmax", "catnat-sigmoid", "catnat-paper", "catnat")
Row = dict[str, str]
Cell = tuple[str, str, str]  # kind of digits, N and K
NOISES = {"normal": "normal", "skewed": "skewed", "heavy": "heavy-tailed"}  # of simulated studies


def rows_of(path: Path) -> list[Row]:
    return list(csv.DictReader(read(path).splitlines()))


def grid(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [list(head), ["---"] + ["---:"] * (len(head) - 1), *map(list, body)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def least_bold(table: dict[str, list[tuple[float, str]]]) -> list[list[str]]:
    """Numbers with their texts, by line; the least of each column is bold, but for what is in parentheses."""
    least = [min(number for number, _ in column) for column in zip(*table.values(), strict=True)]

    def marked(text: str) -> str:
        ours, bracket, paper = text.partition(" (")
        return f"**{ours}**{bracket}{paper}"

    return [
        [name, *(marked(text) if number == best else text for (number, text), best in zip(cells, least, strict=True))]
        for name, cells in table.items()
    ]


def graphs() -> str:
    """The error of θ, ours and the paper's."""
    ours = [row for row in rows_of(RESULTS / "gsl" / "values.csv") if row["stage"] == "final"]
    paper = {
        (f"{float(row['theta_star']):g}", row["head"]): float(row["theta_mae_mean"])
        for row in rows_of(PAPER / "gsl.csv")
    }
    thetas = list(dict.fromkeys(row["theta_star"] for row in ours))
    table: dict[str, list[tuple[float, str]]] = {}
    for head in HEADS:
        for theta in thetas:
            mean = fmean(float(r["theta_mae"]) for r in ours if (r["theta_star"], r["head"]) == (theta, head))
            theirs = f" ({paper[theta, head]:.4f})" if (theta, head) in paper else ""
            table.setdefault(head, []).append((mean, f"{mean:.4f}{theirs}"))
    return grid(["θ*", *thetas], least_bold(table))


def finals(table: str, measure: str = "nll") -> dict[tuple[str, str, str, str], list[float]]:
    """By kind of digits, N, K and head, a number of the final runs; by size, and whole cells alone."""
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for row in rows_of(RESULTS / "vae" / table / "values.csv"):
        if row["stage"] == "final":
            key = row["data"], row["variables"], row["classes"], row["head"]
            found.setdefault(key, []).append(float(row[measure]))
    seeds = max(map(len, found.values()))
    whole = [key for key in found if all(len(found.get((*key[:3], head), ())) == seeds for head in HEADS)]
    return {key: found[key] for key in sorted(whole, key=lambda key: (key[0] == "binary", int(key[1]), int(key[2])))}


def autoencoders(table: str, kind: str) -> str:
    """The test negative log-likelihood, ours and the paper's."""
    found = finals(table)
    paper = {
        (row["data"], row["n_variables"], row["n_categories"], row["head"]): float(row["mean"])
        for row in rows_of(PAPER / f"vae_{table}.csv")
    }
    cells = [cell for cell in dict.fromkeys(key[:3] for key in found) if cell[0] == kind]
    lines: dict[str, list[tuple[float, str]]] = {}
    for head, cell in product(HEADS, cells):
        values, known = found[*cell, head], paper.get((*cell, head))
        theirs = "" if known is None else f" ({known:.1f})"
        lines.setdefault(head, []).append((fmean(values), f"{fmean(values):.1f} ± {stdev(values):.1f}{theirs}"))
    return grid(["N × K", *(f"{n}×{k}" for _, n, k in cells)], least_bold(lines))


def leads_in(folder: str, middle: Callable[[list[float]], float] = fmean) -> dict[tuple[str, str], dict[int, float]]:
    """By kind of digits and cell, over training: minus the validation bound, softmax's minus the default's."""
    points: dict[tuple[str, str], dict[tuple[str, int], list[float]]] = {}
    for row in rows_of(RESULTS / "vae" / folder / "curves.csv"):
        own = points.setdefault((row["data"], f"{row['variables']}×{row['classes']}"), {})
        own.setdefault((row["head"], int(row["step"])), []).append(float(row["minus_elbo_validation"]))
    return {
        place: {step: middle(own[head, step]) - middle(own["catnat", step]) for head, step in own if head == "softmax"}
        for place, own in points.items()
    }


def lead(folder: str) -> str:
    """The default's lead on softmax by quarters of training. Medians of the seeds: a lost one would decide a mean."""
    leads = leads_in(folder, median)
    cells, quarter = list(dict.fromkeys(cell for _, cell in leads)), max(map(max, leads.values())) // 4
    body = []
    for data, start in product(dict.fromkeys(data for data, _ in leads), range(0, 4 * quarter, quarter)):
        line = [f"{data}, {start:,} to {start + quarter:,}"]
        for cell in cells:
            own = leads.get((data, cell), {})
            gaps = [gap for step, gap in own.items() if step - 1 in range(start, start + quarter)]
            line.append(f"{fmean(gaps):.1f}" if gaps else "")
        body.append(line)
    return grid(["steps", *cells], body)


def dense_runs(measure: str = "elbo_paper", stage: str = "final", rate: str = "") -> dict[str, dict[str, list[float]]]:
    """By head and cell, a measure of the dense VAE's runs: by default the ELBO as the paper tabulates it."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows_of(RESULTS / "vae" / "mlp" / "values.csv"):
        if row["stage"] == stage and rate in ("", row["rate"]):
            cell = found.setdefault(row["head"], {}).setdefault(f"{row['variables']}×{row['classes']}", [])
            cell.append(float(row[measure]))
    return found


def dense_paper() -> dict[tuple[str, str], Row]:
    rows = rows_of(PAPER / "vae_mlp_elbo.csv")
    return {(row["head"], f"{row['n_variables']}×{row['n_categories']}"): row for row in rows}


def sgd_rates() -> str:
    """Minus the bound on validation images in the search with SGD, by size, head and rate.

    The mean of the seeds, or each where one is more than 30 nats behind the best run of its size; none at a rate
    that a grid was widened by for another head alone.
    """
    rows = [row for row in rows_of(RESULTS / "vae" / "sgd" / "values.csv") if row["stage"] != "final"]
    rates = sorted({float(row["rate"]) for row in rows})
    body = []
    for cell in (("10", "8"), ("20", "16"), ("30", "32")):
        own = [row for row in rows if (row["variables"], row["classes"]) == cell]
        best = min(float(row["validation"]) for row in own)
        for head in HEADS:
            told = []
            for rate in rates:
                found = [float(r["validation"]) for r in own if r["head"] == head and float(r["rate"]) == rate]
                alike = found and max(found) <= best + 30
                told.append(f"{fmean(found):.1f}" if alike else ", ".join(f"{value:.0f}" for value in found))
            body.append(["×".join(cell), head, *told])
    return grid(["N × K", "head", *(f"{rate:g}" for rate in rates)], body)


def softmax_at(rate: str) -> dict[Cell, list[float]]:
    """Softmax alone at another rate, in the cells in which it was run so."""
    found: dict[Cell, list[float]] = {}
    for row in rows_of(RESULTS / "vae" / "sgd-softmax" / f"rate-{rate}" / "values.csv"):
        if row["stage"] == "final":
            found.setdefault((row["data"], row["variables"], row["classes"]), []).append(float(row["nll"]))
    return found


def sgd_softmax() -> str:
    """What softmax's rate does to the comparison at K = 32; p by Welch's test, Holm over all of the table."""
    ours, catnats = finals("sgd"), HEADS[2:]
    lower, higher = softmax_at("0.0055"), softmax_at("0.01")
    tests, body = sgd_against(higher), []
    for place in [key[:3] for key in ours if key[3] == "softmax" and key[2] == "32"]:
        rates = (ours[*place, "softmax"], lower.get(place), higher.get(place))
        line = [f"{place[0]} {place[1]}×{place[2]}"]
        line += [f"{fmean(own):.1f} ± {stdev(own):.1f}" if own else "" for own in rates]
        for one in (tests[place, head] for head in catnats):
            line.append(f"{one.difference:+.2f} [{one.low:.1f}, {one.high:.1f}], p {one.p:.2g}")
        body.append(line)
    return grid(["", *(f"softmax at {rate}" for rate in ("0.003", "0.0055", "0.01")), *catnats], body)


def sgd_against(softmax: dict[Cell, list[float]] | None = None) -> dict[tuple[Cell, str], Comparison]:
    """All heads against softmax with SGD, with other runs of it where given; Holm over all."""
    ours = finals("sgd")
    base = {key[:3]: values for key, values in ours.items() if key[3] == "softmax"} | (softmax or {})
    return compare_all({(key[:3], key[3]): (own, base[key[:3]]) for key, own in ours.items() if key[3] != "softmax"})


def sgd_tests() -> str:
    """With SGD against softmax, cell by cell: runs lost, means, and what is significant."""
    ours, tests, other = finals("sgd"), sgd_against(), sgd_against(softmax_at("0.01"))
    places = list(dict.fromkeys(key[:3] for key in ours))
    body = []
    for head in HEADS[1:]:
        runs = [value - median(ours[*place, "softmax"]) for place in places for value in ours[*place, head]]
        line = [head, f"{sum(gap > 100 for gap in runs)} of {len(runs)}"]
        if head != "softmax":
            for found in (tests, other):
                line.append(f"{sum(found[place, head].difference < 0 for place in places)} of {len(places)}")
                sure = [place for place in places if found[place, head].p < ALPHA]
                wins = [place for place in sure if found[place, head].difference < 0]
                behind = f", worse in {len(sure) - len(wins)}" if len(wins) < len(sure) else ""
                line.append(f"{len(wins)} ({sum(place[2] == '32' for place in wins)} at K = 32){behind}")
        body.append(line + [""] * (6 - len(line)))
    columns = ["better mean", "significantly", "softmax at 0.01 where K = 32: better mean", "significantly"]
    return grid(["head", "runs lost", *columns], body)


def sgd_leads() -> str:
    """Leads with SGD by t-tests, of medians over seeds; grey and binary digits are averaged within a size."""
    other = "softmax at 0.01 where K = 32"
    middle = {key: median(values) for key, values in finals("sgd").items()}
    middle |= {(*key[:3], other): value for key, value in middle.items() if key[3] == "softmax"}
    middle |= {(*place, other): median(values) for place, values in softmax_at("0.01").items()}
    rates = {key: values[0] for key, values in finals("sgd", "rate").items()}
    sizes = list(dict.fromkeys(key[1:3] for key in middle))
    shared: dict[tuple[float, ...], list[tuple[str, str]]] = {}  # sizes by the rates of their heads
    for size in sizes:
        shared.setdefault(tuple(rates["grey", *size, head] for head in HEADS), []).append(size)
    body = []
    for head, beside in [*product(HEADS[2:], ("softmax", other)), HEADS[2:4]]:
        gaps = {
            size: fmean(middle[kind, *size, beside] - middle[kind, *size, head] for kind in ("grey", "binary"))
            for size in sizes
        }
        line = [f"{head} on {beside}"]
        for values in (
            list(gaps.values()),
            [gap for size, gap in gaps.items() if size[1] != "32"],
            [fmean(gaps[size] for size in group) for group in shared.values()],
        ):
            test = ttest_1samp(values, 0)
            low, high = test.confidence_interval()
            line.append(f"{fmean(values):+.1f} [{low:.1f}, {high:.1f}], p {test.pvalue:.2g}")
        body.append(line)
    few = sum(size[1] != "32" for size in sizes)
    return grid(["lead", f"{len(sizes)} sizes", f"{few} of K = 8 and 16", f"{len(shared)} groups of one rate"], body)


VALIDATION, TRAIN = 1, 2  # columns of the readings that follow, behind the step


def sgd_steady() -> tuple[dict[tuple[str, ...], np.ndarray], int]:
    """Readings [step, validation, train] of minus the bound with SGD, by run, and how many runs there are in all.

    A run that ends 30 nats above its cell's median says nothing about the others, nor does one that moves by more than
    15 after 50,000 steps: it never begins, begins late or is lost, as a rule. These are left out.
    """
    curves: dict[tuple[str, ...], list[tuple[int, float, float]]] = {}
    for folder in ("sgd", "sgd-softmax/rate-0.01"):
        for row in rows_of(RESULTS / "vae" / folder / "curves.csv"):
            if row["head"] == "sparsemax" or (folder == "sgd" and row["head"] == "softmax" and row["classes"] == "32"):
                continue
            run = row["head"], row["classes"], row["data"], row["variables"], row["seed"]
            bounds = float(row["minus_elbo_validation"]), float(row["minus_elbo_train"])
            curves.setdefault(run, []).append((int(row["step"]), *bounds))
    runs = {run: np.array(own) for run, own in curves.items()}
    ends: dict[tuple[str, ...], list[float]] = {}
    for run, own in runs.items():
        ends.setdefault(run[1:4], []).append(own[-1, VALIDATION])

    def is_steady(run: tuple[str, ...], own: np.ndarray) -> bool:
        late = own[own[:, 0] >= 50_000, VALIDATION]
        return np.ptp(late) < 15 and late[-1] < median(ends[run[1:4]]) + 30

    return {run: own for run, own in runs.items() if is_steady(run, own)}, len(runs)


def decay(steps: np.ndarray, bound: int, power: float = 1.0) -> np.ndarray:
    """What steps ** -power is at each reading of a bound: the training bound is a mean since the reading before."""
    if bound == VALIDATION:
        return steps**-power
    before = np.concatenate([[0.0], steps[:-1]])
    with np.errstate(divide="ignore"):  # the first window begins at 0, where 1 / steps has no mean
        area = np.log(steps / before) if power == 1 else (steps ** (1 - power) - before ** (1 - power)) / (1 - power)
    return area / (steps - before)


def law(own: np.ndarray, bound: int, end: int) -> np.ndarray:
    """What is left to fall at step `end`, and the limit, if a run's bound falls as 1 / steps; by the half before.

    Two readings of one run differ by more than a tenth of the steps brings, so a line through many is taken.
    """
    part = (end // 2 <= own[:, 0]) & (own[:, 0] <= end)
    return np.polyfit(end * decay(own[:, 0], bound)[part], own[part, bound], 1)


def sgd_falls() -> str:
    """What the last tenth of training takes off the bound with SGD, if it falls towards its end as 1 / steps does."""
    steady, count = sgd_steady()

    def lined(own: np.ndarray, bound: int, end: int) -> float:
        return law(own, bound, end)[0] * (1 / 0.9 - 1)

    def read(own: np.ndarray, bound: int) -> float:
        """At the end of training, as the scoreboard takes it: by the reading at nine tenths, and the last."""
        return own[own[:, 0] == 180_000, bound].item() - own[-1, bound]

    def falls(heads: Sequence[str], fall: Callable[[np.ndarray], float]) -> dict[tuple[str, ...], float]:
        """By head and cell, means over seeds."""
        found: dict[tuple[str, ...], list[float]] = {}
        for run, own in steady.items():
            if run[0] in heads:
                found.setdefault(run[:4], []).append(fall(own))
        return {cell: fmean(own) for cell, own in found.items()}

    every, all_runs = HEADS[1:], f"all four, {len(steady)} of {count} runs"
    body = []
    for name, bound, heads in [
        *((head, VALIDATION, [head]) for head in every),
        (all_runs, VALIDATION, every),
        ("the same, training images", TRAIN, every),
    ]:
        middle, last = (falls(heads, partial(lined, bound=bound, end=end)) for end in (100_000, 200_000))
        both = last, falls(heads, partial(read, bound=bound))
        line = [name]
        for classes in ("8", "16", "32"):
            means = [fmean(v for c, v in own.items() if c[1] == classes) for own in (middle, last)]
            line.append(", ".join(f"{mean:.2f}" for mean in means))
        line += [f"{fmean(last.values()) / fmean(middle.values()):.2f}"]
        above = [f"{sum(fall > 0.2 for fall in own.values())} of {len(own)}" for own in both]
        body.append([*line, *above, f"{max(last.values()):.2f}"])
    columns = ["K = 8", "K = 16", "K = 32", "second divided by first"]
    columns += ["above 0.2 at the end", "the same by two readings", "largest"]
    return grid(["head", *columns], body)


def sgd_long() -> tuple[dict[tuple[str, ...], np.ndarray], dict[tuple[str, ...], float]]:
    """By head, K and seed: readings [step, validation, train] over 550,000 steps, and the NLL. Without lost runs."""
    folder, curves = RESULTS / "vae" / "sgd-long", {}
    for row in rows_of(folder / "curves.csv"):
        bounds = float(row["minus_elbo_validation"]), float(row["minus_elbo_train"])
        curves.setdefault((row["head"], row["classes"], row["seed"]), []).append((int(row["step"]), *bounds))
    ends = {(row["head"], row["classes"], row["seed"]): float(row["nll"]) for row in rows_of(folder / "values.csv")}
    ends = {run: nll for run, nll in ends.items() if nll < median(ends.values()) + 30}
    return {run: np.array(curves[run]) for run in ends}, ends


LONG = [("catnat-sigmoid", "16"), ("catnat-sigmoid", "32"), ("catnat", "16"), ("catnat", "32")]  # heads and K


def sgd_long_leads() -> str:
    """What 550,000 steps of SGD make of the leads on softmax."""
    before = {}
    for folder in ("sgd", "sgd-softmax/rate-0.01"):  # the later counts
        for row in rows_of(RESULTS / "vae" / folder / "values.csv"):
            if row["stage"] == "final" and (row["data"], row["variables"]) == ("grey", "10"):
                before[row["head"], row["classes"], row["seed"]] = float(row["nll"])
    (curves, ends), start, middle, end = sgd_long(), 192_500, 302_500, 550_000

    def at(own: np.ndarray, step: int) -> float:
        return float(own[own[:, 0] == step, TRAIN].item())

    def change(own: np.ndarray, first: int) -> float:
        return at(own, end) - at(own, first)

    def beyond(own: np.ndarray, power: float) -> float:
        """What a run adds to the lead at the end, beyond what one limit for all heads would leave of it."""
        falls = dict(zip(own[:, 0], decay(own[:, 0], TRAIN, power), strict=True))
        return at(own, end) - at(own, start) * falls[end] / falls[start]

    points = {f"training bound at {step:,}": partial(at, step=step) for step in (start, middle, 467_500, end)}
    measures: dict[str, tuple[dict[Any, Any], Callable[[Any], float]]] = {
        "NLL, the study of 200,000 steps": (before, float),
        "NLL, 550,000 steps": (ends, float),
        **{name: (curves, point) for name, point in points.items()},
        f"its change from {start:,} to {end:,}": (curves, partial(change, first=start)),
        f"its change from {middle:,} to {end:,}": (curves, partial(change, first=middle)),
        f"at {end:,}, minus what one limit leaves, by 1 / steps": (curves, partial(beyond, power=1.0)),
        "the same, by 1 / √steps": (curves, partial(beyond, power=0.5)),
    }
    body = []
    for name, (known, measure) in measures.items():
        line = [name]
        for place in LONG:
            own = {head: [measure(run) for key, run in known.items() if key[:2] == (head, place[1])] for head in HEADS}
            lead = compare(own["softmax"], own[place[0]])
            line.append(f"{lead.difference:+.1f} [{lead.low:.1f}, {lead.high:.1f}]")
        body.append(line)
    final: dict[tuple[str, str], list[float]] = {}
    for row in rows_of(RESULTS / "vae" / "sgd-long" / "values.csv"):
        final.setdefault((row["head"], row["classes"]), []).append(float(row["nll"]))
    by_ranks = holm([mannwhitneyu(final[place], final["softmax", place[1]]).pvalue for place in LONG])
    body.insert(2, ["the same by ranks, with the lost run: p, Holm", *(f"{p:.2g}" for p in by_ranks)])
    return grid(["lead on softmax", *(f"{head}, K = {classes}" for head, classes in LONG)], body)


def sgd_long_ends() -> str:
    """Where these runs end, and what their last tenth takes off the bound: by `law` and by two readings."""
    (curves, ends), body = sgd_long(), []
    for head, classes in [("softmax", "16"), ("softmax", "32"), *LONG]:
        own = [run for run in ends if run[:2] == (head, classes)]
        line = [f"{head}, K = {classes}", f"{len(own)}"]
        nll = [ends[run] for run in own]
        line.append(f"{fmean(nll):.1f} ± {stdev(nll):.1f}")
        for bound in (VALIDATION, TRAIN):
            falls = [law(curves[run], bound, 550_000)[0] / 9 for run in own]
            low, high = ttest_1samp(falls, 0).confidence_interval()
            line.append(f"{fmean(falls):.2f} [{low:.2f}, {high:.2f}]")
        two = fmean(np.interp([495_000, 550_000], *curves[run].T[:2]) @ [1, -1] for run in own)
        body.append([*line, f"{two:.1f}"])
    columns = ["last tenth, validation", "last tenth, training", "validation, two readings"]
    return grid(["", "runs", "NLL", *columns], body)


def dense() -> str:
    """Ours and the paper's."""
    paper, table = dense_paper(), {}
    for head, cells in dense_runs().items():
        table[head] = []
        for cell, values in cells.items():
            known = paper.get((head, cell))
            theirs = f" ({float(known['mean']):.1f} ± {float(known['std']):.1f})" if known else ""
            table[head].append((-fmean(values), f"{fmean(values):.1f} ± {stdev(values):.1f}{theirs}"))
    return grid(["N × K", *cells], least_bold(table))


def dense_gaps() -> str:
    """Between heads, and in parentheses the paper's; p is corrected by Holm over all pairs of two catnats."""
    ours, paper, body = dense_runs(), dense_paper(), []
    cells, (softmax, *catnats) = list(ours["softmax"]), ours
    for head in catnats:
        line = [f"{head} minus softmax"]
        for cell in cells:
            gap = f"{fmean(ours[head][cell]) - fmean(ours[softmax][cell]):+.1f}"
            known = [paper.get((name, cell)) for name in (head, softmax)]
            theirs = [float(row["mean"]) for row in known if row]
            line.append(f"{gap} ({theirs[0] - theirs[1]:+.1f})" if len(theirs) == 2 else gap)
        body.append(line)
    searched = ["least lead of a catnat at one rate, search"]
    rates = {row["rate"] for row in rows_of(RESULTS / "vae" / "mlp" / "values.csv") if row["stage"] == "coarse"}
    tried = [dense_runs("validation", "coarse", rate) for rate in rates]
    for cell in cells:
        leads = [
            fmean(at[softmax][cell]) - fmean(at[head][cell]) for at in tried for head in catnats if cell in at[head]
        ]
        searched.append(f"{min(leads):+.1f}" if leads else "")
    nll = dense_runs("nll")
    leads = [fmean(nll[softmax][cell]) - fmean(nll["catnat"][cell]) for cell in cells]
    body += [searched, ["catnat minus softmax, by minus the NLL", *(f"{lead:+.1f}" for lead in leads)]]
    pairs = list(combinations(reversed(catnats), 2))
    found = compare_all({(*pair, cell): tuple(ours[head][cell] for head in pair) for pair in pairs for cell in cells})
    for pair in pairs:
        tests = [found[*pair, cell] for cell in cells]
        body.append([" minus ".join(pair), *(f"{test.difference:+.1f}, p = {test.p:.2g}" for test in tests)])
    over = leads_in("mlp")
    for epochs in (300, 500):
        told = [f"{over['bernoulli', cell][468 * epochs]:+.1f}" for cell in cells]
        body.append([f"catnat minus softmax, validation, {epochs} epochs", *told])
    ends = [row for row in rows_of(RESULTS / "vae" / "mlp" / "curves.csv") if row["step"] == "234000"]
    for head in ("catnat-paper", "catnat"):
        line = [f"{head}, nodes outside the range"]
        for cell in cells:
            own = [r for r in ends if (r["head"], f"{r['variables']}×{r['classes']}") == (head, cell)]
            line.append(f"{fmean(float(row['outside']) for row in own):.0%}")
        body.append(line)
    for head in (softmax, *catnats[:2]):
        gaps = [fmean(ours[head][cell]) - float(paper[head, cell]["mean"]) for cell in cells]
        body.append([f"{head} minus the paper's", *(f"{gap:+.1f}" for gap in gaps)])
    return grid(["", *cells], body)


FLOORS = {  # heads of the dense VAE with N = 10, K = 8 at one rate
    "softmax": "softmax",
    "catnat-sigmoid": "catnat-sigmoid",
    "catnat": "catnat, `tail=0.1`",
    "catnat-tail0.02": "`tail=0.02`",
    "catnat-clip0": "`clip`, floor 0: the paper's formula",
    "catnat-paper": "`clip`, floor 1e-8",
    "catnat-clip1e-6": "`clip`, floor 1e-6",
    "catnat-revive1e-8": "`revive`, floor 1e-8",
    "catnat-revive1e-6": "`revive`, floor 1e-6",
    "catnat-revive1e-4": "`revive`, floor 1e-4",
}


def of_floors(file: str) -> list[Row]:
    return [row for folder in ("collapse", "collapse-floors") for row in rows_of(RESULTS / "vae" / folder / file)]


def of_floor_runs(measure: str) -> dict[str, list[float]]:
    found = of_floors("values.csv")
    return {head: [float(row[measure]) for row in found if row["head"] == head] for head in FLOORS}


def collapse() -> str:
    """The dense VAE with N = 10, K = 8 at one rate: where training ends, and what its codes are like."""
    ends = [row for row in of_floors("curves.csv") if row["step"] == "234000"]
    codes = {row["head"]: row for row in rows_of(RESULTS / "vae" / "collapse-floors" / "codes.csv")}
    elbos, others = of_floor_runs("elbo_paper"), [of_floor_runs(name) for name in ("bce", "kl", "nll")]
    body = []
    for head, name in FLOORS.items():
        row = [name, f"{fmean(elbos[head]):.1f} ± {stdev(elbos[head]):.1f}"]
        row += [f"{fmean(values[head]):.1f}" for values in others]
        shares = [100 * float(end["outside"] or "nan") for end in ends if end["head"] == head]
        row.append(f"{fmean(shares):.0f}%" if name.startswith(("`clip", "`revive")) else "")
        body.append([*row, f"{float(codes[head]['certain']):.0%}" if head in codes else ""])
    names = ["", "ELBO", "cross-entropy", "KL", "NLL, 8 samples", "nodes outside the range", "certain mistakes"]
    return grid(names, body)


def collapse_tests() -> str:
    """What the floor does and what the gradient does, by Welch's test, corrected by Holm over the lines."""
    elbos = of_floor_runs("elbo_paper")
    newer = {row["head"] for row in rows_of(RESULTS / "vae" / "collapse-floors" / "values.csv")}
    pairs = (
        ("catnat-clip1e-6", "catnat-paper"),
        ("catnat-revive1e-8", "catnat-paper"),
        ("catnat-revive1e-6", "catnat-clip1e-6"),
        ("catnat-revive1e-6", "catnat-revive1e-8"),
        ("catnat-revive1e-4", "catnat-revive1e-6"),
        ("catnat", "catnat-paper"),
        ("catnat-sigmoid", "catnat-paper"),
    )
    body = []
    for (head, other), found in compare_all({pair: (elbos[pair[0]], elbos[pair[1]]) for pair in pairs}).items():
        both = {head, other} <= newer or not {head, other} & newer
        told = f"{FLOORS[head]}, minus {FLOORS[other]}" + (" (one study)" if both else "")
        body.append([told, f"{found.difference:+.1f} [{found.low:.1f}, {found.high:.1f}]", f"{found.p:.2g}"])
    return grid(["", "difference in nats", "p, Holm"], body)


PARTS = {  # what passes outside the range in `results/vae/revival`, if it leads back inside
    "clip": "nothing: `clip`",
    "entropy": "1: the entropy",
    "rare": "2: draws of the rare branch",
    "likely": "3: draws of the likely branch",
    "draws": "2 and 3",
    "apart": "1 to 3, each by itself",
    "revive": "1 to 3, their sum: `revive`",
}


def revival_rows() -> dict[tuple[str, str, str, int], Row]:
    """By baseline, way, seed and step."""
    files = sorted((RESULTS / "vae" / "revival").glob("seed*.csv"))
    rows = [row for path in files for row in rows_of(path) if float(row["floor"]) == 1e-4]
    return {(row["baseline"], row["way"], row["seed"], int(row["step"])): row for row in rows}


def revival_runs(measure: str) -> dict[tuple[str, str], list[float]]:
    """At the end of training, by baseline and way: a value per seed."""
    rows = revival_rows()
    last = max(step for *_, step in rows)
    found: dict[tuple[str, str], list[float]] = {}
    for (baseline, way, _, step), row in rows.items():
        if step == last:
            found.setdefault((baseline, way), []).append(float(row[measure]))
    return found


def revival() -> str:
    """The dense VAE by what passes of the gradient outside, and each lead on the clip by Welch's test."""
    elbo, bce, kl, outside = (revival_runs(measure) for measure in ("elbo_paper", "bce", "kl", "outside"))
    leads = compare_all({(b, w): (elbo[b, w], elbo[b, "clip"]) for b, w in elbo if w != "clip"})
    body = []
    for baseline, (way, name) in product(dict.fromkeys(b for b, _ in elbo), PARTS.items()):
        run, told = (baseline, way), ["", ""]
        if run in leads:
            lead = leads[run]
            told = [f"{lead.difference:+.1f} [{lead.low:.1f}, {lead.high:.1f}]", f"{lead.p:.2g}"]
        means = [f"{fmean(outside[run]):.0%}", *(f"{fmean(values[run]):.1f}" for values in (bce, kl))]
        body.append([baseline, name, *means, f"{fmean(elbo[run]):.1f} ± {stdev(elbo[run]):.1f}", *told])
    columns = ("nodes outside", "cross-entropy", "KL", "ELBO", "minus clip's", "p, Holm")
    return grid(["baseline", "what passes", *columns], body)


def revival_baselines() -> str:
    """Nodes outside with the constant baseline minus those with the other, by what passes, in points."""
    outside = {run: [100 * share for share in shares] for run, shares in revival_runs("outside").items()}
    pairs = {way: (outside["constant", way], outside["leave-one-out", way]) for way in PARTS}
    body = [
        [PARTS[way], f"{found.difference:+.1f} [{found.low:.1f}, {found.high:.1f}]", f"{found.p:.2g}"]
        for way, found in compare_all(pairs).items()
    ]
    return grid(["what passes", "nodes outside, constant minus leave-one-out, points", "p, Holm"], body)


def clipped() -> str:
    """Runs of N = 10 with the clip: how far the worst of a size and rate is behind the mean of the sigmoid there."""
    clips = ("catnat-paper", "catnat-clip0", "catnat-clip1e-6")
    rows = [*of_floors("values.csv"), *rows_of(RESULTS / "vae" / "mlp" / "values.csv")]
    found: dict[tuple[str, float], dict[bool, list[float]]] = {}
    for row in rows:
        # at 10×32 the sigmoid has another rate than natural, so there each has its own
        rate = float(row["rate"]) if row["classes"] != "32" else 0.0
        if row["variables"] == "10" and row["head"] in (*clips, "catnat-sigmoid"):
            sides = found.setdefault((row["classes"], rate), {True: [], False: []})
            sides[row["head"] in clips].append(float(row["validation"]))
    body = [
        [
            f"10×{k}",
            f"{rate:g}" if rate else "0.00015, sigmoid 0.00022",
            f"{len(ours)}",
            f"{max(ours) - fmean(other):.1f}",
        ]
        for (k, rate), (ours, other) in sorted((place, (s[True], s[False])) for place, s in found.items())
    ]
    return grid(
        ["N × K", "rate", "runs with the clip", "nats of the worst behind the sigmoid's mean, validation"], body
    )


TAILS = {0.5: "0.5, the sigmoid", 0.1: "0.1, the default", 0.05: "0.05", 0.01: "0.01"}


def family() -> str:
    """Where the line of a tail begins, and its slope."""
    made = {told: Natural(tail=tail) for tail, told in TAILS.items()}
    body = [[told, *(f"{x:.2f}" for x in (a.joint_logit, a.joint, a.steepest))] for told, a in made.items()]
    paper = ["0, the paper's: no line", r"$\infty$", r"$\pi$", r"$\infty$"]
    return grid(["`tail`", "$z_0$", "$y_0$", "$s$"], [*body, paper])


def tails() -> str:
    """What a tail means for scores and gradients."""
    body = []
    for tail, told in TAILS.items():
        activation = Natural(tail=tail)
        log_a = -np.logaddexp(0.0, -activation.logit(np.float64(-10.0), np))
        within = f"±{activation.joint:.2f}" if activation.joint else "none"
        body.append([told, within, f"{activation.steepest:.2f}", f"{log_a:.1f}"])
    paper = ["0, [the paper's](#the-papers-activation)", f"±{math.pi:.2f}", "unbounded", "minus infinity, or the floor"]
    head = ["`tail`", "natural for scores within", r"gradient of $\log a \le$", r"$\log a$ at a score of -10"]
    return grid(head, [*body, paper])


def floors() -> str:
    """What a floor bounds."""
    body = [["`0`", r"$-\infty$", "unbounded"]]
    for floor, told in {1e-8: "`1e-8` (what `tail=0` has unless told)", 1e-6: "`1e-6`"}.items():
        body.append([told, f"{math.log(floor):.1f}", f"{0.5 / math.sqrt(floor):.0f}"])
    head = ["`floor`", r"$\log a \ge$", r"gradient $\le \frac{\pi}{A}\,/\,\sqrt{\text{floor}}$, at $A = 2\pi$"]
    return grid(head, body)


def final_scores(folder: str) -> dict[tuple[str, str], list[float]]:
    """By game and head, of all final seeds."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows_of(RESULTS / "rl" / folder / "values.csv"):
        if row["stage"] == "final":
            found.setdefault((row["game"], row["head"]), []).append(float(row["score"]))
    return found


def atari() -> str:
    scores, games = final_scores("atari"), ("Breakout", "Seaquest")
    paper = {(r["game"], r["head"]): r for r in rows_of(PAPER / "rl.csv")}
    body = []
    for head in ("softmax", "catnat-paper"):
        body.append([head, *(f"{fmean(scores[g, head]):.1f} ± {stdev(scores[g, head]):.1f}" for g in games)])
        body.append([f"{head} in the paper", *(f"{paper[g, head]['mean']} ± {paper[g, head]['std']}" for g in games)])
    tests = [compare(scores[game, "catnat-paper"], scores[game, "softmax"]).p for game in games]
    return grid(["", *games], [*body, ["catnat-paper against softmax, ours", *(f"p = {p:.2g}" for p in tests)]])


def breakout() -> str:
    """Scores on the way to 8 million steps, means over the half million before each; published runs beside."""
    marks = [million * 1_000_000 for million in range(1, 9)]
    around: dict[tuple[str, int], dict[int, float]] = {}
    for folder, before in {"archive/atari-unfinished": 0, "rl/atari-long": 1}.items():  # and the runs before its seeds
        for row, mark in product(rows_of(RESULTS / folder / "curves.csv"), marks):
            step = round(int(row["step"]), -4)  # a window's end is rounded up to a whole rollout
            if mark - 500_000 < step <= mark:
                name = f"{row['head']}, run {before + int(row['seed'])}"
                around.setdefault((name, mark), {})[step] = float(row["score"])
    # rows are 80,000 steps apart; a run that stopped before a mark has no mean there
    found = {place: fmean(by.values()) for place, by in around.items() if max(by) > place[1] - 80_000}
    for row in rows_of(RESULTS / "rl" / "published.csv"):
        found[row["implementation"], int(row["step"])] = float(row["score"])
    names = dict.fromkeys(name for name, _ in found)
    body = [[name, *(f"{found[name, mark]:.0f}" if (name, mark) in found else "" for mark in marks)] for name in names]
    return grid(["millions of steps", *(f"{mark // 1_000_000}" for mark in marks)], body)


ACTIONS = {"Asterix": "nlurd", "Breakout": "nlr", "SpaceInvaders": "nlrf"}  # nothing, left, up, right, down, fire


def with_letters(game: str, head: str) -> str:
    """A head's name, and its tree with actions as letters and the larger part of a pair first."""
    name, bracket, tree = head.partition("[")
    return name + (written(json.loads(bracket + tree), ACTIONS[game])[1] if bracket else "")


def written(nested: object, letters: str) -> tuple[int, str]:
    """How many leaves a part of a tree has, and the part in letters."""
    if not isinstance(nested, list):
        return 1, letters[int(str(nested))]
    first, second = sorted((written(part, letters) for part in nested), key=lambda part: -part[0])
    return first[0] + second[0], f"[{first[1]},{second[1]}]"


def policy_trees() -> str:
    """Two activations on some trees of each game's actions: means, and what they are ahead of others."""
    body = []
    for game, folder in {"Asterix": "asterix", "Breakout": "breakout", "SpaceInvaders": "invaders"}.items():
        scores = {head: values for (_, head), values in final_scores(f"trees/{folder}").items()}
        body.append(
            [game, "softmax", f"{fmean(scores['softmax']):.1f} ± {stdev(scores['softmax']):.1f}", "", "", "", ""]
        )
        gains = {}  # each family corrected by Holm over an activation's trees
        for name in ("catnat-sigmoid", "catnat"):
            own = {head: values for head, values in scores.items() if head.split("[")[0] == name}
            gains |= compare_all({(head, name): (own[head], own[name]) for head in own if head != name})
            gains |= compare_all({(head, "softmax"): (own[head], scores["softmax"]) for head in own})
        told = {
            place: f"{gain.difference:+.1f} [{gain.low:.1f}, {gain.high:.1f}], p = {gain.p:.2g}"
            for place, gain in gains.items()
        }
        for tree in ("", *(head.removeprefix("catnat") for head in scores if head.startswith("catnat["))):
            shown = tree or str(Tree.balanced(len(ACTIONS[game])).nested)
            row = [game, with_letters(game, shown) + ("" if tree else ", balanced")]
            for name in ("catnat-sigmoid", "catnat"):
                values = scores[name + tree]
                row += [f"{fmean(values):.1f} ± {stdev(values):.1f}", told.get((name + tree, name), "")]
            body.append([*row, told["catnat" + tree, "softmax"]])
    names = ["game", "tree", "catnat-sigmoid", "minus balanced", "catnat", "minus balanced", "catnat minus softmax"]
    return grid(names, body)


def tree_tests() -> str:
    """What the text says of trees beyond the table: groups of them, and what the long runs add."""
    asterix, breakout = final_scores("trees/asterix"), final_scores("trees/breakout")
    sigmoids = [values for (_, head), values in asterix.items() if head.startswith("catnat-sigmoid")]
    p = f_oneway(*sigmoids).pvalue
    body = [[f"Asterix, sigmoid: {len(sigmoids)} trees, one-way analysis of variance", "", f"{p:.1g}"]]
    for name in ("catnat-sigmoid", "catnat"):
        apart = [score for tree in ("[[0,1],2]", "[[0,2],1]") for score in breakout["Breakout", name + tree]]
        found = compare(apart, breakout["Breakout", name])
        body.append(
            [f"Breakout, {name}: both other trees minus the balanced one", f"{found.difference:+.1f}", f"{found.p:.2g}"]
        )
    balanced, known = final_scores("minatar-gymnax"), {"Asterix": 16, "Breakout": 32}  # seeds that chose the tree
    for game, first in known.items():
        softmax = balanced[game, "softmax"]
        for (_, head), tree in long_trees(game).items():
            name, rivals = head.partition("[")[0], {}
            if (plain := balanced.get((game, name))) is not None:
                rivals[f"minus {name} on the balanced one"] = (tree, plain)
            if name == "catnat":
                rivals[f"minus softmax, seeds 1 to {first}"] = (tree[:first], softmax[:first])
                rivals[f"minus softmax, seeds {first + 1} to 64"] = (tree[first:], softmax[first:])
            for what, (ours, theirs) in rivals.items():
                found, means = compare(ours, theirs), f"{fmean(ours):.1f}, {fmean(theirs):.1f}"
                told = f"{game} at length, {with_letters(game, head)} {what} ({means})"
                body.append([told, f"{found.difference:+.1f}", f"{found.p:.2g}"])
    return grid(["", "difference", "p"], body)


def long_trees(game: str) -> dict[tuple[str, str], list[float]]:
    """Final scores of the heads on another tree, by the whole protocol."""
    folders = {"Asterix": ["asterix-long"], "Breakout": ["breakout-long-sigmoid", "breakout-long"]}[game]
    return {place: values for folder in folders for place, values in final_scores(f"trees/{folder}").items()}


def minatar() -> str:
    """Every head that has its final seeds, beside softmax."""
    scores = final_scores("minatar-gymnax")
    for (game, head), values in {**long_trees("Breakout"), **long_trees("Asterix")}.items():
        scores[game, with_letters(game, head)] = values
    games = dict.fromkeys(game for game, _ in scores)
    pairs = {(g, head): (scores[g, head], scores[g, "softmax"]) for game in games for g, head in scores if g == game}
    families: dict[tuple[str, bool], dict[tuple[str, str], tuple[list[float], list[float]]]] = {}  # Holm within each
    for (game, head), pair in pairs.items():
        if head != "softmax":
            families.setdefault((game, "[" in head), {})[game, head] = pair
    against = {place: found for family in families.values() for place, found in compare_all(family).items()}
    body = []
    for place, (values, other) in pairs.items():
        n = 2 if stdev(other) < 1 else 1  # decimals
        row = [*place, f"{fmean(values):.{n}f} ± {stdev(values):.{n}f}"]
        low, high = bootstrap(values)
        row.append(f"{interquartile_mean(values):.{n}f} [{low:.{n}f}, {high:.{n}f}]")
        if found := against.get(place):
            row += [f"{found.difference:+.{n}f} [{found.low:.{n}f}, {found.high:.{n}f}]", f"{found.p:.2g}"]
            row.append("{:.2f} [{:.2f}, {:.2f}]".format(*improvement([pairs[place]])))
        body.append(row + [""] * (7 - len(row)))
    names = ["game", "head", "mean", "interquartile mean", "minus softmax", "p, Holm", "beats a run of softmax"]
    return grid(names, body)


def ratios(paths: Sequence[str], line: Callable[[Row], str], keep: Callable[[Row], bool], by_rows: bool = False) -> str:
    """Times divided by a rival's."""
    rows = [row for path in paths for row in rows_of(RESULTS / path) if keep(row)]
    columns = list(dict.fromkeys(f"{row['rows']}×{row['classes']}" if by_rows else row["classes"] for row in rows))
    found = {
        (line(row), f"{row['rows']}×{row['classes']}" if by_rows else row["classes"]): f"{float(row['ratio']):.2f}"
        for row in rows
    }
    body = [[name, *(found.get((name, at), "") for at in columns)] for name in dict.fromkeys(map(line, rows))]
    return grid(["rows × classes" if by_rows else "classes", *columns], body)


def by_classes() -> str:
    """Times on the GPU divided by torch's, a line for every number of classes: the sigmoid's, then natural's."""
    rows = [row for row in rows_of(RESULTS / "gpu" / "gpu.csv") if of_heads(row)]
    found: dict[tuple[str, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: row["contender"], reverse=True):
        found.setdefault((row["classes"], row["operation"]), []).append(f"{float(row['ratio']):.2f}")
    passes = list(dict.fromkeys(row["operation"] for row in rows))
    sizes = sorted({row["classes"] for row in rows}, key=int)
    head = ["classes", *(name.removeprefix("log_catnat ") for name in passes)]
    return grid(head, [[size, *(" / ".join(found[size, name]) for name in passes)] for size in sizes])


def gpu_summary() -> str:
    """The same over all numbers of classes, and the share of a plain copy's bandwidth from 100 classes on."""
    rows = [row for row in rows_of(RESULTS / "gpu" / "gpu.csv") if of_heads(row)]
    body = []
    for name in dict.fromkeys(map(on_gpu, rows)):
        own = [row for row in rows if on_gpu(row) == name]
        times = [float(row["ratio"]) for row in own]
        share = min(float(row["copy_share"]) for row in own if int(row["classes"]) >= 100)
        body.append([name, f"{geometric_mean(times):.2f}", f"{min(times):.2f} to {max(times):.2f}", f"{share:.0%}"])
    return grid(["", "geometric mean", "least to most", "of a copy's bandwidth, at least"], body)


def on_gpu(row: Row) -> str:
    way, kind = row["operation"].removeprefix("log_catnat ").split(", ")
    return f"{way}, {kind}, {row['contender']}"


def against(row: Row) -> str:
    what, rival = row["operation"].rpartition(" forward+backward")[0] or row["operation"], row["rival"]
    what = what.removesuffix(" value_and_grad").removeprefix("sample + log_prob + entropy").strip()
    return f"{what} {row['contender']} / {rival}".strip()


def is_shown(row: Row) -> bool:
    """Of the GPU's tables: the powers of two, and no other contenders."""
    return row["contender"] in ("sigmoid", "natural") and row["classes"] in ("8", "32", "128", "1024", "8192", "131072")


def of_heads(row: Row) -> bool:
    return row["operation"].startswith("log_catnat ") and row["contender"] in ("sigmoid", "natural")


def wide() -> str:
    """Milliseconds per call of every head over many classes, at one width."""
    rows = [r for r in rows_of(RESULTS / "wide" / "wide.csv") if (r["part"], r["width"]) == ("grid", "1024")]
    rows = [row for row in rows if "sparse gradient" not in row["contender"]]  # which has left the library
    names = list(dict.fromkeys(row["contender"] for row in rows))
    found = {
        (row["rows"], row["width"], row["classes"], row["contender"]): f"{float(row['microseconds']) / 1000:.1f}"
        for row in rows
    }
    sizes = list(dict.fromkeys(key[:3] for key in found))
    head = ["rows × width × classes", *names]
    return grid(head, ([" × ".join(size), *(found.get((*size, name), "") for name in names)] for size in sizes))


def wide_classes() -> str:
    """The GPU's own time of a loss by one path and of softmax's, by the number of classes."""
    rows = [r for r in rows_of(RESULTS / "wide" / "wide.csv") if (r["part"], r["timed"]) == ("over K", "graph")]
    sizes = list(dict.fromkeys(row["classes"] for row in rows))
    names = list(dict.fromkeys(row["contender"] for row in rows))
    times = {(row["contender"], row["classes"]): f"{float(row['microseconds']):,.0f}" for row in rows}
    head = ["classes", *(f"{int(size):,}" for size in sizes)]
    return grid(head, ([name, *(times.get((name, size), "does not fit") for size in sizes)] for name in names))


def unrelated() -> str:
    """Accuracy over the number of unrelated classes, at softmax's rate."""
    rows = [row for row in rows_of(RESULTS / "swap" / "classes.csv") if row["rate"] == "0.001"]
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for row in rows:
        place = row["hidden"], row["classes"]
        found.setdefault(row["head"], {}).setdefault(place, []).append(float(row["accuracy"]))
    columns = sorted({(row["hidden"], row["classes"]) for row in rows}, key=lambda place: tuple(map(int, place)))
    head = ["head", *(f"width {hidden}, K = {classes}" for hidden, classes in columns)]
    return grid(head, ([name, *(f"{fmean(own[place]):.1f}" for place in columns)] for name, own in found.items()))


def mixed() -> str:
    """Accuracy where a class is two clusters, at softmax's rate and above."""
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for row in rows_of(RESULTS / "swap" / "mixed.csv"):
        found.setdefault(row["head"], {}).setdefault((row["classes"], row["rate"]), []).append(float(row["accuracy"]))
    head = ["head", *(f"K = {classes}, rate {rate}" for classes, rate in found["softmax"])]
    return grid(
        head, ([name, *(f"{fmean(v):.1f} ± {stdev(v):.1f}" for v in own.values())] for name, own in found.items())
    )


def last_batch() -> str:
    """Where 100 runs of the swap end with SGD at 0.1, and what a last batch of two images does to them.

    Beside how many end below 90% stands p of Fisher's exact test against softmax, beside a mean gap its extremes.
    """
    body: dict[str, list[str]] = {}
    for file in ("splits-sgd", "splits-sgd-last"):
        ends: dict[str, list[float]] = {}
        for row in rows_of(RESULTS / "swap" / f"{file}.csv"):
            ends.setdefault(row["head"], []).append(100 * float(row["accuracy"]))
        for head, own in ends.items():
            below = [sum(end < least for end in own) for least in (90, 70)]
            gap, told = [mine - its for mine, its in zip(own, ends["softmax"], strict=True)], str(below[0])
            behind = ""
            if head != "softmax":
                few = sum(end < 90 for end in ends["softmax"])
                p = fisher_exact([[below[0], len(own) - below[0]], [few, len(own) - few]]).pvalue
                told += f", p {p:.2g}"
                behind = f"{fmean(gap):+.1f} ({min(gap):+.1f} to {max(gap):+.1f})"
            body.setdefault(head, [head]).extend([f"{fmean(own):.1f}", behind, told, str(below[1]), f"{min(own):.0f}"])
    names = ("mean", "minus softmax", "below 90%", "below 70%", "worst")
    columns = [f"{kind}: {what}" for kind in ("full", "two") for what in names]
    return grid(["head", *columns], body.values())


def steepness(head: str) -> tuple[str, float]:
    """A head of the swap in words, and the largest gradient of a log-probability by one of its scores."""
    default = Natural()
    named = {
        "softmax": ("softmax", 1.0),
        "catnat-sigmoid": (TAILS[0.5], Natural(tail=0.5).steepest),
        "catnat": (TAILS[default.tail], default.steepest),
        "catnat-paper": ("0, the paper's", math.inf),
    }
    if head in named:
        return named[head]
    kind, number = head.split()
    if kind == "gain":
        return f"{TAILS[default.tail]}, gain {number}", float(number) * default.steepest
    assert kind == "tail", head
    return TAILS.get(float(number), number), Natural(tail=float(number)).steepest


TRAINED, GUESSED = 0.9, 0.1  # a mean accuracy below the first is broken; a run that ended as NaN has the second


def breaking(rates: Sequence[float], accuracies: np.ndarray) -> float:
    """At which rate, above the best one, means fall below `TRAINED`: between two rates on a logarithmic scale.

    The first rate where none has trained, the last where none is broken.
    """
    best = int(accuracies.argmax())
    if accuracies[best] < TRAINED:
        return rates[0]
    at = next((i for i in range(best, len(rates)) if accuracies[i] < TRAINED), None)
    if at is None:
        return rates[-1]
    (low, high), (above, below) = rates[at - 1 : at + 1], accuracies[at - 1 : at + 1]
    return float(low * (high / low) ** ((above - TRAINED) / (above - below)))


def large_rates() -> str:
    """By head, how steep it is, and at which rate of SGD training breaks, with an interval over the seeds."""
    studies = {"digits": "8×8 digits", "last": "8×8 digits, a last batch of two", "mnist": "MNIST"}
    found: dict[str, dict[str, dict[float, list[float]]]] = {}  # accuracies by head, study and rate
    for study in studies:
        for row in rows_of(RESULTS / "swap" / f"rates-{study}.csv"):
            accuracy = float(row["accuracy"])
            own = found.setdefault(row["head"], {}).setdefault(study, {}).setdefault(float(row["rate"]), [])
            own.append(GUESSED if math.isnan(accuracy) else accuracy)
    body = []
    for head in sorted(found, key=lambda head: (head != "softmax", steepness(head)[1])):
        name, slope = steepness(head)
        line = [name, f"{slope:.2f}" if slope < math.inf else "unbounded"]
        for study in studies:
            rates = sorted(found[head].get(study, ()))
            if not rates:
                line.append("")
                continue
            runs = np.array([found[head][study][rate] for rate in rates])
            rate = breaking(rates, runs.mean(1))
            if rate == rates[0]:
                line.append(f"below {rate:g}")
                continue
            seeds = np.random.default_rng(0).integers(runs.shape[1], size=(2000, runs.shape[1]))
            low, high = np.quantile([breaking(rates, runs[:, some].mean(1)) for some in seeds], (0.025, 0.975))
            line.append(f"{rate:.2f} [{low:.2f}, {high:.2f}], {rate * slope:.1f}")
        body.append(line)
    return grid(["`tail`", "$s$", *studies.values()], body)


def words(task: str) -> str:
    """The report's own table."""
    lines = (RESULTS / "wide-heads" / task / "wide_heads.md").read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("|"))


def claims() -> str:
    """The scoreboard's."""
    page = (RESULTS / "scoreboard.md").read_text(encoding="utf-8").partition("## Claims")[2].partition("## Cells")[0]
    return "".join(line for line in page.splitlines(keepends=True) if line.startswith("|"))


UNBIASED = {  # which have no temperature
    "score-function": "score function, 1 sample",
    "leave-one-out": "score function, 4 samples, leave-one-out",
}
BIASES = (  # of fourteen lines those that tell: the others' temperatures stand in the picture
    ("straight-through", "1"),
    ("gumbel", "0.5"),
    ("gumbel", "1"),
    ("gumbel-relaxed", "0.5"),
    ("gumbel-rao", "0.5"),
    ("reinmax", "1"),
    ("score-function", "1"),
    ("leave-one-out", "1"),
)


def biases() -> str:
    """Of gradients through samples, each head where it was trained: the mean of the seeds."""
    rows = [row for row in rows_of(RESULTS / "latents" / "bias" / "bias.csv") if row["trained"] == row["head"]]
    body = []
    for name, tau in BIASES:
        pairs = []
        for field in ("cosine", "bias", "deviation", "error"):
            kinds = [
                [row for row in rows if (row["head"], row["estimator"], row["tau"]) == (head, name, tau)]
                for head in ("softmax", "catnat")
            ]
            pairs.append(" / ".join(f"{fmean(float(row[field]) for row in own):z.2f}" for own in kinds))
        body.append([UNBIASED.get(name, f"{name}, {tau}"), *pairs])
    return grid(["softmax / catnat", "cosine", "bias", "standard deviation", "root mean square error"], body)


def simulated(**wanted: str) -> list[Row]:
    """Conditions of the calibration of `compare`, all ordinary but for what is given."""
    plain = {"seeds": "5", "difference": "0", "offset": "0", "diverged": "0", "rule": "compare"} | wanted
    every = rows_of(RESULTS / "compare" / "calibration.csv")
    alike = [row for row in every if row["noise"] == row["other noise"]]
    return [row for row in alike if all(row[name] == value for name, value in plain.items())]


def calibration() -> str:
    """False alarms by design and noise, the worst over all curves; and by how much a test is too good."""
    names = {
        "own search": "a search per repetition: `compare`",
        "compare itself": "the same, by its own stages, where all good rates lie beyond the grid",
        "one search, seeds: 5": "one search, 5 seeds",
        "one search, seeds: 1": "one search, 1 seed",
        "best test": "rate chosen by the test, for both",
        "best test of one": "rate chosen by the test, for one; the other at its best",
    }
    body = []
    for design, name in names.items():
        worst = [max(float(row["seen"]) for row in simulated(design=design, noise=kind)) for kind in NOISES]
        (flat,) = simulated(design=design, noise="normal", curvature="0")
        good = "" if design == "compare itself" else f"{0 - round(float(flat['mean test']), 2):.2f}"
        body.append([name, *(f"{share:.1%}" for share in worst), good])
    return grid(["design", *NOISES.values(), "test too good by"], body)


def power() -> str:
    """In what share of studies a difference is seen."""
    sizes = ["0.5", "1", "1.5", "2", "3"]
    body = []
    for seeds, (kind, name) in product(("5", "10"), NOISES.items()):
        found = {d: simulated(design="own search", noise=kind, seeds=seeds, curvature="1", difference=d) for d in sizes}
        body.append([f"{seeds} repetitions, {name}", *(f"{float(found[d][0]['seen']):.0%}" for d in sizes)])
    return grid(["", *sizes], body)


TABLES: dict[str, Callable[[], str]] = {
    "bias": biases,
    "calibration": calibration,
    "power": power,
    "claims": claims,
    "graphs": graphs,
    "autoencoders-grey": lambda: autoencoders("adam", "grey"),
    "autoencoders-binary": lambda: autoencoders("adam", "binary"),
    "sgd-grey": lambda: autoencoders("sgd", "grey"),
    "sgd-binary": lambda: autoencoders("sgd", "binary"),
    "lead": lambda: lead("adam"),
    "sgd-lead": lambda: lead("sgd"),
    "sgd-rates": sgd_rates,
    "sgd-softmax": sgd_softmax,
    "sgd-tests": sgd_tests,
    "sgd-leads": sgd_leads,
    "sgd-falls": sgd_falls,
    "sgd-long": sgd_long_leads,
    "sgd-long-ends": sgd_long_ends,
    "dense": dense,
    "dense-gaps": dense_gaps,
    "collapse": collapse,
    "collapse-tests": collapse_tests,
    "revival": revival,
    "revival-baselines": revival_baselines,
    "clipped": clipped,
    "atari": atari,
    "breakout": breakout,
    "minatar": minatar,
    "policy-trees": policy_trees,
    "tree-tests": tree_tests,
    "family": family,
    "tails": tails,
    "floors": floors,
    "gpu": by_classes,
    "gpu-summary": gpu_summary,
    "wide": wide,
    "wide-classes": wide_classes,
    "unrelated": unrelated,
    "mixed": mixed,
    "last-batch": last_batch,
    "large-rates": large_rates,
    "words-pieces": lambda: words("pieces"),
    "words-words": lambda: words("words"),
    "cost": lambda: (RESULTS / "lab" / "cost.md").read_text(encoding="utf-8"),
    "cpu": lambda: ratios(["cpu/cpu.csv"], against, lambda row: True, by_rows=True),
    "cpu-xeon": lambda: ratios(["cpu/xeon/cpu.csv"], against, lambda row: "natural" in row["contender"], by_rows=True),
    "jax-cpu": lambda: ratios(["jax/jax-cpu.csv"], against, lambda row: True, by_rows=True),
    "jax-gpu": lambda: ratios(["jax/jax-gpu.csv", "jax/jax-gpu-waited.csv"], against, is_shown),
}
MARKED = re.compile(r"(<!-- table (\S+) -->\n\n?)(.*?)(\n?<!-- /table -->)", re.DOTALL)


def renewed(text: str) -> str:
    """A page with its tables as the results have them."""
    return MARKED.sub(lambda found: f"<!-- table {found[2]} -->\n\n{TABLES[found[2]]()}\n<!-- /table -->", text)


if __name__ == "__main__":
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        if (after := renewed(before)) != before:
            page.write_text(after, encoding="utf-8")
            print(f"renewed {page.name}")
