"""Draw breakout.png, our runs of Breakout beside published ones: `python docs/images/breakout.py`."""

import csv
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parents[2] / "results"
OURS = {"softmax": ("#b3d0e6", "#1b6ca8", "#4d94c4"), "catnat": ("#f0cabf", "#c8553d", "#dc8672")}  # by run
DASHES = ((4, 2), (1, 1), (6, 2, 1, 2), (2, 2))  # of those that are not ours
WINDOW = 500_000  # steps that a point is the mean over; it stands at their end


def main() -> None:
    """Scores over steps, a line per run. What is left of a run after its last whole window is a point of its own."""
    points: dict[str, dict[int, list[tuple[int, float]]]] = {}
    for folder, before in {"archive/atari-unfinished": 0, "rl/atari-long": 1}.items():  # and the runs before its seeds
        for row in read(f"{folder}/curves.csv"):
            step = round(int(row["step"]), -4)  # a window's end is rounded up to a whole rollout
            windows = points.setdefault(f"{row['head']}, run {before + int(row['seed'])}", {})
            windows.setdefault((step - 1) // WINDOW, []).append((step, float(row["score"])))
    for row in read("rl/published.csv"):
        step = int(row["step"])
        points.setdefault(row["implementation"], {})[step] = [(step, float(row["score"]))]
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    dashes = iter(DASHES)
    for name, windows in points.items():
        x = [max(step for step, _ in some) / 1e6 for some in windows.values()]
        y = [fmean(score for _, score in some) for some in windows.values()]
        head, _, run = name.partition(", run ")
        look = {"color": OURS[head][int(run) - 1]} if run else {"color": "#555555", "dashes": next(dashes)}
        axes.plot(x, y, label=name, **look)
    axes.set(xlabel="millions of steps", ylabel="score", xlim=(0, 10.05), ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(Path(__file__).with_name("breakout.png"), dpi=110)


def read(path: str) -> list[dict[str, str]]:
    with (RESULTS / path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
