"""What a step descends: minus the evidence lower bound, through relaxed samples or by the score function."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from catnat_lab.vae.stack import Stack

COOLING, COOLED_EVERY, COLDEST = 3e-5, 1000, 0.5  # temperature max(COLDEST, exp(-COOLING step)), every so many steps
BASELINE = 125.0  # of the score function: about the cross-entropy that training begins to improve on
LEAST = -100.0  # a log-probability below it counts as this in p log p, which is 0 there


def temperature(step: Tensor) -> Tensor:
    refreshed = torch.div(step, COOLED_EVERY, rounding_mode="floor") * COOLED_EVERY
    return torch.exp(-COOLING * refreshed).clamp(min=COLDEST)


def entropy(log_q: Tensor) -> Tensor:
    """- sum p log p over the variables: [..., N, K] to [...]."""
    return -(log_q.exp() * log_q.clamp(min=LEAST)).sum((-1, -2))


def kl_from_uniform(log_q: Tensor) -> Tensor:
    """KL from the posterior to the uniform prior: [..., N, K] to [...]."""
    return log_q.shape[-2] * math.log(log_q.shape[-1]) - entropy(log_q)


def cross_entropy(logits: Tensor, x: Tensor) -> Tensor:
    """- log p of pixels in [0, 1] under Bernoulli logits, summed: [..., 784] to [...]."""
    return (torch.nn.functional.softplus(logits) - x * logits).sum(-1)


def one_hot(index: Tensor, classes: int) -> Tensor:
    """float32 [..., K] of class ids."""
    zeros = torch.zeros((*index.shape, classes), device=index.device)
    return zeros.scatter_(-1, index.unsqueeze(-1), 1.0)


def gumbels(like: Tensor) -> Tensor:
    return -torch.empty_like(like).exponential_().log()


def straight_through(stack: Stack, x: Tensor) -> tuple[Tensor, Tensor]:
    """What to descend, and minus the bound, [R, B] of images [R, B, 784]; here they are the same.

    Hard samples forward, the gradient of relaxed ones backward; the KL is exact.
    """
    views = stack.views()
    log_q = stack.log_probs(stack.scores(x, views, training=True))
    noisy = log_q + gumbels(log_q.detach())
    soft = torch.softmax(noisy / temperature(stack.step), -1)
    hard = one_hot(noisy.detach().argmax(-1), log_q.shape[-1])
    logits = stack.decode(hard + (soft - soft.detach()), views, training=True)
    bound = cross_entropy(logits, x) + kl_from_uniform(log_q)
    return bound, bound


def score_function(
    stack: Stack, x: Tensor, baseline: Callable[[Tensor], Tensor | float] = lambda found: BASELINE
) -> tuple[Tensor, Tensor]:
    """What to descend, and minus the bound, [R, B] of images [R, B, 784].

    The decoder's gradient goes through hard samples, the encoder's by the score function with a baseline, made of the
    cross-entropies [R, B] of the batch; that of the KL is exact.
    """
    views = stack.views()
    log_q = stack.log_probs(stack.scores(x, views, training=True))
    index = (log_q.detach() + gumbels(log_q.detach())).argmax(-1)
    found = cross_entropy(stack.decode(one_hot(index, log_q.shape[-1]), views, training=True), x)
    chosen = log_q.gather(-1, index.unsqueeze(-1)).sum((-1, -2))
    bound = found + kl_from_uniform(log_q)
    return bound + (found.detach() - baseline(found.detach())) * chosen, bound


def mean_of_others(found: Tensor) -> Tensor:
    """For every image the mean over the others of its batch, which does not depend on what was drawn for it."""
    return (found.sum(1, keepdim=True) - found) / (found.shape[1] - 1)


OBJECTIVES: dict[str, Callable[[Stack, Tensor], tuple[Tensor, Tensor]]] = {
    "straight-through": straight_through,
    "score-function": score_function,
    "score-function, leave-one-out": partial(score_function, baseline=mean_of_others),
}
