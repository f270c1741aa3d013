"""Codes that a trained VAE's encoder gets wrong, and whether it is certain of them.

`python -m benchmarks.codes runs/vae-mlp --output results/vae/mlp` looks at the models that `catnat vae` keeps, one per
cell and head, on test images. An image's code has the most probable class of every variable. Each variable is changed
to every other class while the rest of the code stays. Classes that lower the image's cross-entropy by more than a nat
are better; a variable that has one is wrong. It is a certain mistake if the encoder hardly ever draws a better one.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from catnat_lab.errors import UserError
from catnat_lab.provenance import provenance
from catnat_lab.vae.data import as_pixels, images_of
from catnat_lab.vae.digits import Digits, load_digits
from catnat_lab.vae.networks import NETWORKS
from catnat_lab.vae.objective import cross_entropy, one_hot
from catnat_lab.vae.presets import TABLES, sizes
from catnat_lab.vae.stack import Run, Stack

SAVES = 1.0  # nats that a change must save: pixels are drawn, and a smaller gain may be one of this drawing alone
RARE = 1e-3  # what better classes must have together, or they are hardly drawn: 500 epochs see an image 500 times
BLOCK = 50  # images at once
FIELDS = ("data", "cell", "head", "images", "saved", "wrong", "certain")


def stack_in(path: Path) -> tuple[Stack, str, str]:
    """A kept model, the table that it is of and its cell."""
    with safe_open(path, "pt") as file:
        _, table, data, cell, head = file.metadata()["study"].split(" ")
        held = {name: file.get_tensor(name).unsqueeze(0) for name in set(file.keys()) - {"images"}}
    stack = Stack([Run(data, head, 0.0, 0)], NETWORKS[TABLES[table][0]](*sizes(cell)), "sgd", torch.device("cpu"))
    stack.put(held)
    return stack, table, cell


@torch.no_grad()
def savings(stack: Stack, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of images [B, 784]: probabilities of all classes, and nats that the change to each one saves; both [B, N, K]."""
    views = stack.views()
    probs = stack.log_probs(stack.scores(x.unsqueeze(0), views, training=False))[0].exp()
    code = probs.argmax(-1)
    classes, variables = stack.model.classes, stack.model.variables
    changed = code[:, None, None].repeat(1, variables, classes, 1)
    for variable in range(variables):
        changed[:, variable, :, variable] = torch.arange(classes)
    logits = stack.decode(one_hot(changed.flatten(0, 2).unsqueeze(0), classes), views, training=False)
    spent = cross_entropy(logits.view(*changed.shape[:3], 784), x[:, None, None])
    return probs, spent.gather(-1, code.unsqueeze(-1)) - spent


def measured(path: Path, digits: Digits, count: int) -> tuple[str, str, str, int, float, float, float]:
    """Of one kept model on the first test images of its kind, what FIELDS say.

    - saved: nats per image by the best single change of its code;
    - wrong: the share of variables that have a better class;
    - certain: the share of variables whose better classes have together a probability below RARE.
    """
    stack, table, cell = stack_in(path)
    (run,) = stack.runs
    images = images_of(digits, [run.data], split_test=table == "mlp")
    torch.manual_seed(0)
    pixels = as_pixels(images.test[:, :count], images.drawn, bool(images.drawn.any()))[0]
    probs, saved = (torch.cat(parts) for parts in zip(*(savings(stack, x) for x in pixels.split(BLOCK)), strict=True))
    better = saved > SAVES
    wrong = better.any(-1)
    certain = wrong & ((probs * better).sum(-1) < RARE)
    nats, share, sure = (float(some.float().mean()) for some in (saved.amax((-1, -2)), wrong, certain))
    return run.data, cell, run.head, len(pixels), nats, share, sure


def main() -> None:
    """Measure, print and, with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codes", description=__doc__.split("\n\n")[0])
    parser.add_argument("study", type=Path, help="folder of a study of `catnat vae` that has its models")
    parser.add_argument("--digits", type=Path, help="folder with MNIST's image files")
    parser.add_argument("--images", type=int, default=1000, help="test images to look at")
    parser.add_argument(
        "--output", type=Path, help="folder for codes.csv and codes.json; nothing is written without it"
    )
    arguments = parser.parse_args()
    models = sorted((arguments.study / "models").glob("*.safetensors"))
    if not models:
        parser.error(f"no model in {arguments.study / 'models'}; `catnat vae` keeps them there, results/ does not")
    if arguments.images < 1:
        parser.error(f"--images must be at least 1; got {arguments.images}")
    try:
        digits = load_digits(arguments.digits)
    except UserError as problem:
        parser.error(str(problem))
    found = (measured(path, digits, arguments.images) for path in models)
    rows = [[f"{value:.5g}" if isinstance(value, float) else value for value in line] for line in found]
    for row in (FIELDS, *rows):
        print(*row, sep="\t")
    print("saved: nats per image by the best single change; wrong, certain: shares of all variables")
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        with (arguments.output / "codes.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([FIELDS, *rows])
        facts = provenance(" ".join(["python -m benchmarks.codes", *sys.argv[1:]]), torch.device("cpu"))
        (arguments.output / "codes.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
