"""Gradients through samples: the score function with its baselines, straight-through, relaxed and distinct samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from catnat.core.errors import advised, check_num_samples, too_few_allowed
from catnat.core.parameterization import ParameterizationLike
from catnat.torch import functional, sampling
from catnat.torch._compat import assert_on_device, in_forward_mode, is_plain
from catnat.torch._inputs import check_temperature
from catnat.torch._walk import at_least_single, known

__all__ = [
    "LeaveOneOut",
    "MovingAverage",
    "gumbel_softmax",
    "sample_without_replacement",
    "score_function",
    "straight_through",
]


class MovingAverage(torch.nn.Module):
    """A baseline that follows the mean of the costs it has seen: b <- decay * b + (1 - decay) * mean(cost).

    The first batch sets it; with ``decay``, in [0, 1), near 1 it is slow. Costs that are not finite, as of an overflow
    in mixed precision, are left out, and counted in `skipped`. It is a module so that its value is saved and moved.
    """

    value: Tensor
    seen: Tensor
    skipped: Tensor

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"decay must lie in [0, 1); got {decay!r}")
        self.decay = decay
        self.register_buffer("value", torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))
        self.register_buffer("skipped", torch.zeros((), dtype=torch.long), persistent=False)  # of this run

    @torch.no_grad()
    def forward(self, cost: Tensor) -> Tensor:
        """The baseline from costs seen before this call (0 at first); then, in training mode, take this one in."""
        before = self.value.clone()
        if not self.training:
            return before.to(cost)
        own = cost.detach().to(self.value)
        finite = own.isfinite()
        count = finite.sum()
        share = torch.where(finite, own, 0.0).to(torch.promote_types(own.dtype, torch.float32))
        share = share / count.clamp(min=1)  # before they are added up: of large costs there is no sum
        mean = share.sum().to(self.value)
        after = torch.where(self.seen, self.decay * self.value + (1 - self.decay) * mean, mean)
        self.value.copy_(torch.where(count > 0, after, self.value))
        self.seen.logical_or_(count > 0)
        self.skipped.add_(cost.numel() - count)
        return before.to(cost)

    def extra_repr(self) -> str:
        """Settings for print()."""
        return f"decay={self.decay}"


class LeaveOneOut:
    """A baseline for two or more samples along ``dim``: for each the mean cost of the others. Unbiased, no state."""

    def __init__(self, dim: int = 0) -> None:
        self.dim = dim

    def __repr__(self) -> str:
        return f"LeaveOneOut(dim={self.dim})"

    def __call__(self, cost: Tensor) -> Tensor:
        """The baseline of every sample."""
        count = cost.shape[self.dim] if cost.dim() else 0
        if count < 2:
            came = f"{count} (cost has shape {tuple(cost.shape)})"
            raise ValueError(f"a leave-one-out baseline needs at least 2 samples along dim {self.dim}; got {came}")
        return (cost.sum(self.dim, keepdim=True) - cost) / (count - 1)


Baseline = float | Tensor | MovingAverage | LeaveOneOut | None


def score_function(cost: Tensor, log_prob: Tensor, baseline: Baseline = None) -> Tensor:
    """A surrogate for the expected cost: its value is ``cost``, its gradient the score-function estimate.

    The gradient is d cost + (cost - baseline) d log p, elementwise; take the mean over samples and minimise. It is
    unbiased for every baseline here.

    The own gradient of ``cost``, where it has one, is kept; ``log_prob`` has the same shape and must have a gradient.
    ``baseline`` is None, a constant, a tensor such as a value network's output (no gradient flows into it), a
    `MovingAverage`, or `LeaveOneOut` along the axis of the samples.

    Example:
        >>> import torch, catnat.torch as ct
        >>> scores = torch.zeros(3, requires_grad=True)
        >>> policy = ct.CatnatCategorical(scores, 4)
        >>> x = policy.sample((64,))
        >>> ct.score_function((x - 1.0) ** 2, policy.log_prob(x), ct.LeaveOneOut()).mean().backward()
        >>> scores.grad.shape
        torch.Size([3])
    """
    if cost.shape != log_prob.shape:
        raise ValueError(f"cost and log_prob must have one shape; got {tuple(cost.shape)} and {tuple(log_prob.shape)}")
    if torch.is_grad_enabled() and is_plain(log_prob) and not log_prob.requires_grad and not in_forward_mode():
        hint = "are cost and log_prob swapped? If the policy is frozen, the cost itself is the loss"
        hint = hint if cost.requires_grad else "to look at values alone use torch.no_grad()"
        raise ValueError(f"log_prob must have a gradient, else nothing behind it is trained; got none: {hint}")
    signal = cost.detach()
    if isinstance(baseline, (MovingAverage, LeaveOneOut)):
        signal = signal - baseline(signal)
    elif isinstance(baseline, Tensor):
        try:
            signal = signal - baseline.detach().expand(cost.shape)
        except RuntimeError:
            shapes = f"{tuple(cost.shape)}; got {tuple(baseline.shape)}"
            raise ValueError(f"baseline must fit into the cost's shape {shapes}") from None
    elif isinstance(baseline, (int, float)) and not isinstance(baseline, bool):
        signal = signal - baseline
    elif baseline is not None:
        raise TypeError(f"baseline must be None, a number, a tensor, MovingAverage or LeaveOneOut; got {baseline!r}")
    # log p - log p is 0 in value and d log p in gradient; an impossible sample must not make it NaN
    own = torch.where(log_prob == -torch.inf, 0.0, log_prob)
    return cost + signal * (own - own.detach())


@advised
def straight_through(
    scores: Tensor,
    parameterization: ParameterizationLike,
    *,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One-hot samples [..., K] with the gradient of the probabilities: biased, low variance.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.straight_through(torch.zeros(2, 3), 4).sum(-1)
        tensor([1., 1.])
    """
    probs = functional.catnat(scores, parameterization, mask=mask)
    drawn = sampling.sample(scores, parameterization, mask=mask, generator=generator)
    return F.one_hot(drawn, probs.shape[-1]).to(probs.dtype) + (probs - probs.detach())


@advised
def gumbel_softmax(
    scores: Tensor,
    parameterization: ParameterizationLike,
    tau: float | Tensor = 1.0,
    hard: bool = False,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Samples softmax((log p + Gumbel noise) / tau), or with ``hard`` one-hot ones that have their gradient.

    In place of `torch.nn.functional.gumbel_softmax`. A hard sample is an exact draw at every ``tau``, which may be a
    tensor and be learned: one number, or one a row, [..., 1].

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.gumbel_softmax(torch.zeros(2, 3), 4, tau=0.5, hard=True).sum(-1)
        tensor([1., 1.])
    """
    log_p = functional.log_catnat(at_least_single(scores), parameterization, mask=mask, dim=dim)
    perturbed = with_gumbel_noise(log_p, generator)
    soft = torch.softmax(divided(perturbed, tau), dim)
    # the largest before the softmax, which may round neighbours together
    return (largest(perturbed, dim) + (soft - soft.detach()) if hard else soft).to(scores.dtype)


@advised
def sample_without_replacement(
    scores: Tensor,
    num_samples: int,
    parameterization: ParameterizationLike,
    *,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw different classes one after the other, each among those that are left: the largest of log p + Gumbel noise.

    Gives int64 class ids [..., num_samples] in the order of the draws, at most K a row or as many as the mask allows.
    (Where a mask cannot be looked at, as under `torch.compile`, forbidden classes fill the places that are left.)
    Classes without any mass come last, in any order. NaN scores are an error, or give K as in `sample`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.sample_without_replacement(torch.zeros(3), 4, 4).sort().values
        tensor([0, 1, 2, 3])
    """
    with torch.no_grad():
        log_p = functional.log_catnat(at_least_single(scores), parameterization, mask=mask)
        num_samples = check_num_samples(num_samples, log_p.shape[-1])
        if mask is not None and mask.numel() and is_plain(mask):
            fewest = mask.sum(-1).min()
            if mask.device.type != "cpu":
                assert_on_device(fewest >= num_samples)
            elif fewest < num_samples:
                raise too_few_allowed(num_samples, int(fewest))
        dead = log_p == -torch.inf
        # so far below the others that no noise lifts a class without mass above them; forbidden ones stay at the bottom
        last = torch.where(dead, torch.inf, log_p).amin(-1, keepdim=True) - 100
        log_p = torch.where(dead if mask is None else dead & mask, last, log_p)
        drawn = with_gumbel_noise(log_p, generator).topk(num_samples).indices
        lost = log_p.isnan().any(-1, keepdim=True)
        return known(torch.where(lost, log_p.shape[-1], drawn), log_p.shape[-1])


def divided(values: Tensor, tau: float | Tensor) -> Tensor:
    """Values by a temperature; where a probability is 0 they stay -inf, and the temperature's gradient finite."""
    tau = check_temperature(tau, "tau")
    if not isinstance(tau, Tensor):
        return values / tau
    dead = values == -torch.inf
    return torch.where(dead, values, torch.where(dead, 0.0, values) / tau)


def with_gumbel_noise(log_p: Tensor, generator: torch.Generator | None, noise: Tensor | None = None) -> Tensor:
    """Whose largest entry is an exact draw."""
    if noise is not None:
        check_noise(noise, log_p.shape, generator)
        return log_p + noise
    # minus the logarithm of an exponential variate is Gumbel noise
    return log_p - torch.empty_like(log_p).exponential_(generator=generator).log()


def check_noise(noise: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> None:
    """Raise unless noise that was handed over has this shape, and stands alone."""
    if noise.shape != shape:
        raise ValueError(f"noise must have the shape {tuple(shape)}; got {tuple(noise.shape)}")
    if generator is not None:
        raise ValueError("noise is given, so a generator would draw nothing: leave one of them out")


def largest(values: Tensor, dim: int = -1) -> Tensor:
    """One-hot rows: which entry is the largest."""
    return torch.zeros_like(values).scatter_(dim, values.argmax(dim, keepdim=True), 1.0)
