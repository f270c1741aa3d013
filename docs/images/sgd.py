"""Draw sgd.png, two cells of the VAE trained by SGD for 550,000 steps: `python docs/images/sgd.py`."""

import csv
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

CURVES = Path(__file__).parents[2] / "results" / "vae" / "sgd-long" / "curves.csv"
COLOURS = {"softmax": "#1b6ca8", "catnat-sigmoid": "#3f8f4f", "catnat": "#c8553d"}
LOST = 30  # nats above the others: such a run is drawn as far as the axes go, and no part of a mean


def main() -> None:
    """Minus the bound over steps: a thin line per run, a thick one per mean."""
    with CURVES.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    runs: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for row in rows:
        point = int(row["step"]) / 1000, float(row["minus_elbo_validation"])
        runs.setdefault((row["classes"], row["head"], row["seed"]), []).append(point)
    least = min(own[-1][1] for own in runs.values())
    figure, both = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
    for axes, classes in zip(both, ("16", "32"), strict=True):
        for head, colour in COLOURS.items():
            own = [points for run, points in runs.items() if run[:2] == (classes, head)]
            for points in own:
                axes.plot(*zip(*points, strict=True), color=colour, alpha=0.25, linewidth=0.8)
            whole = [points for points in own if points[-1][1] < least + LOST]
            means = [(some[0][0], fmean(value for _, value in some)) for some in zip(*whole, strict=True)]
            axes.plot(*zip(*means, strict=True), color=colour, linewidth=2, label=head)
        axes.axvline(200, color="#999999", linewidth=0.8, dashes=(4, 2))
        axes.set(title=f"grey digits, 10×{classes}", xlabel="thousands of steps", xlim=(0, 560), ylim=(99, 116))
    both[0].set_ylabel("negative validation bound, nats")
    both[1].legend(frameon=False, fontsize=9)
    figure.savefig(Path(__file__).with_name("sgd.png"), dpi=110)


if __name__ == "__main__":
    main()
