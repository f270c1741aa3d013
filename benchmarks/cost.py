"""What the paper's whole protocol costs on 1, 8 and 64 GPUs, from measured speeds: `python -m benchmarks.cost`.

A stack of r runs takes t(r) seconds a step, measured on one H200 for several r; between them it is a line. A stage of
a study is parted evenly among the GPUs, and ends when its last stack does; stages follow one another. Atari's runs
are bound by the cores, so there a GPU stands for a machine with one GPU and 16 cores, which trains eight runs at once.
Every job costs some milliseconds of bookkeeping more, as measured with Ray. It writes results/lab/cost.md.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

from catnat_lab.gsl.presets import PAPER as GRAPHS
from catnat_lab.rl.sweep import Plan
from catnat_lab.vae.presets import PAPER as AUTOENCODERS

RESULTS = Path(__file__).parents[1] / "results"
FLEETS = (1, 8, 64)
Stage = tuple[int, int]  # jobs, steps of each
Speeds = Sequence[tuple[int, float]]  # runs side by side, steps a second of all together


def step_time(speeds: Speeds, runs: int) -> float:
    """Seconds for one step of so many runs side by side."""
    times = [(count, count / speed) for count, speed in speeds]
    if runs <= times[0][0]:
        return times[0][1]
    for (low, a), (high, b) in itertools.pairwise(times):
        if runs <= high:
            return a + (b - a) * (runs - low) / (high - low)
    return times[-1][1] * runs / times[-1][0]


def stacked(stages: Sequence[Stage], speeds: Speeds, gpus: int) -> float:
    """Seconds of a study whose runs train in stacks, as many as were timed at most."""
    most = speeds[-1][0]
    total = 0.0
    for jobs, steps in stages:
        each = math.ceil(jobs / gpus)  # runs that one GPU trains
        whole, rest = divmod(each, most)
        total += steps * (whole * step_time(speeds, most) + (step_time(speeds, rest) if rest else 0.0))
    return total


def autoencoder_stages(table: str) -> list[Stage]:
    """Coarse rates, refined rates, final seeds; the grid is not widened."""
    plan = AUTOENCODERS[table]
    cells = len(plan.searched) * len(plan.heads) * plan.search_seeds
    final = len(plan.cells) * len(plan.data) * len(plan.heads) * plan.seeds
    tried = [cells * count for count in (len(plan.rates), plan.refined)]
    return [(tried[0], plan.search_steps), (tried[1], plan.search_steps), (final, plan.steps)]


def graph_stages() -> list[Stage]:
    """Coarse rates, refined rates, final seeds; the grid is not widened."""
    cells = len(GRAPHS.thetas) * len(GRAPHS.heads)
    steps = GRAPHS.epochs * (GRAPHS.pairs - 2 * (GRAPHS.pairs // 10)) // GRAPHS.batch
    tried = [cells * GRAPHS.search_seeds * count for count in (len(GRAPHS.rates), GRAPHS.refined)]
    return [(tried[0], steps), (tried[1], steps), (cells * GRAPHS.seeds, steps)]


def atari(machines: int) -> float:
    """A search asks for one trial after the other, so it trains as many at once as there are games and heads."""
    plan = Plan()
    alone, eight = _atari_speeds()
    cells = len(plan.games) * len(plan.heads)
    searching = min(cells, 8 * machines)
    speed = alone if math.ceil(searching / machines) == 1 else eight / 8
    search = plan.trials * math.ceil(cells / searching) * plan.steps / speed
    final = math.ceil(cells * plan.best * plan.seeds / (8 * machines)) * plan.steps / (eight / 8)
    return search + final


def _atari_speeds() -> tuple[float, float]:
    """Steps a second: of one run with a machine of its own, and of eight side by side together."""
    with (RESULTS / "rl" / "throughput-breakout-cuda.csv").open() as file:
        alone = next(float(r["steps_per_second"]) for r in csv.DictReader(file) if r["contender"] == "ours, softmax")
    return alone, 8 * 1_500_000 / (60 * 16.3)  # results/rl/atari: eight runs of 1.5 million steps in 16.3 minutes


def _graph_speeds() -> Speeds:
    """From the published study, in stacks of 256; a step of fewer runs counts as if it took as long."""
    seconds = float(json.loads((RESULTS / "gsl" / "provenance.json").read_text())["seconds"].split()[0])
    with (RESULTS / "gsl" / "values.csv").open() as file:
        runs = sum(row["stage"] != "optimal" for row in csv.DictReader(file))
    speed = runs * graph_stages()[0][1] / seconds
    return [(1, speed / 256), (256, speed)]


def _dense_speeds() -> Speeds:
    """From a published study of 20 runs of 10x8 in one stack, alone; fewer count as if they took as long.

    Larger codes are slower: 30x32 has about 1.4 times as many weights.
    """
    seconds = float(json.loads((RESULTS / "vae" / "collapse" / "provenance.json").read_text())["seconds"].split()[0])
    speed = 20 * AUTOENCODERS["mlp"].steps / seconds
    return [(1, speed / 20), (20, speed)]


def _speeds(path: Path, name: str) -> Speeds:
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["contender"] == name]
    return [(int(row["runs"]), float(row["steps_per_second"])) for row in rows]


def table() -> str:
    """What every study of the paper costs, as Markdown."""
    with (RESULTS / "lab" / "executors.csv").open() as file:
        ray = next(float(r["ms_per_job"]) for r in csv.DictReader(file) if (r["job"], r["on"]) == ("no work", "ray"))
    convolutional = _speeds(RESULTS / "vae" / "throughput-cuda.csv", "stacked")
    studies: list[tuple[str, int, dict[int, float]]] = []
    for name, stages, speeds in (
        ("graphs", graph_stages(), _graph_speeds()),
        ("convolutional VAE, Adam", autoencoder_stages("adam"), convolutional),
        ("convolutional VAE, SGD", autoencoder_stages("sgd"), convolutional),
        ("dense VAE", autoencoder_stages("mlp"), _dense_speeds()),
    ):
        jobs = sum(count for count, _ in stages)
        studies.append((name, jobs, {gpus: stacked(stages, speeds, gpus) + jobs * ray / 1000 for gpus in FLEETS}))
    plan = Plan()
    runs = len(plan.games) * len(plan.heads) * (plan.trials + plan.best * plan.seeds)
    studies.append(("Atari", runs, {gpus: atari(gpus) for gpus in FLEETS}))
    lines = ["| table | jobs | seconds per job | 1 GPU | 8 GPUs | 64 GPUs |", "| --- |" + " ---: |" * 5]
    for name, jobs, found in studies:
        lines.append(f"| {name} | {jobs:,} | {found[1] / jobs:.3g} | {' | '.join(_told(s) for s in found.values())} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compute, print and write the table."""
    text = table()
    print(text)
    (RESULTS / "lab" / "cost.md").write_text(text)


def _told(seconds: float) -> str:
    return f"{seconds / 60:.3g} minutes" if seconds < 5400 else f"{seconds / 3600:.3g} hours"


if __name__ == "__main__":
    main()
