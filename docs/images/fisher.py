"""Draw fisher.png, a tree of four classes beside two Fisher matrices: `python docs/images/fisher.py`."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import catnat.torch as ct

PROBABILITIES = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
LIT, FAINT = "#c8553d", "#b0b0b0"


def main() -> None:
    """Three panels."""
    figure, (tree, *maps) = plt.subplots(1, 3, figsize=(9, 2.7), width_ratios=(1.5, 1, 1), layout="constrained")
    draw_tree(tree)
    scores = ct.scores_from_probs(PROBABILITIES)
    matrices = {
        "Fisher matrix of softmax": ct.softmax_fisher(PROBABILITIES.log()),
        "Fisher matrix of catnat": ct.fisher_matrix(ct.log_catnat, scores),
    }
    for axes, (title, matrix) in zip(maps, matrices.items(), strict=True):
        axes.imshow(matrix, cmap="RdBu_r", vmin=-0.4, vmax=0.4)
        for i in range(len(matrix)):
            for j in range(len(matrix)):
                value = f"{matrix[i, j]:.2f}".replace("-0.00", "0").replace("0.00", "0")
                axes.text(j, i, value, ha="center", va="center", fontsize=9)
        axes.set(xticks=[], yticks=[])
        axes.set_title(title, fontsize=9)
    figure.savefig(Path(__file__).with_name("fisher.png"), dpi=110)


def draw_tree(axes: plt.Axes) -> None:
    """Three scores on the nodes, four classes below; the way to the third class is lit."""
    nodes = {1: (3.0, 2.0), 2: (1.0, 1.0), 3: (5.0, 1.0), 4: (0.0, 0.0), 5: (2.0, 0.0), 6: (4.0, 0.0), 7: (6.0, 0.0)}
    for place in range(2, 8):
        (x0, y0), (x1, y1) = nodes[place // 2], nodes[place]
        is_lit = place in (3, 6)
        axes.plot([x0, x1], [y0, y1], color=LIT if is_lit else FAINT, linewidth=2.6 if is_lit else 1.2, zorder=1)
        branch = f"a(s{place // 2})" if place % 2 else f"1 - a(s{place // 2})"
        color = LIT if is_lit else "#707070"
        side = "left" if place % 2 else "right"
        axes.text(
            (x0 + x1) / 2 + (0.12 if place % 2 else -0.12),
            (y0 + y1) / 2 + 0.1,
            branch,
            fontsize=8,
            ha=side,
            color=color,
        )
    for place, (x, y) in nodes.items():
        is_lit = place in (1, 3, 6)
        label = f"s{place}" if place < 4 else f"p{place - 3} = {PROBABILITIES[place - 4]:g}"
        box = {
            "boxstyle": "circle,pad=0.3" if place < 4 else "round,pad=0.3",
            "fc": "white",
            "ec": LIT if is_lit else FAINT,
        }
        axes.text(x, y, label, ha="center", va="center", fontsize=9, bbox=box, zorder=2)
    axes.set(xlim=(-0.9, 6.9), ylim=(-0.4, 2.4))
    axes.set_title("p3 = a(s1) (1 - a(s3))", fontsize=9, color=LIT)
    axes.axis("off")


if __name__ == "__main__":
    main()
