"""Draw breakout.png, our runs of Breakout beside published ones: `python docs/images/breakout.py`."""

import csv
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parents[2] / "results" / "rl"
OURS = {"softmax": ("#7fb2d6", "#1b6ca8"), "catnat": ("#e3a598", "#c8553d")}  # by run
DASHES = ((4, 2), (1, 1), (6, 2, 1, 2), (2, 2))  # of those that are not ours
WINDOW, PART = 500_000, 80_000  # steps that a point is the mean over; of one line of our curves


def main() -> None:
    """Scores over steps, a line per run. What is left of a run after its last whole window is a point of its own."""
    points: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for row in read("atari-unfinished/curves.csv"):
        middle = int(row["step"]) - PART / 2
        windows = points.setdefault(f"{row['head']}, run {row['run']}", {})
        windows.setdefault(int(middle // WINDOW), []).append((middle, float(row["score"])))
    for row in read("published.csv"):
        middle = int(row["step"]) - WINDOW / 2
        points.setdefault(row["implementation"], {})[int(middle)] = [(middle, float(row["score"]))]
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    dashes = iter(DASHES)
    for name, windows in points.items():
        x, y = ([fmean(pair[i] for pair in some) for some in windows.values()] for i in (0, 1))
        head, _, run = name.partition(", run ")
        look = {"color": OURS[head][int(run) - 1]} if run else {"color": "#555555", "dashes": next(dashes)}
        axes.plot([step / 1e6 for step in x], y, label=name, **look)
    axes.set(xlabel="millions of steps", ylabel="score", xlim=(0, 10), ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(Path(__file__).with_name("breakout.png"), dpi=110)


def read(path: str) -> list[dict[str, str]]:
    with (RESULTS / path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
