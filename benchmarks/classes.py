"""Many unrelated classes: accuracy over K, softmax's head beside catnat's on data that has no hierarchy.

Run it as `python -m benchmarks.classes [--output FOLDER]`: 15 minutes on one core. Classes are Gaussian clusters at
random places, every batch is new, and the network has one hidden layer. `catnat, clustered` has the tree of the
clusters' true places.
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
    return ct.CatnatLinear(hidden, classes, catnat.Parameterization(classes, activation, tree))


def train(classes: int, hidden: int, rate: float, name: str, seed: int) -> tuple[float, float]:
    """Accuracy in per cent and nats, on new samples; all heads of a seed see the same data."""
    data = torch.Generator().manual_seed(seed)
    places = torch.randn(classes, DIMENSIONS, generator=data)

    def draw(rows: int) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (rows,), generator=data)
        return places[target] + torch.randn(rows, DIMENSIONS, generator=data), target

    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(DIMENSIONS, hidden), nn.ReLU())
    head = head_of(name, hidden, places)
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
    output = parser.parse_args().output
    torch.set_num_threads(1)
    settings = [*product(CLASSES, HIDDEN, [RATE]), *product([TRIED_ON], HIDDEN, OTHER_RATES)]
    rows: list[tuple[object, ...]] = []
    for setting, name, seed in product(settings, HEADS, range(SEEDS)):
        accuracy, nats = train(*setting, name, seed)
        rows.append((*setting, name, seed, f"{accuracy:.2f}", f"{nats:.4f}"))
        print(*rows[-1], sep="\t", flush=True)
        if output:
            output.mkdir(parents=True, exist_ok=True)
            with (output / "classes.csv").open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows((COLUMNS, *rows))
            facts = provenance(" ".join(["python -m benchmarks.classes", *sys.argv[1:]]), torch.device("cpu"))
            (output / "classes.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
