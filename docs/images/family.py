"""Draw family.png, the log-odds and the information of one node: `python docs/images/family.py`."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from catnat import Natural

COLORS = {0.5: "#1b6ca8", 0.1: "#c8553d", 0.05: "#7d9d4b", 0.01: "#7a7a7a"}


def main() -> None:
    """Two panels over the score, a line per tail."""
    x = np.linspace(-5, 5, 1001)
    inside = np.linspace(-np.pi + 1e-3, np.pi - 1e-3, 1001)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    default = Natural().tail
    names = {0.5: "0.5: the sigmoid", default: f"{default:g}: the default"}
    for tail, color in COLORS.items():
        natural = Natural(tail=tail)
        z = natural.logit(x, np)
        style = {"color": color, "linewidth": 2.4 if tail == default else 1.4, "label": names.get(tail, f"{tail:g}")}
        left.plot(x, z, **style)
        right.plot(x, natural.slope(x, np) ** 2 / (2 * np.cosh(z / 2)) ** 2, **style)
    dashed = {"color": "black", "linestyle": "--", "linewidth": 1, "label": "0: the paper's"}
    left.plot(inside, Natural(tail=0.0).logit(inside, np), **dashed)
    right.plot([-5, -np.pi, -np.pi, np.pi, np.pi, 5], [0, 0, 0.25, 0.25, 0, 0], **dashed)
    left.set(xlabel="score", ylabel="log-odds", ylim=(-12, 12))
    right.set(xlabel="score", ylabel="Fisher information", ylim=(-0.01, 0.28))
    left.legend(title="tail", frameon=False, fontsize=8)
    figure.savefig(Path(__file__).with_name("family.png"), dpi=110)


if __name__ == "__main__":
    main()
