"""Draw revival.png, what leads nodes back inside in the dense VAE: `python docs/images/revival.py`."""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parents[2] / "results" / "vae" / "revival"
WAYS = {
    "clip": ("nothing: clip", "#D55E00"),
    "entropy": ("1: the entropy", "#009E73"),
    "rare": ("2: draws of the rare branch", "#CC79A7"),
    "likely": ("3: draws of the likely branch", "#E69F00"),
    "draws": ("2 and 3", "#0072B2"),
    "apart": ("1 to 3, each by itself", "#777777"),
    "revive": ("1 to 3, their sum: revive", "#56B4E9"),
}
BASELINES = ("constant", "leave-one-out")


def over_training(measure: str) -> dict[tuple[str, str], dict[int, float]]:
    """By baseline and way, the mean over seeds at every step that was looked at."""
    points: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(RESULTS.glob("seed*.csv")):
        with path.open(encoding="utf-8") as file:
            for row in (row for row in csv.DictReader(file) if float(row["floor"]) == 1e-4):
                points[row["baseline"], row["way"]][int(row["step"])].append(float(row[measure]))
    return {kind: {step: fmean(values) for step, values in curve.items()} for kind, curve in points.items()}


def cheap_from(cost: dict[tuple[str, str], dict[int, float]]) -> int:
    """The first step at which the mean cost of every way is below the constant baseline, 125."""
    curves = [cost["constant", way] for way in WAYS]
    return next(step for step in curves[0] if all(curve[step] < 125 for curve in curves))


def main() -> None:
    """Nodes outside the range with either baseline, and the bound minus the clip's."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    outside, bound, cost = (over_training(measure) for measure in ("outside", "elbo_paper", "bce"))
    for axis, baseline in zip(axes, BASELINES, strict=False):
        for way, (name, color) in WAYS.items():
            axis.plot(*zip(*outside[baseline, way].items(), strict=True), color=color, label=name)
        if baseline == "constant":
            axis.axvline(cheap_from(cost), color="#777777", linestyle="--", linewidth=0.8)
        axis.set(xlabel="steps", ylabel="share of nodes outside the range", ylim=(0, 1), title=f"Baseline: {baseline}")
    for way, (_, color) in WAYS.items():
        both = [(bound[baseline, way], bound[baseline, "clip"]) for baseline in BASELINES]
        axes[2].plot(
            both[0][0].keys(), [fmean(own[at] - clip[at] for own, clip in both) for at in both[0][0]], color=color
        )
    axes[2].set(xlabel="steps", ylabel="ELBO minus clip's, nats", title="The bound, mean of both baselines")
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=8, ncols=7, loc="outside lower center")
    figure.savefig(Path(__file__).with_name("revival.png"), dpi=110)


if __name__ == "__main__":
    main()
