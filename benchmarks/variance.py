"""How much the baselines lower the variance of the score-function gradient: `python -m benchmarks.variance`.

Graph structure learning at the paper's sizes, one batch, many draws of its 32 graphs: the variance of the estimated
gradient, summed over all scores, at the start of training and at the true graph.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from catnat_lab.gsl.data import Dataset, make_dataset
from catnat_lab.gsl.energy import BASELINES, Baseline, Energy, energy, predict, weighted_log_prob
from catnat_lab.heads import head
from catnat_lab.provenance import provenance

BATCH, GRAPHS = 64, 32


def variances(dataset: Dataset, theta: Tensor, draws: int, name: str = "catnat-paper") -> dict[str, float]:
    """By baseline: the variance of the gradient in the scores, summed over the scores."""
    torch.manual_seed(0)
    nodes = theta.shape[0]
    one = head(name, 2)
    probs = theta.flatten().clamp(1e-3, 1 - 1e-3)
    start = one.scores_from_probs(torch.stack((1 - probs, probs), -1))
    scores = start.expand(draws, *start.shape).clone().requires_grad_()
    log_probs = one.log_probs(scores)
    graphs = (torch.rand(draws, GRAPHS, nodes**2) < log_probs.detach()[..., 1].exp().unsqueeze(1)).float()
    x, y = (part[:BATCH].expand(draws, *part[:BATCH].shape) for part in dataset.train)
    weight = dataset.weight.expand(draws, -1, -1)
    found = energy(predict(graphs.unflatten(-1, (nodes, nodes)), x, weight), y.flatten(-2))
    result = {}
    for kind in BASELINES:
        baseline = Baseline(kind)
        before = Energy(found.misses.mean(0, keepdim=True), found.spreads.mean(0, keepdim=True))
        baseline.weights(before)  # the steps before
        if baseline.average is not None:
            baseline.average = baseline.average.expand(draws, 2)
        surrogate = weighted_log_prob(baseline.weights(found), graphs, log_probs).sum()
        (gradient,) = torch.autograd.grad(surrogate, scores, retain_graph=True)
        result[kind] = float(gradient.flatten(1).var(0).sum())
    return result


def main() -> None:
    """Measure, print and, with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.variance", description=__doc__)
    parser.add_argument("--output", type=Path, help="folder for variance.json; nothing is written without it")
    parser.add_argument("--draws", type=int, default=64, help="gradients that are estimated")
    arguments = parser.parse_args()
    dataset = make_dataset(0.5, communities=4, pairs=1000)
    torch.manual_seed(1)
    places = {"at the start": 0.1 * torch.rand_like(dataset.theta), "at the true graph": dataset.theta}
    found = {place: variances(dataset, theta, arguments.draws) for place, theta in places.items()}
    for place, by_kind in found.items():
        shares = ", ".join(f"{kind} {value / by_kind['none']:.2g}" for kind, value in by_kind.items())
        print(f"variance of the gradient {place}, as a share of that without a baseline: {shares}")
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        command = " ".join(["python -m benchmarks.variance", *sys.argv[1:]])
        text = json.dumps(found | provenance(command), indent=2)
        (arguments.output / "variance.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
