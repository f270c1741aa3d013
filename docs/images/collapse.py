"""Draw collapse.png, how the dense VAE's codes freeze at N = 10, K = 8: `python docs/images/collapse.py`."""

import csv
import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from catnat_lab.files import read as read_text

RESULTS = Path(__file__).parents[2] / "results" / "vae"
FLOORS = ("collapse", "collapse-floors")  # both at a rate of 0.0003
INK = "#1a1b1e"
CODE = 10 * math.log(8)  # nats, which the paper's ELBO leaves out
LOOKS = {
    "softmax": ("softmax", "#0072B2", "-"),
    "catnat-sigmoid": ("sigmoid", "#009E73", "-"),
    "catnat": ("default", INK, "-"),
    "catnat-paper": ("clip, floor 1e-8", "#D55E00", "-"),
    "catnat-clip1e-6": ("clip, floor 1e-6", "#D55E00", "--"),
    "catnat-revive1e-8": ("revive, floor 1e-8", "#E69F00", "-"),
    "catnat-revive1e-6": ("revive, floor 1e-6", "#CC79A7", "-"),
    "catnat-revive1e-4": ("revive, floor 1e-4", "#56B4E9", "-"),
    "catnat-tail0.02": ("tail 0.02", "#777777", "-"),
}


def read(folder: str, file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(read_text(RESULTS / folder / file).splitlines()))


def over_training(measure: str) -> dict[str, dict[float, float]]:
    """By head and epoch, the mean over seeds."""
    points: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in (row for folder in FLOORS for row in read(folder, "curves.csv") if row[measure]):
        points[row["head"]][int(row["step"]) / 468].append(float(row[measure]))
    return {head: {epoch: fmean(values) for epoch, values in curve.items()} for head, curve in points.items()}


def main() -> None:
    """Nodes outside the range and the bound over training; and at its end, certain mistakes against the bound."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4.2), layout="constrained")
    outside, bound = over_training("outside"), over_training("minus_elbo_validation")
    for head, (name, color, stroke) in LOOKS.items():
        if head in outside and "tail" not in head and head != "catnat":  # whose range is another
            left.plot(*zip(*outside[head].items(), strict=True), stroke, color=color, label=name)
        middle.plot(bound[head].keys(), [CODE - y for y in bound[head].values()], stroke, color=color, label=name)
    left.set(xlabel="epochs", ylabel="share of nodes outside the range", ylim=(0, 1), title="Nodes leave the range")
    middle.set(xlabel="epochs", ylabel="ELBO, validation images", ylim=(-101, -84), title="The bound, at rate 0.0003")
    for folder, marker, where in (("collapse-floors", "o", "rate 0.0003"), ("mlp", "s", "its best rate")):
        finals = [row for row in read(folder, "values.csv") if row["stage"] == "final" and row["seed"] == "1"]
        elbos = {(f"{r['variables']}x{r['classes']}", r["head"]): float(r["elbo_paper"]) for r in finals}
        for row in read(folder, "codes.csv"):
            _, color, stroke = LOOKS[row["head"]]
            face = color if stroke == "-" else "none"
            right.plot(float(row["certain"]), elbos[row["cell"], row["head"]], marker, color=color, mfc=face)
        right.plot([], [], marker, color=INK, mfc="none", label=where)
    right.set(xlabel="share of variables that are certain mistakes", ylabel="ELBO, test images", xlim=(0, 0.3))
    right.set(title="At the end, one model each")
    right.legend(frameon=False, fontsize=8, loc="lower left")
    figure.legend(*middle.get_legend_handles_labels(), frameon=False, fontsize=9, ncols=5, loc="outside lower center")
    figure.savefig(Path(__file__).with_name("collapse.png"), dpi=110)


if __name__ == "__main__":
    main()
