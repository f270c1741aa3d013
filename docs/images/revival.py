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
    "rare": ("draws of the rare branch", "#CC79A7"),
    "likely": ("draws of the likely branch", "#E69F00"),
    "draws": ("all draws", "#0072B2"),
    "entropy": ("the entropy", "#009E73"),
    "apart": ("draws and entropy, each", "#777777"),
    "revive": ("their sum: revive", "#56B4E9"),
}
STROKES = {"constant": "-", "leave-one-out": "--"}


def over_training(measure: str) -> dict[tuple[str, str], dict[int, float]]:
    """By baseline and way, the mean over seeds at every step that was looked at."""
    points: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(RESULTS.glob("seed*.csv")):
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                points[row["baseline"], row["way"]][int(row["step"])].append(float(row[measure]))
    return {kind: {step: fmean(values) for step, values in curve.items()} for kind, curve in points.items()}


def main() -> None:
    """Nodes outside the range with either baseline, and the bound minus the clip's."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    outside, bound = over_training("outside"), over_training("elbo_paper")
    for axis, (baseline, stroke) in zip(axes, STROKES.items(), strict=False):
        for way, (name, color) in WAYS.items():
            curve, clip = bound[baseline, way], bound[baseline, "clip"]
            axis.plot(*zip(*outside[baseline, way].items(), strict=True), stroke, color=color, label=name)
            if way != "clip":
                axes[2].plot(curve.keys(), [y - clip[step] for step, y in curve.items()], stroke, color=color)
        axis.set(xlabel="steps", ylabel="share of nodes outside the range", ylim=(0, 1), title=f"Baseline: {baseline}")
    axes[2].axhline(0, color=WAYS["clip"][1])
    axes[2].set(xlabel="steps", ylabel="ELBO minus clip's, nats", title="The bound (dashed: leave-one-out)")
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=8, ncols=7, loc="outside lower center")
    figure.savefig(Path(__file__).with_name("revival.png"), dpi=110)


if __name__ == "__main__":
    main()
