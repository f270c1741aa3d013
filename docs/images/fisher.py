"""Draw fisher.png, a tree of four classes beside two Fisher matrices: `python docs/images/fisher.py`."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import catnat_lab.plot

PROBABILITIES = (0.1, 0.2, 0.3, 0.4)


def main() -> None:
    """Three panels."""
    figure, (tree, *maps) = plt.subplots(1, 3, figsize=(9, 3), width_ratios=(1.5, 1, 1), layout="constrained")
    catnat_lab.plot.tree(4, PROBABILITIES, tree, lit=2)
    tree.set_title("$p_2 = a(s_1)\\,(1 - a(s_3)) = 0.7 × 0.43 = 0.3$", fontsize=9, color=catnat_lab.plot.LIT)
    for axes, (name, of) in zip(maps, {"softmax": "softmax", "catnat": 4}.items(), strict=True):
        catnat_lab.plot.fisher(of, PROBABILITIES, axes, limit=0.3)
        axes.set_title(f"Fisher matrix of {name}", fontsize=9)
    figure.savefig(Path(__file__).with_name("fisher.png"), dpi=110, bbox_inches="tight", pad_inches=0.1)


if __name__ == "__main__":
    main()
