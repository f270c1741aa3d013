"""The energy score of sampled predictions, and the score-function gradient of its expectation.

    ES = E ||f(A) - y|| - 1/2 E ||f(A) - f(A')||,    A, A' independent from P_theta

Everything has a leading axis R of independent runs that train side by side. Within a run M graphs are drawn a step and
serve the whole batch, so the gradient needs a weight a graph, not a weight a graph and datum. (The paper does not say
whether its graphs are shared so.)
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BASELINES = ("none", "moving-average", "leave-one-out")
DECAY = 0.99  # of the moving average


def predict(graphs: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """y = A x W for graphs [R, M, N, N], inputs [R, b, N, F] and weights [R, F, O]: [R, b, M, N * O]."""
    runs, count, nodes, _ = graphs.shape
    batch, outputs = x.shape[1], weight.shape[-1]
    xw = (x.flatten(1, 2) @ weight).view(runs, batch, nodes, outputs)
    xw = xw.transpose(1, 2).reshape(runs, nodes, batch * outputs)
    y = graphs.reshape(runs, count * nodes, nodes) @ xw
    return y.view(runs, count, nodes, batch, outputs).permute(0, 3, 1, 2, 4).reshape(runs, batch, count, -1)


@dataclass(frozen=True)
class Energy:
    """What the M graphs of a step cost, averaged over the batch."""

    misses: Tensor  # [R, M] distance to the target
    spreads: Tensor  # [R, M, M] distance to each other, 0 on the diagonal

    def score(self) -> Tensor:
        """The energy score [R]: an unbiased estimate."""
        count = self.misses.shape[-1]
        return self.misses.mean(-1) - self.spreads.sum((-1, -2)) / (2 * count * (count - 1))


def energy(predictions: Tensor, target: Tensor) -> Energy:
    """Distances of predictions [R, b, M, D] to targets [R, b, D] and to each other."""
    errors = predictions - target.unsqueeze(2)
    squares = errors.square().sum(-1)  # [R, b, M]
    apart = squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * _Gram.apply(errors)
    off_diagonal = 1 - torch.eye(errors.shape[2], dtype=errors.dtype, device=errors.device)
    # two equal graphs are at distance 0, where a root has no slope
    misses, spreads = (each.clamp(min=1e-8).sqrt().mean(1) for each in (squares, apart))
    return Energy(misses, spreads * off_diagonal)


class _Gram(torch.autograd.Function):
    """e e^T of every [M, D] block: no product takes a transposed view, which is slow on some CPUs."""

    @staticmethod
    def forward(ctx: Any, errors: Tensor) -> Tensor:
        ctx.save_for_backward(errors)
        return errors @ errors.mT.contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (errors,) = ctx.saved_tensors
        return (gradient + gradient.mT) @ errors


@dataclass
class Baseline:
    """What is taken off a graph's cost before it weighs that graph's score function; it must not depend on the graph.

    `leave-one-out` takes the mean cost of the others: for the first term over the other graphs, for the second over the
    pairs of others. `moving-average` takes the mean of former steps.
    """

    kind: str
    average: Tensor | None = None  # [R, 2]

    def weights(self, energy: Energy) -> Tensor:
        """The weight of every graph's score function [R, M]: sum_m w_m grad log P(A_m) estimates grad_theta ES.

        A graph stands in both places of the second term, which takes its one half away.
        """
        misses, spreads = energy.misses.detach(), energy.spreads.detach()
        count, rows, total = misses.shape[-1], spreads.sum(-1), spreads.sum((-1, -2)).unsqueeze(-1)
        if self.kind == "leave-one-out":
            of_miss = (misses.sum(-1, keepdim=True) - misses) / (count - 1)
            of_spread = (total - 2 * rows) / ((count - 1) * (count - 2))
        else:
            now = torch.cat((misses.mean(-1, keepdim=True), total / (count * (count - 1))), -1)
            before = torch.zeros_like(now) if self.average is None else self.average
            if self.kind == "moving-average":
                self.average = now if self.average is None else DECAY * before + (1 - DECAY) * now
            of_miss, of_spread = before.split(1, -1)
        return ((misses - of_miss) - (rows / (count - 1) - of_spread)) / count


def weighted_log_prob(weight: Tensor, graphs: Tensor, log_probs: Tensor) -> Tensor:
    """sum_m w_m log P(A_m) of every run [R], for graphs [R, M, E] of independent edges.

    ``log_probs`` [R, E, 2] holds log(1 - theta) and log(theta). The sum over graphs comes first: it leaves two numbers
    an edge. An edge of probability 0 is never drawn, and 0 times its infinite logarithm counts as 0.
    """
    on = (weight.unsqueeze(1) @ graphs).squeeze(1)  # [R, E]
    counts = torch.stack((weight.sum(-1, keepdim=True) - on, on), -1)
    drawn = log_probs > -torch.inf
    return torch.where(drawn, counts * torch.where(drawn, log_probs, 0.0), 0.0).sum((-1, -2))
