"""What a step descends: minus the evidence lower bound, through relaxed samples or by the score function.

An objective gets images [R, B, 784], the parameters' views, the posterior's log q [R, B, N, K] and Gumbel noise of that
shape. It gives what to descend and minus the bound, both [R, B].
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from catnat_lab.vae.stack import Stack

COOLING, COOLED_EVERY, COLDEST = 3e-5, 1000, 0.5  # temperature max(COLDEST, exp(-COOLING step)), every so many steps
BASELINE = 125.0  # of the score function: about the cross-entropy that training begins to improve on
LEAST = -100.0  # a log-probability below it counts as this in p log p, which is 0 there
Losses = tuple[Tensor, Tensor]


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


def straight_through(stack: Stack, x: Tensor, views: list[Tensor], log_q: Tensor, noise: Tensor) -> Losses:
    """Hard samples forward, the gradient of relaxed ones backward; the KL is exact."""
    noisy = log_q + noise
    soft = torch.softmax(noisy / temperature(stack.step), -1)
    hard = one_hot(noisy.detach().argmax(-1), log_q.shape[-1])
    logits = stack.decode(hard + (soft - soft.detach()), views, training=True)
    bound = cross_entropy(logits, x) + kl_from_uniform(log_q)
    return bound, bound


def score_function(stack: Stack, x: Tensor, views: list[Tensor], log_q: Tensor, noise: Tensor) -> Losses:
    """By the paper's constant as the baseline."""
    return _score_function(stack, x, views, log_q, noise, lambda found: BASELINE)


def leave_one_out(stack: Stack, x: Tensor, views: list[Tensor], log_q: Tensor, noise: Tensor) -> Losses:
    """By the score function with the mean over the batch's other images as the baseline."""
    return _score_function(stack, x, views, log_q, noise, mean_of_others)


def _score_function(
    stack: Stack,
    x: Tensor,
    views: list[Tensor],
    log_q: Tensor,
    noise: Tensor,
    baseline: Callable[[Tensor], Tensor | float],
) -> Losses:
    """The decoder's gradient goes through hard samples, the encoder's by the score function with a baseline.

    That is made of the cross-entropies [R, B] of the batch. The KL's gradient is exact.
    """
    index = (log_q.detach() + noise).argmax(-1)
    found = cross_entropy(stack.decode(one_hot(index, log_q.shape[-1]), views, training=True), x)
    chosen = log_q.gather(-1, index.unsqueeze(-1)).sum((-1, -2))
    bound = found + kl_from_uniform(log_q)
    return bound + (found.detach() - baseline(found.detach())) * chosen, bound


def mean_of_others(found: Tensor) -> Tensor:
    """For every image the mean over the others of its batch, which does not depend on what was drawn for it."""
    return (found.sum(1, keepdim=True) - found) / (found.shape[1] - 1)


OBJECTIVES: dict[str, Callable[[Stack, Tensor, list[Tensor], Tensor, Tensor], Losses]] = {
    "straight-through": straight_through,
    "score-function": score_function,
    "score-function, leave-one-out": leave_one_out,
}
