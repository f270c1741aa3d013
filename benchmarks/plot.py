"""Draw the GPU's table: time by the rival's time against the number of classes. `python -m benchmarks.plot`."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PANELS = tuple(f"log_catnat {way}, {dtype}" for way in ("forward", "backward") for dtype in ("float32", "bfloat16"))
STYLES = {
    "sigmoid": {"color": "#1b6ca8", "marker": "o"},
    "natural": {"color": "#c8553d", "marker": "s"},
    "torch.compile of eager sigmoid": {"color": "#7a7a7a", "marker": "^", "linestyle": "--"},
    "Liger softmax": {"color": "#7d9d4b", "marker": "v", "linestyle": "--"},
}
TICKS = (0.25, 0.5, 1, 2, 4)


def main() -> None:
    """Read the CSV, write a picture beside it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=__doc__)
    parser.add_argument(
        "table",
        type=Path,
        nargs="?",
        default=Path("results/gpu/gpu.csv"),
        help="what `python -m benchmarks --device cuda` wrote (%(default)s); the picture goes beside it",
    )
    table = parser.parse_args().table
    if not table.is_file():
        parser.error(f"there is no file {table}")
    with table.open() as file:
        rows = list(csv.DictReader(file))
    missing = [panel for panel in PANELS if not any(r.get("operation") == panel and r.get("limit") for r in rows)]
    if missing:
        parser.error(f"{table} has nothing of: {'; '.join(missing)}")
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), sharex=True, sharey=True)
    for axis, panel in zip(axes.flat, PANELS, strict=True):
        for contender, style in STYLES.items():
            own = [r for r in rows if r["operation"] == panel and r["contender"] == contender]
            classes, ratios = [int(r["classes"]) for r in own], [float(r["ratio"]) for r in own]
            axis.plot(classes, ratios, label=contender, markersize=4, linewidth=1.2, **style)
        limit = next(float(r["limit"]) for r in rows if r["operation"] == panel and r["limit"])
        axis.axhline(1, color="black", linewidth=0.8)
        axis.axhline(limit, color="black", linewidth=0.8, linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_ylim(0.2, 6.5)
        axis.set_yticks(TICKS, [str(t) for t in TICKS])
        axis.set_title(panel, fontsize=10)
        axis.grid(alpha=0.25)
    for axis in axes[1]:
        axis.set_xlabel("classes")
    for axis in axes[:, 0]:
        axis.set_ylabel("time / torch.log_softmax's")
    axes[0, 0].legend(fontsize=8)
    figure.suptitle("64 million elements; dotted: the limit we had set")
    figure.tight_layout()
    target = table.with_suffix(".png")
    figure.savefig(target, dpi=110)
    print(f"written: {target}")


if __name__ == "__main__":
    main()
