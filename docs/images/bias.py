"""Draw bias.png, how far gradients through samples are off and how much they scatter: `python docs/images/bias.py`."""

import csv
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TABLE = Path(__file__).parents[2] / "results" / "latents" / "bias" / "bias.csv"
COLOURS = {"softmax": "#1b6ca8", "catnat": "#c8553d"}
PANELS = {"bias": "bias", "deviation": "standard deviation of one estimate"}
WITHOUT = ("score-function", "leave-one-out")  # no temperature
GONE = ("relaxed-descent", "antithetic")  # measured, and not in the library


def main() -> None:
    """A row an estimator, a small point a seed, a large one the mean of the seeds."""
    with TABLE.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["trained"] == row["head"] and row["estimator"] not in GONE]
    kinds = list(dict.fromkeys((row["estimator"], row["tau"]) for row in rows))
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained", sharey=True)
    for axes, (field, label) in zip(panels, PANELS.items(), strict=True):
        for (head, colour), shift in zip(COLOURS.items(), (-0.15, 0.15), strict=True):
            for place, kind in enumerate(kinds):
                some = [row for row in rows if (row["head"], row["estimator"], row["tau"]) == (head, *kind)]
                values = [float(row[field]) for row in some]
                axes.plot(values, [place + shift] * len(values), ".", color=colour, alpha=0.4, markersize=4)
                axes.plot(fmean(values), place + shift, "o", color=colour, markersize=6, label="" if place else head)
        axes.set(title=label, xlabel="share of the exact gradient's length")
        axes.grid(axis="x", alpha=0.25)
    panels[1].set_xscale("log", base=2)
    panels[1].xaxis.set_major_formatter("{x:g}")
    panels[0].axvline(0, color="#999999", linewidth=0.8)
    names = [name if name in WITHOUT else f"{name}, {float(tau):g}" for name, tau in kinds]
    panels[0].set_yticks(range(len(kinds)), names)
    panels[0].invert_yaxis()
    panels[0].legend(frameon=False)
    figure.savefig(Path(__file__).with_name("bias.png"), dpi=110)


if __name__ == "__main__":
    main()
