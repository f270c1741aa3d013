"""Why sparsemax's VAE collapses under plain SGD: its largest gradients, and how many variables are one-hot.

Run it as `python -m benchmarks.sparsemax --digits FOLDER --output FILE`; FOLDER holds MNIST's image files. Seeds train
by sparsemax, and again with a little added to its probabilities, all in one stack: grey digits, N = 10, K = 8.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from entmax import sparsemax
from torch import Tensor

from catnat_lab.heads import Head
from catnat_lab.provenance import provenance
from catnat_lab.vae.data import as_pixels, images_of
from catnat_lab.vae.digits import load_digits
from catnat_lab.vae.stack import Run
from catnat_lab.vae.train import Plan, Trainer

PLAN = Plan(variables=10, classes=8, optimizer="sgd")
SEEDS = (0, 1001, 7, 8)  # the search's, and two more
ADDED = (0.0, 0.001)
CERTAIN = 0.999  # a variable with such a probability counts as one-hot
IMAGES = 100  # to look at


@dataclass(frozen=True)
class Watched(Head):
    """Sparsemax with something added to every probability; it remembers each run's largest gradient of a score."""

    added: float = 0.0
    largest: list[Tensor] = field(default_factory=list)

    def log_probs(self, scores: Tensor) -> Tensor:
        """Log-probabilities, and -inf where a class has probability 0."""
        if scores.requires_grad:
            scores.register_hook(lambda gradient: self.largest.append(gradient.abs().amax((1, 2, 3))))
        probs = sparsemax(scores, dim=-1) + self.added
        inside = probs > 0
        return torch.where(inside, torch.where(inside, probs, 1.0).log(), -torch.inf)


def train(digits: Path | None, rate: float, steps: int, every: int) -> list[dict[str, object]]:
    """A row per seed and amount added, every so many steps."""
    runs = [Run("grey", "sparsemax", rate, seed) for _ in ADDED for seed in SEEDS]
    trainer = Trainer(runs, PLAN, images_of(load_digits(digits), ("grey",), False), ("grey",), torch.device("cpu"))
    count = len(SEEDS)
    heads = [Watched("sparsemax", PLAN.classes, added) for added in ADDED]
    trainer.stack.heads = [(slice(i * count, (i + 1) * count), head) for i, head in enumerate(heads)]
    rows: list[dict[str, object]] = []
    for step in range(steps):
        trainer.step(step)
        if (step + 1) % every:
            continue
        with torch.no_grad():
            x = as_pixels(trainer.images.validation[trainer.which, :IMAGES], trainer.drawn, trainer.any_drawn)
            probs = trainer.stack.log_probs(trainer.stack.scores(x, trainer.stack.views(), training=False)).exp()
        certain = (probs > CERTAIN).any(-1).float().mean((1, 2))
        largest = torch.cat([torch.stack(head.largest).amax(0) for head in heads])
        for i, run in enumerate(runs):
            found = {"loss": trainer.loss[i] / every, "largest_gradient": largest[i], "one_hot": certain[i]}
            measured = {name: f"{float(value):.4g}" for name, value in found.items()}
            rows.append({"added": ADDED[i // count], "seed": run.seed, "step": step + 1, **measured})
        print(rows[-2 * count :: count], file=sys.stderr, flush=True)
        trainer.loss.zero_()
        for head in heads:
            head.largest.clear()
    return rows


def main() -> None:
    """Train, and write the rows and where they come from."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--digits", type=Path)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--every", type=int, default=250)
    parser.add_argument("--output", type=Path, required=True, help="a CSV file")
    options = parser.parse_args()
    torch.manual_seed(1)
    rows = train(options.digits, options.rate, options.steps, options.every)
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    known = provenance(f"python -m benchmarks.sparsemax {' '.join(sys.argv[1:])}", torch.device("cpu"))
    options.output.with_suffix(".json").write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
