"""Draw family.png, the log-odds and the information of one node: `python docs/images/family.py`."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import catnat_lab.plot
from catnat import Natural

COLORS = {0.5: "#1b6ca8", 0.1: "#c8553d", 0.05: "#7d9d4b", 0.01: "#7a7a7a", 0.0: "black"}
NAMES = {0.5: "0.5: the sigmoid", Natural().tail: f"{Natural().tail:g}: the default", 0.0: "0: the paper's"}


def main() -> None:
    """Two panels over the score, a line per tail."""
    x = np.linspace(-5, 5, 2001)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for tail, color in COLORS.items():
        for axes, quantity in ((left, "log-odds"), (right, "information")):
            style = {"quantity": quantity, "scores": x, "color": color, "label": NAMES.get(tail, f"{tail:g}")}
            catnat_lab.plot.activation(Natural(tail=tail), axes, **style)
    left.set(ylim=(-12, 12))
    right.set(ylim=(-0.01, 0.28))
    left.legend(title="tail", frameon=False, fontsize=8)
    figure.savefig(Path(__file__).with_name("family.png"), dpi=110)


if __name__ == "__main__":
    main()
