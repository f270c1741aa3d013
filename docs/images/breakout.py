"""Draw breakout.png, our runs of Breakout beside published ones: `python docs/images/breakout.py`."""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parents[2] / "results" / "rl"
COLORS = {"softmax": "#1b6ca8", "catnat": "#c8553d", "openai/baselines": "black", "CleanRL": "#7a7a7a"}
TOGETHER = 5  # points of a curve that are averaged: 400,000 steps


def main() -> None:
    """Scores over steps, a line per run."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for path, name in (("atari-unfinished/curves.csv", "{head}, run {run}"), ("published.csv", "{implementation}")):
        with (RESULTS / path).open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                lines.setdefault(name.format(**row), []).append((int(row["step"]), float(row["score"])))
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    for name, points in lines.items():
        ours = ", run" in name
        size = TOGETHER if ours else 1
        parts = [points[i : i + size] for i in range(0, len(points) - size + 1, size)]
        x = [sum(step for step, _ in part) / size / 1e6 for part in parts]
        y = [sum(score for _, score in part) / size for part in parts]
        color = COLORS[name.split(",")[0]]
        axes.plot(x, y, "-" if ours else ".--", color=color, alpha=0.6 if name.endswith("1") else 1, label=name)
    axes.set(xlabel="millions of steps", ylabel="score", xlim=(0, 10.1), ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(Path(__file__).with_name("breakout.png"), dpi=110)


if __name__ == "__main__":
    main()
