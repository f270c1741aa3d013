"""Many unrelated classes: accuracy over K, softmax's head beside catnat's on data that has no hierarchy.

Run it as `python -m benchmarks.classes [--mixed] [--output FOLDER]`: 15 minutes on one core, with --mixed 3. Classes
are Gaussian clusters at random places, every batch is new, and the network has one hidden layer. With --mixed there are
few classes of two clusters each, which overlap. `catnat, clustered` has the tree of the classes' true places.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

import catnat
import catnat.torch as ct
from catnat_lab.provenance import provenance

DIMENSIONS, BATCH, STEPS, SEEDS, JUDGED = 32, 128, 2000, 3, 10_000
CLASSES, HIDDEN, RATE = (10, 30, 100, 300), (64, 256), 0.001
OTHER_RATES, TRIED_ON = (0.003, 0.01), 100
MIXED = [*product((10, 20), HIDDEN[:1], (RATE, 0.002, 0.004))]
HEADS = ("softmax", "catnat-sigmoid", "catnat", "catnat, clustered")
COLUMNS = ("classes", "hidden", "rate", "head", "seed", "accuracy", "nats")


class Softmax(nn.Linear):
    """Softmax, called as `CatnatLinear` is."""

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        """The mean nats."""
        return nn.functional.cross_entropy(self(x), target)

    def mode(self, x: Tensor) -> Tensor:
        """The likeliest classes."""
        return self(x).argmax(-1)


def head_of(name: str, hidden: int, places: Tensor) -> Softmax | ct.CatnatLinear:
    """By name."""
    classes = len(places)
    if name == "softmax":
        return Softmax(hidden, classes)
    tree = catnat.Tree.cluster(places.numpy()) if "clustered" in name else None
    activation = "sigmoid" if "sigmoid" in name else "natural"
    return ct.CatnatLinear(hidden, catnat.Parameterization(classes, activation, tree))


def train(classes: int, hidden: int, rate: float, name: str, seed: int, *, mixed: bool) -> tuple[float, float]:
    """Accuracy in per cent and nats, on new samples; all heads of a seed see the same data."""
    data = torch.Generator().manual_seed(seed)
    clusters, noise = (2, 1.5) if mixed else (1, 1.0)
    places = torch.randn(classes, clusters, DIMENSIONS, generator=data)

    def draw(rows: int) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (rows,), generator=data)
        cluster = torch.randint(clusters, (rows,), generator=data) if mixed else 0
        return places[target, cluster] + noise * torch.randn(rows, DIMENSIONS, generator=data), target

    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(DIMENSIONS, hidden), nn.ReLU())
    head = head_of(name, hidden, places.mean(1))
    optimiser = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=rate)
    for _ in range(STEPS):
        x, target = draw(BATCH)
        optimiser.zero_grad()
        head.loss(body(x), target).backward()
        optimiser.step()
    x, target = draw(JUDGED)
    with torch.no_grad():
        features = body(x)
        return 100 * float((head.mode(features) == target).float().mean()), float(head.loss(features, target))


def main() -> None:
    """Train and print; with --output, record as they come."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.classes", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--mixed", action="store_true")
    options = parser.parse_args()
    output, written = options.output, "mixed" if options.mixed else "classes"
    torch.set_num_threads(1)
    settings = [*product(CLASSES, HIDDEN, [RATE]), *product([TRIED_ON], HIDDEN, OTHER_RATES)]
    settings = MIXED if options.mixed else settings
    rows: list[tuple[object, ...]] = []
    for setting, name, seed in product(settings, HEADS, range(SEEDS)):
        accuracy, nats = train(*setting, name, seed, mixed=options.mixed)
        rows.append((*setting, name, seed, f"{accuracy:.2f}", f"{nats:.4f}"))
        print(*rows[-1], sep="\t", flush=True)
        if output:
            output.mkdir(parents=True, exist_ok=True)
            with (output / f"{written}.csv").open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows((COLUMNS, *rows))
            facts = provenance(" ".join(["python -m benchmarks.classes", *sys.argv[1:]]), torch.device("cpu"))
            (output / f"{written}.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
