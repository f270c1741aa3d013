"""Codes that a trained VAE's encoder gets wrong, and whether it could still learn better.

`python -m benchmarks.codes runs/vae-mlp --output results/vae/...` looks at the models that `catnat vae` keeps, one per
cell and head. An image's code has the most probable class of every variable. Each variable is changed to every other
class while the rest of the code stays. Where a change lowers the cross-entropy of the image, the variable is wrong.
To mend it one node must turn: the one where the paths to the two classes part. If its score is outside the natural
range, the clip passes no gradient to it.
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

import catnat
from catnat_lab.heads import natural_reach, parameterization_of
from catnat_lab.provenance import provenance
from catnat_lab.vae.data import as_pixels, images_of
from catnat_lab.vae.digits import load_digits
from catnat_lab.vae.networks import NETWORKS
from catnat_lab.vae.objective import cross_entropy, one_hot
from catnat_lab.vae.presets import TABLES, sizes
from catnat_lab.vae.stack import Run, Stack

SURE = 1.0  # nats that a change must save for its variable to count as wrong: a smaller gain may be the draw's
BLOCK = 50  # images at once


def stack_in(path: Path) -> tuple[Stack, str, str, str]:
    """A kept model with its kind of data, its cell and its head."""
    with safe_open(path, "pt") as file:
        _, table, data, cell, head = file.metadata()["study"].split(" ")
        held = {name: file.get_tensor(name).unsqueeze(0) for name in set(file.keys()) if name != "images"}
    stack = Stack([Run(data, head, 0.0, 0)], NETWORKS[TABLES[table][0]](*sizes(cell)), "sgd", torch.device("cpu"))
    stack.put(held)
    return stack, data, cell, head


@torch.no_grad()
def savings(stack: Stack, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of images [B, 784]: scores [B, N, K], codes [B, N], and nats that every single change saves [B, N, K]."""
    views = stack.views()
    scores = stack.scores(x.unsqueeze(0), views, training=False)
    code = stack.log_probs(scores).argmax(-1)[0]
    classes, variables = stack.model.classes, stack.model.variables
    changed = code[:, None, None].repeat(1, variables, classes, 1)
    for variable in range(variables):
        changed[:, variable, :, variable] = torch.arange(classes)
    logits = stack.decode(one_hot(changed.flatten(0, 2).unsqueeze(0), classes), views, training=False)
    spent = cross_entropy(logits.view(*changed.shape[:3], 784), x[:, None, None])
    return scores[0], code, spent.gather(-1, code.unsqueeze(-1)) - spent


def parting_nodes(tree: catnat.Tree) -> Tensor:
    """The score of the node where the paths to two classes part, [K, K]; -1 for a class and itself."""
    paths = [tree.path(k) for k in range(tree.num_classes)]

    def parting(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> int:
        return next((node - 1 for (node, way), (_, other) in zip(a, b, strict=False) if way != other), -1)

    return torch.tensor([[parting(a, b) for b in paths] for a in paths])


def measured(path: Path, images: Tensor) -> dict[str, str | int | float]:
    """What one kept model gets wrong on uint8 images [n, 784]."""
    stack, data, cell, head = stack_in(path)
    torch.manual_seed(0)
    pixels = as_pixels(images.unsqueeze(0), torch.tensor([data == "bernoulli"]), data == "bernoulli")[0]
    parts = [savings(stack, x) for x in pixels.split(BLOCK)]
    scores, code, saved = (torch.cat(each) for each in zip(*parts, strict=True))
    most, better = saved.max(-1)
    wrong = most > SURE
    found: dict[str, str | int | float] = {
        "cell": cell,
        "head": head,
        "images": len(images),
        "saved": float(most.max(-1).values.mean()),  # nats per image, by its best single change
        "wrong": float(wrong.float().mean()),
    }
    pi = parameterization_of(head, stack.model.classes)
    reach = None if pi is None else natural_reach(pi.activation)
    if pi is not None and reach is not None:
        node = parting_nodes(pi.tree)[code, better].clamp(min=0)
        far = (scores[..., : len(pi.centers)] - torch.tensor(pi.centers, dtype=scores.dtype)).abs()
        outside = far.gather(-1, node.unsqueeze(-1)).squeeze(-1) >= reach
        found["outside"] = float(outside[wrong].float().mean()) if wrong.any() else ""
    return found


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
        parser.error(f"no model in {arguments.study / 'models'}")
    images = images_of(load_digits(arguments.digits), ["grey"], split_test=True).test[0, : arguments.images]
    lines = [measured(path, images) for path in models]
    for line in lines:
        print(*(f"{value:.3f}" if isinstance(value, float) else value for value in line.values()), sep="\t")
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        with (arguments.output / "codes.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["cell", "head", "images", "saved", "wrong", "outside"])
            writer.writeheader()
            writer.writerows({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in line.items()} for line in lines)
        facts = provenance(" ".join(["python -m benchmarks.codes", *sys.argv[1:]]), torch.device("cpu"))
        (arguments.output / "codes.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
