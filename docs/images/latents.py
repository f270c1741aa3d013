"""Draw latents.png, catnat minus softmax in the benchmark of categorical latents: `python docs/images/latents.py`."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from catnat_lab.latents import records
from catnat_lab.latents.report import lines
from catnat_lab.latents.rule import Rule

RUNS = Path(__file__).parents[2] / "results" / "latents" / "runs"
SIZES = ((8, 64), (12, 16), (16, 8), (30, 10), (24, 4), (4, 8))  # from the largest gain to the smallest
PANELS = {"gumbel-softmax": "Gumbel-softmax", "reinmax": "ReinMax"}
OURS, LEVEL = "#c8553d", 0.5  # nats that our rule calls level
LEFT = -6.4


def main() -> None:
    """A panel per estimator, a line per size: the difference of the means of 16 runs each, and its 95% interval."""
    done, rule = records.read(RUNS), Rule()
    figure, panels = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
    for axes, (estimator, title) in zip(panels, PANELS.items(), strict=True):
        axes.axvspan(-LEVEL, LEVEL, color="#eeeeee")
        axes.axvline(0, color="#1b6ca8", linewidth=1.2)
        found = {(each.cell.variables, each.cell.classes): each for each in lines(rule, done, [estimator], ["catnat"])}
        for place, size in enumerate(reversed(SIZES)):
            told = found[size].found
            if told.high - told.low > -LEFT:
                axes.text(0, place, "cannot tell: two runs got stuck ", ha="right", va="center", fontsize=9)
                continue
            axes.plot([told.low, told.high], [place, place], color=OURS, linewidth=2)
            axes.plot([told.difference], [place], "o", color=OURS, markersize=6)
            axes.text(told.difference, place + 0.16, f"{told.difference:+.1f}", ha="center", va="bottom", fontsize=8)
        axes.set(title=title, xlim=(LEFT, 1.6), ylim=(-0.6, len(SIZES)), xlabel="nats, catnat minus softmax")
        axes.set_yticks(range(len(SIZES)), [f"{n} variables of {k}" for n, k in reversed(SIZES)])
        axes.spines[["top", "right"]].set_visible(False)
        axes.text(LEFT, len(SIZES) - 0.05, "← catnat is better", ha="left", va="top", fontsize=8, color="#555555")
    figure.savefig(Path(__file__).with_name("latents.png"), dpi=130)


if __name__ == "__main__":
    main()
