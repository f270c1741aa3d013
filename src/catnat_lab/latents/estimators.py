"""Gradients of an expected cost through samples of categorical variables, all in terms of their log-probabilities.

An estimator gets log q [R, B, N, K], Gumbel noise [R, draws, B, N, K], temperatures [R, 1, 1, 1] and a function that
gives the costs [R, D, B] of samples [R, D, B, N, K]. It returns [R, B]: the cost, with the estimate as its gradient.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from catnat_lab.vae.objective import one_hot

Cost = Callable[[Tensor], Tensor]
INNER = 10  # samples of Gumbel-Rao
SCORED = 4  # samples of the score function


def straight_through(log_q: Tensor, noise: Tensor, temperature: Tensor, cost: Cost) -> Tensor:
    """Exact samples with the gradient of softmax(log q / temperature)."""
    return _with_gradient_of(torch.softmax(log_q / temperature, -1), _drawn(log_q, noise[:, 0]), cost)


def gumbel_softmax(log_q: Tensor, noise: Tensor, temperature: Tensor, cost: Cost) -> Tensor:
    """Exact samples with the gradient of the relaxed ones that they round."""
    relaxed = torch.softmax((log_q + noise[:, 0]) / temperature, -1)
    return _with_gradient_of(relaxed, _drawn(log_q, noise[:, 0]), cost)


def gumbel_rao(log_q: Tensor, noise: Tensor, temperature: Tensor, cost: Cost) -> Tensor:
    """Gumbel-softmax with its gradient averaged over noise that would have drawn the same sample.

    Given the sample d: log q_d plus its noise is a Gumbel variate g, the others are truncated at g.
    """
    sample = _drawn(log_q, noise[:, 0])
    exponentials = (-noise[:, 1:]).exp()  # E: a Gumbel variate is -log E
    own = (exponentials * sample.unsqueeze(1)).sum(-1, keepdim=True)
    fixed = log_q.detach().unsqueeze(1)
    others = exponentials * (-fixed).exp()
    perturbed = -(own + torch.where(sample.unsqueeze(1) > 0, 0.0, others)).log()
    shift = perturbed - fixed  # what was added to log q: kept fixed
    relaxed = torch.softmax((log_q.unsqueeze(1) + shift) / temperature.unsqueeze(1), -1).mean(1)
    return _with_gradient_of(relaxed, sample, cost)


def reinmax(log_q: Tensor, noise: Tensor, temperature: Tensor, cost: Cost) -> Tensor:
    """Second-order straight-through: twice the slope at the mean of the sample and q, less half the slope at q.

    Unbiased for quadratic costs at temperature 1.
    """
    sample = _drawn(log_q, noise[:, 0])
    middle = (sample + torch.softmax(log_q.detach() / temperature, -1)) / 2
    # a softmax whose value is the middle and whose slope is that of a softmax there
    there = torch.softmax(middle.log() + (log_q - log_q.detach()), -1)
    return _with_gradient_of(2 * there - log_q.exp() / 2, sample, cost)


def score_function(log_q: Tensor, noise: Tensor, temperature: Tensor, cost: Cost) -> Tensor:
    """The cost times the gradient of log q, less the mean of the other samples' costs; unbiased. No temperature."""
    sample = _drawn(log_q.unsqueeze(1), noise)
    costs = cost(sample)
    signal = costs.detach()
    baseline = (signal.sum(1, keepdim=True) - signal) / (signal.shape[1] - 1)
    log_prob = (sample * torch.where(sample > 0, log_q.unsqueeze(1), 0.0)).sum((-1, -2))
    return (costs + (signal - baseline) * (log_prob - log_prob.detach())).mean(1)


def _drawn(log_q: Tensor, noise: Tensor) -> Tensor:
    return one_hot((log_q.detach() + noise).argmax(-1), log_q.shape[-1]).to(log_q.dtype)


def _with_gradient_of(soft: Tensor, sample: Tensor, cost: Cost) -> Tensor:
    return cost((sample + (soft - soft.detach())).unsqueeze(1)).squeeze(1)


class Estimator(NamedTuple):
    loss: Callable[[Tensor, Tensor, Tensor, Cost], Tensor]
    draws: int  # of noise, an image


ESTIMATORS = {
    "reinmax": Estimator(reinmax, 1),
    "gumbel-softmax": Estimator(gumbel_softmax, 1),
    "straight-through": Estimator(straight_through, 1),
    "gumbel-rao": Estimator(gumbel_rao, 1 + INNER),
    "score-function": Estimator(score_function, SCORED),
}
