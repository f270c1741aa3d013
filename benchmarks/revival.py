"""What keeps nodes inside the natural range: the entropy in the bound, or what is drawn.

Run it as `python -m benchmarks.revival --digits FOLDER --output RESULTS`; FOLDER holds MNIST's image files. It trains a
dense VAE by the score function, N = 10, K = 8, with the paper's activation. The gradient that a score gets has two
parts. Outside the range each may pass where it leads back inside, as with `revive`, or be cut, as with `clip`. All runs
have one floor, so a score means the same in all of them; only the gradient differs.

Outside, a draw leads back in two cases. It went the rare way and cost less than the baseline, so the rare way is made
likelier. Or it went the likely way and cost more, so that is made less likely. The two may pass apart, too.

There is a file per seed, written when its runs are done. Runs that it has are not trained again.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from catnat_lab.files import whole_file, write
from catnat_lab.heads import Head, head
from catnat_lab.provenance import provenance
from catnat_lab.vae.data import Images, images_of
from catnat_lab.vae.digits import load_digits
from catnat_lab.vae.objective import BASELINE, cross_entropy, gumbels, kl_from_uniform, mean_of_others, one_hot
from catnat_lab.vae.presets import BASELINES
from catnat_lab.vae.stack import Run
from catnat_lab.vae.train import Plan, Trainer

CLASSES, VARIABLES = 8, 10
WAYS = {  # what passes outside: draws below the baseline, draws above, the entropy; and whether a gate sees their sum
    "clip": (False, False, False, False),
    "rare": (True, False, False, False),
    "likely": (False, True, False, False),
    "draws": (True, True, False, False),
    "entropy": (False, False, True, False),
    "apart": (True, True, True, False),  # draws and entropy, each if it leads back inside
    "revive": (True, True, True, True),  # their sum, if that leads back inside: as in the lab's head
}


@dataclass(frozen=True)
class Kind:
    """How a run's gradient is made."""

    way: str
    floor: float
    baseline: str

    def head(self, saturation: str) -> Head:
        """The paper's activation with this floor."""
        return head(f"catnat-{saturation}{self.floor:g}", CLASSES)


class Parted(Trainer):
    """A run per kind. The stack's own heads, all of them clips, are there to be judged: they have the same values."""

    def __init__(
        self, kinds: Sequence[Kind], rate: float, seed: int, plan: Plan, images: Images, device: torch.device
    ) -> None:
        self.kinds = sorted(kinds, key=lambda kind: kind.head("clip").name)
        runs = [Run("bernoulli", kind.head("clip").name, rate, seed) for kind in self.kinds]
        super().__init__(runs, plan, images, ("bernoulli",), device)
        self.constant = torch.tensor([kind.baseline == "constant" for kind in self.kinds]).unsqueeze(1).to(device)
        ways = torch.tensor([WAYS[kind.way] for kind in self.kinds]).to(device)
        self.below_passes, self.above_passes, self.entropy_passes, self.summed = ways.unsqueeze(2).unbind(1)

    def _step(self) -> None:
        x, views = self.batch(), self.stack.views()
        scores = self.encode(x, views, True)[..., : CLASSES - 1]
        losses, bound = self.losses(x, views, scores)
        self.loss += bound.detach().mean(1)
        self.stack.descend(losses.mean(1).sum())

    def losses(self, x: Tensor, views: list[Tensor], scores: Tensor) -> tuple[Tensor, Tensor]:
        """What to descend and minus the bound, both [R, B]: as the lab's score function, in parts."""
        cut = self.stack.log_probs(scores)  # and the same numbers twice, with the gradient that revives
        revived, again = self.revived(scores), self.revived(scores)
        index = (cut.detach() + gumbels(cut.detach())).argmax(-1)
        found = cross_entropy(self.stack.decode(one_hot(index, CLASSES), views, training=True), x)
        spent = found.detach()
        baseline = torch.where(self.constant, BASELINE, mean_of_others(spent))
        passes = torch.where(spent < baseline, self.below_passes, self.above_passes)
        chosen = torch.where(passes, log_prob(revived, index), log_prob(cut, index))
        kl = torch.where(self.entropy_passes, kl_from_uniform(again), kl_from_uniform(cut))
        bound = found + torch.where(self.summed, kl_from_uniform(revived), kl)
        return bound + (spent - baseline) * chosen, bound

    def revived(self, scores: Tensor) -> Tensor:
        """Log q [R, B, N, K], whose gradient passes outside if it leads back inside."""
        parts = [self.kinds[rows.start].head("revive").log_probs(scores[rows]) for rows, _ in self.stack.heads]
        return torch.cat(parts)


def log_prob(log_q: Tensor, index: Tensor) -> Tensor:
    """Of the classes drawn, summed over the variables: [R, B, N, K] and [R, B, N] to [R, B]."""
    return log_q.gather(-1, index.unsqueeze(-1)).sum((-1, -2))


def rows_of(trainer: Parted, seed: int, steps: int, every: int) -> Iterator[dict[str, Any]]:
    """Train; every so many steps a row per run, measured on validation images."""
    for step in range(steps):
        trainer.step(step)
        if (step + 1) % every:
            continue
        found = trainer.judged(trainer.images.validation)
        with torch.random.fork_rng():  # it draws pixels, and what is looked at must not change the training
            outside = trainer.outside()
        for i, kind in enumerate(trainer.kinds):
            row = {"way": kind.way, "floor": kind.floor, "baseline": kind.baseline, "seed": seed, "step": step + 1}
            measured = {name: f"{float(found[name][i]):.5g}" for name in ("elbo_paper", "bce", "kl")}
            yield {**row, **measured, "outside": f"{outside[i]:.4f}"}
            print(*row.values(), *measured.values(), f"{outside[i]:.4f}", file=sys.stderr, flush=True)


def main() -> None:
    """Train seed by seed, and write a file for each that is done, and where they come from."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.revival", description=__doc__.split("\n\n")[0])
    parser.add_argument("--digits", type=Path, help="folder with MNIST's image files")
    parser.add_argument("--network", default="narrow", choices=("narrow", "dense"))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--floors", nargs="+", type=float, default=[1e-4])
    parser.add_argument("--baselines", nargs="+", default=list(BASELINES), choices=BASELINES)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=1000, help="steps between two rows of a run")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    if options.every < 1 or options.steps < 1 or options.steps % options.every:
        parser.error(f"--every must divide --steps, {options.steps}, both above 0; got {options.every}")
    device = torch.device(options.device)
    kinds = [Kind(*each) for each in product(options.ways, options.floors, options.baselines)]
    plan = Plan(options.network, VARIABLES, CLASSES, "adam", "score-function", options.steps, 128, 0)
    images = images_of(load_digits(options.digits), ("bernoulli",), split_test=True)
    settings = {name: getattr(options, name) for name in ("network", "rate", "steps", "every")}
    kept = options.output / "settings.json"
    if kept.exists() and (before := json.loads(kept.read_text())) != settings:
        parser.error(f"{options.output} has runs with {before}; got {settings}")
    write(kept, json.dumps(settings) + "\n")  # whole at once, as all here: seeds may be trained side by side
    known = provenance(f"python -m benchmarks.revival {' '.join(sys.argv[1:])}", device)
    for seed in options.seeds:
        file = options.output / f"seed{seed}.csv"
        held = rows_in(file)
        done = {(row["way"], float(row["floor"]), row["baseline"]) for row in held}
        left = [kind for kind in kinds if (kind.way, kind.floor, kind.baseline) not in done]
        if not left:
            print(f"{file} has all of it", file=sys.stderr)
            continue
        torch.manual_seed(seed)
        trainer = Parted(left, options.rate, seed, plan, images, device)
        found = [*held, *rows_of(trainer, seed, options.steps, options.every)]
        with whole_file(file) as partial, partial.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, list(found[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)
        write(options.output / "provenance.json", json.dumps(known, indent=2) + "\n")


def rows_in(file: Path) -> list[dict[str, Any]]:
    """What it holds; nothing if it is not there."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as found:
        return list(csv.DictReader(found))


if __name__ == "__main__":
    main()
