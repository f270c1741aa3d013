"""Draw trees.png, activations.png, matrices.png and simplex.png: `python docs/images/gallery.py`."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

import catnat
import catnat_lab.plot

PROBABILITIES = (0.4, 0.3, 0.1, 0.1, 0.1)
ACTIVATIONS = {"sigmoid": catnat.Sigmoid(), "default": catnat.Natural(), "paper's": catnat.Natural(tail=0.0)}


def trees() -> Figure:
    """The same distribution on three trees."""
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
    for axes, kind in zip(panels, ("balanced", "chain", "huffman"), strict=True):
        shape = getattr(catnat.Tree, kind)(PROBABILITIES if kind == "huffman" else len(PROBABILITIES))
        catnat_lab.plot.tree(shape, PROBABILITIES, axes, lit=1).set_title(kind)
    return figure


def activations() -> Figure:
    """Three activations in three ways."""
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
    for axes, quantity in zip(panels, catnat_lab.plot.QUANTITIES, strict=True):
        for name, activation in ACTIVATIONS.items():
            scores = [i / 200 for i in range(-900, 901)]
            catnat_lab.plot.activation(activation, axes, quantity=quantity, scores=scores, label=name)
    panels[0].legend(frameon=False)
    panels[1].set_ylim(-9, 9)
    return figure


def matrices() -> Figure:
    """Dense, and twice diagonal."""
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.5), layout="constrained")
    shown = {"catnat, sigmoid": catnat.Parameterization(5, "sigmoid"), "catnat, natural": catnat.Parameterization(5)}
    for axes, (name, of) in zip(panels, {"softmax": "softmax", **shown}.items(), strict=True):
        axes.set_title(name)
        catnat_lab.plot.fisher(of, PROBABILITIES, axes, limit=0.25)
    return figure


def simplex() -> Figure:
    """Two targets, with softmax and catnat on the same axes."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for axes, target in zip(panels, ((1 / 3, 1 / 3, 1 / 3), (0.7, 0.2, 0.1)), strict=True):
        for name, of, color in (("softmax", "softmax", catnat_lab.plot.BAR), ("catnat", 3, catnat_lab.plot.LIT)):
            catnat_lab.plot.simplex(of, target=target, ax=axes, color=color, label=name)
        axes.set_title("target (" + ", ".join(f"{p:.2g}" for p in target) + ")")
    panels[0].legend(loc="upper left", frameon=False)
    return figure


def main() -> None:
    """A file per picture."""
    for draw in (trees, activations, matrices, simplex):
        draw().savefig(Path(__file__).with_name(f"{draw.__name__}.png"), dpi=110)


if __name__ == "__main__":
    main()
