"""Discrete latent variables: samples of one-hot vectors with a gradient, and the module that draws them.

Every estimator is a function of log-probabilities, so that it is the same for softmax and for catnat. It returns an
exact one-hot sample (or, where its name says so, a relaxed one) whose gradient is the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling
from torch.distributions import Independent, OneHotCategoricalStraightThrough

from catnat.core.errors import check_choice, check_share
from catnat.core.latents import (
    FAR,
    check_pair_costs,
    check_sizes,
    check_unimix,
    check_variables,
    log_odds_tree,
    log_prior_of,
    parameterization_of,
)
from catnat.core.parameterization import Parameterization
from catnat.torch import functional
from catnat.torch._compat import is_plain
from catnat.torch._inputs import check_integers, check_temperature
from catnat.torch.estimators import at_least_single, divided, largest, with_gumbel_noise
from catnat.torch.nn import Defined

__all__ = ["CategoricalLatent", "Latent"]

Tau = float | Tensor


def straight_through(log_p: Tensor, tau: Tau = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """The gradient of softmax(log p / tau); at tau = 1 that of the probabilities."""
    return _passed(torch.softmax(divided(log_p, tau), -1), largest(with_gumbel_noise(log_p.detach(), generator)))


def gumbel_softmax(log_p: Tensor, tau: Tau = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """The gradient of the relaxed sample softmax((log p + Gumbel noise) / tau), which the sample rounds."""
    perturbed = with_gumbel_noise(log_p, generator)
    return _passed(torch.softmax(divided(perturbed, tau), -1), largest(perturbed))


def gumbel_softmax_relaxed(log_p: Tensor, tau: Tau = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """The relaxed sample softmax((log p + Gumbel noise) / tau) itself, inside the simplex."""
    return torch.softmax(divided(with_gumbel_noise(log_p, generator), tau), -1)


def gumbel_rao(log_p: Tensor, tau: Tau = 1.0, *, samples: int = 10, generator: torch.Generator | None = None) -> Tensor:
    """Gumbel-softmax, its gradient averaged over noise that draws the same sample (Paulus and others, 2021)."""
    check_sizes(samples=samples)
    fixed = log_p.detach()
    sample = largest(with_gumbel_noise(fixed, generator))
    own = sample > 0
    # given the class drawn, its perturbed log p is a Gumbel variate g, and the others are cut off at g; a Gumbel
    # variate is -log of an exponential one
    variates = torch.empty((samples, *log_p.shape), dtype=log_p.dtype, device=log_p.device)
    variates.exponential_(generator=generator).clamp_(min=torch.finfo(log_p.dtype).tiny)
    top = torch.where(own, variates, 0.0).sum(-1, keepdim=True)
    perturbed = -(top + torch.where(own, 0.0, variates * (-fixed).exp())).log()
    return _passed(torch.softmax(divided(perturbed + _slope_of(log_p), tau), -1).mean(0), sample)


def reinmax(log_p: Tensor, tau: Tau = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """Second-order straight-through (Liu and others, 2023): exact for quadratic costs at tau = 1."""
    fixed = log_p.detach()
    sample = largest(with_gumbel_noise(fixed, generator))
    middle = (sample + torch.softmax(divided(fixed, tau), -1).detach()) / 2
    # a softmax whose value is the middle and whose slope is that of a softmax there
    there = torch.softmax(middle.log() + _slope_of(log_p), -1)
    return _passed(2 * there - log_p.exp() / 2, sample)


def relaxed_descent(log_p: Tensor, tau: Tau = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """A binary concrete on every node of a balanced tree: a class's weight is the product along its path.

    The sample is where the walk ends that takes the likelier side of every node.
    """
    odds, tree = _log_odds(log_p)
    turns = divided(odds + _logistic(log_p, generator), tau)
    return _passed(functional.catnat(turns, tree), _walked(turns.detach(), tree))


class Pair(NamedTuple):
    """Two coupled samples [2, ..., K], and what `antithetic_cost` needs: a term whose gradient weighs their costs."""

    z: Tensor
    term: Tensor


def antithetic_pair(log_p: Tensor, *, generator: torch.Generator | None = None) -> Pair:
    """Two walks down a balanced tree that share their noise with opposite signs (Dong, Mnih and Tucker, 2021).

    Together with `antithetic_cost` an unbiased estimator for any cost, with less variance than the score function
    without a baseline.
    """
    odds, tree = _log_odds(log_p)
    noise, fixed = _logistic(log_p, generator), odds.detach()
    turns = torch.stack((fixed + noise, fixed - noise))
    reached = functional.reach(torch.where(turns > 0, FAR, -FAR), tree).sum(0) > 0.5
    right = turns > 0
    # only nodes where the two walks part, and on a path, tell the costs apart
    weight = torch.where(reached & (right[0] != right[1]), torch.where(right[0], 1.0, -1.0) * fixed.abs().sigmoid(), 0)
    return Pair(_walked(turns, tree), (weight * odds).sum(-1))


def antithetic_cost(cost: Tensor, pair: Pair) -> Tensor:
    """The mean of the two costs [2, ...], with the estimate as its gradient; ``pair`` as `antithetic_pair` made it.

    The variables between the cost's axes and the classes' are summed over: they are one sample together.
    """
    check_pair_costs(cost.shape, pair.term.shape)
    term = pair.term.flatten(cost.dim() - 1).sum(-1) if pair.term.dim() >= cost.dim() else pair.term
    return cost.mean(0) + (cost[0] - cost[1]).detach() / 2 * (term - term.detach())


ESTIMATORS: dict[str, Callable[..., Tensor]] = {
    "gumbel": gumbel_softmax,
    "gumbel-relaxed": gumbel_softmax_relaxed,
    "gumbel-rao": gumbel_rao,
    "reinmax": reinmax,
    "straight-through": straight_through,
    "relaxed-descent": relaxed_descent,
    "score-function": lambda log_p, tau, generator: largest(with_gumbel_noise(log_p.detach(), generator)),
}


def _log_odds(log_p: Tensor) -> tuple[Tensor, Parameterization]:
    """[..., K-1] those of the nodes of a balanced tree, and what makes probabilities of them."""
    if is_compiling():
        from catnat.torch._constant import constant

        tree = constant(log_odds_tree, int(log_p.shape[-1]))
    else:
        tree = log_odds_tree(log_p.shape[-1])
    return functional.scores_from_log_probs(log_p, tree).clamp(-FAR, FAR), tree


def _logistic(log_p: Tensor, generator: torch.Generator | None) -> Tensor:
    """[..., K-1] noise whose sign, added to log-odds, is a draw."""
    pair = torch.empty((2, *log_p.shape[:-1], log_p.shape[-1] - 1), dtype=log_p.dtype, device=log_p.device)
    one, other = pair.exponential_(generator=generator).log()
    return one - other


def _walked(turns: Tensor, tree: Parameterization) -> Tensor:
    return largest(functional.catnat(torch.where(turns > 0, FAR, -FAR).to(turns.dtype), tree))


def _slope_of(log_p: Tensor) -> Tensor:
    """0, with the gradient of log p; none where a probability is 0."""
    own = torch.where(log_p == -torch.inf, 0.0, log_p)
    return own - own.detach()


def _kl(log_q: Tensor, log_prior: Tensor) -> Tensor:
    return (log_q.exp() * (log_q - log_prior)).sum(-1)


def _finite(log_p: Tensor) -> Tensor:
    """Log-probabilities without -inf, which times 0 would be NaN: a number that is 0 in exp and very large in a KL."""
    return log_p.clamp(min=torch.finfo(log_p.dtype).min / 4)


def _passed(soft: Tensor, sample: Tensor) -> Tensor:
    return sample + (soft - soft.detach())


class Stats(NamedTuple):
    """How a batch uses its classes, per variable: detached, for a log."""

    usage: Tensor  # [variables, classes] share of the draws
    perplexity: Tensor  # [variables] exp of the entropy of the usage: how many classes are as good as used
    entropy: Tensor  # [variables] mean entropy of q, in nats
    dead: Tensor  # [variables] share of the classes that were never drawn


class Latent(NamedTuple):
    """What a `CategoricalLatent` makes of features [..., in_features]."""

    z: Tensor  # [..., variables, classes] one-hot, or [..., variables, embed]; with a gradient
    code: Tensor  # [..., variables, classes] the sample of which z is made: one-hot, but for "gumbel-relaxed"
    log_q: Tensor  # [..., variables, classes]
    log_prior: Tensor  # what log_q is held against
    kl: Tensor  # [..., variables] KL(q || prior) in nats

    @property
    def indices(self) -> Tensor:
        """[..., variables] int64: the classes drawn."""
        return self.code.argmax(-1)

    @property
    def log_prob(self) -> Tensor:
        """[...] log q of the indices, the variables' sum: what `score_function` wants."""
        return self.log_q.gather(-1, self.indices.unsqueeze(-1)).squeeze(-1).sum(-1)

    def loss(self, beta: float | Tensor = 1.0, *, free_nats: float = 0.0, balance: float | None = None) -> Tensor:
        """[...] beta times the KL, summed over the variables, but no less than ``free_nats``: one number per position.

        Args:
            beta: weight of the KL.
            free_nats: below so many nats there is no gradient.
            balance: share of the gradient that moves the prior; the rest moves q. None moves both as they are.
        """
        if balance is None:
            total = self.kl.sum(-1)
            return beta * (total.clamp(min=free_nats) if free_nats else total)
        check_share("balance", balance)
        moved = _kl(self.log_q.detach(), self.log_prior).sum(-1).clamp(min=free_nats)
        drawn = _kl(self.log_q, self.log_prior.detach()).sum(-1).clamp(min=free_nats)
        return beta * (balance * moved + (1 - balance) * drawn)

    @torch.no_grad()
    def stats(self, sync: bool = False) -> Stats:
        """Usage of the classes in this batch; with ``sync`` over all processes, each of which must then ask."""
        *_, variables, classes = self.log_q.shape
        ids = self.indices.reshape(-1, variables)
        ids = ids + classes * torch.arange(variables, device=ids.device)
        counts = self.log_q.new_zeros(variables * classes, dtype=torch.float32)
        counts.scatter_add_(0, ids.flatten(), torch.ones_like(ids.flatten(), dtype=torch.float32))
        entropy = -_kl(self.log_q, torch.zeros_like(self.log_q)).reshape(-1, variables).sum(0).float()
        rows = torch.full_like(entropy[:1], len(ids))
        both = torch.cat((counts, entropy, rows))
        if sync:
            torch.distributed.all_reduce(both)
        counts, entropy, rows = both.split((variables * classes, variables, 1))
        usage = counts.reshape(variables, classes) / rows
        return Stats(usage, torch.special.entr(usage).sum(-1).exp(), entropy / rows, (usage == 0).float().mean(-1))


class CategoricalLatent(Defined):
    """Categorical latent variables: from features to samples with a gradient, with their KL from a prior.

    Args:
        in_features: size of the features.
        variables: how many latent variables.
        classes: how many classes each has.
        head: ``"natural"``, ``"sigmoid"``, ``"paper"`` or a `catnat.Parameterization`; or ``"softmax"``, to compare.
        estimator: of the gradient: ``"gumbel"``, ``"gumbel-relaxed"``, ``"gumbel-rao"``, ``"reinmax"``,
            ``"straight-through"``, ``"relaxed-descent"``, or ``"score-function"``: then ``z`` has none, and
            `score_function` takes ``latent.log_prob``.
        tau: temperature of the estimator; or a function of the number of calls in training so far, a tensor.
        prior: ``"uniform"``, ``"learned"``, or probabilities [classes] or [variables, classes].
        unimix: share of the uniform distribution that is mixed into q.
        embed: None gives one-hot vectors; a number, learned vectors of so many.
        channel_first: features are [N, in_features, ...], and z is [N, variables * (embed or classes), ...].
        device: as in `torch.nn.Linear`.
        dtype: as in `torch.nn.Linear`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> latent = ct.CategoricalLatent(256, variables=20, classes=16)
        >>> q = latent(torch.zeros(8, 256))
        >>> q.z.shape, q.indices.shape, q.loss().shape
        (torch.Size([8, 20, 16]), torch.Size([8, 20]), torch.Size([8]))
    """

    steps: Tensor  # training calls so far; a whole number, which no cast of the module rounds
    fixed_prior: Tensor | None  # as bytes, for the same reason

    def __init__(
        self,
        in_features: int,
        variables: int,
        classes: int,
        *,
        head: str | Parameterization = "natural",
        estimator: str = "gumbel",
        tau: float | Callable[[Tensor], Tensor] = 0.5,
        prior: str | Tensor | Sequence[float] = "uniform",
        unimix: float = 0.0,
        embed: int | None = None,
        channel_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes(in_features=in_features, variables=variables, embed=embed)
        check_choice("estimator", estimator, tuple(ESTIMATORS))
        super().__init__(parameterization_of(head, classes) or classes, device)
        self.in_features, self.variables, self.classes = in_features, variables, classes
        self.head, self.estimator, self.channel_first = head, estimator, channel_first
        self.tau = tau if callable(tau) else check_temperature(tau, "tau")
        self.unimix = check_unimix(unimix)
        self._has_zeros = getattr(self.parameterization.activation, "tail", None) == 0  # a probability may be 0
        width = classes if head == "softmax" else classes - 1
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.linear = torch.nn.Linear(in_features, variables * width, **options)
        self.codes = None if embed is None else torch.nn.Parameter(torch.empty(variables, classes, embed, **options))
        fixed = log_prior_of(prior, variables, classes)
        self.prior = torch.nn.Parameter(torch.empty(variables, classes, **options)) if fixed is None else None
        self._fixed_prior = fixed
        self.register_buffer(
            "fixed_prior",
            None if fixed is None else torch.empty(variables, 4 * classes, dtype=torch.uint8, device=device),
        )
        self.register_buffer("steps", torch.zeros((), dtype=torch.long, device=device))
        self.reset_parameters(linear=False)

    def reset_parameters(self, linear: bool = True) -> None:
        """Start anew, as after `to_empty`."""
        super().reset_parameters()
        with torch.no_grad():
            self.steps.zero_()
            if linear:
                self.linear.reset_parameters()
            if self.codes is not None:
                self.codes.normal_()
            if self.prior is not None:
                self.prior.zero_()
            if self.fixed_prior is not None:
                numbers = np.ascontiguousarray(self._fixed_prior, np.float32)
                self.fixed_prior.copy_(torch.from_numpy(numbers.view(np.uint8)))

    def forward(
        self,
        h: Tensor,
        prior: Tensor | None = None,
        *,
        tau: Tau | None = None,
        generator: torch.Generator | None = None,
    ) -> Latent:
        """Draw; ``prior`` [..., variables, classes] log-probabilities, such as another latent's ``log_probs``.

        With ``tau`` the module's own is left alone: say it where a step calls more than once, or is computed again.
        """
        log_q = self.log_probs(h)
        if tau is None and callable(self.tau):
            tau = self.tau(self.steps.float())
            if self.training:
                self.steps += 1
        elif tau is None:
            tau = self.tau  # type: ignore[assignment]
        z = ESTIMATORS[self.estimator](log_q, tau, generator=generator)
        log_prior = self.log_prior if prior is None else _finite(self._checked(prior, log_q))
        kl = _kl(log_q, log_prior)
        return Latent(self._outward(z.to(h.dtype)), z, log_q, log_prior, kl)

    def log_probs(self, h: Tensor) -> Tensor:
        """[..., variables, classes] log q, in float32 at least; of feature maps [N, ..., variables, classes]."""
        if not isinstance(h, Tensor) or not h.is_floating_point():
            raise TypeError(f"h must be a floating-point tensor; got {getattr(h, 'dtype', type(h).__name__)}")
        axis = 1 if self.channel_first else -1
        if h.dim() < 1 + self.channel_first or h.shape[axis] != self.in_features:
            raise ValueError(f"h must be {self.in_features} wide along dim {axis}; got shape {tuple(h.shape)}")
        scores = self.linear(h.movedim(axis, -1)).unflatten(-1, (self.variables, -1))
        scores = at_least_single(scores)
        if self.head == "softmax":
            log_q = scores.log_softmax(-1)
        else:
            log_q = functional.log_catnat(scores, self.parameterization)
            if self._has_zeros:
                log_q = _finite(log_q)
        if self.unimix:
            spread = torch.full_like(log_q, math.log(self.unimix / self.classes))
            log_q = torch.logaddexp(log_q + math.log1p(-self.unimix), spread)
        return log_q

    @property
    def log_prior(self) -> Tensor:
        """[variables, classes] log-probabilities of the module's own prior."""
        if self.prior is not None:
            return at_least_single(self.prior).log_softmax(-1)
        assert self.fixed_prior is not None
        return self.fixed_prior.view(torch.float32).to(torch.promote_types(self.linear.weight.dtype, torch.float32))

    def argmax(self, h: Tensor) -> Tensor:
        """[..., variables] the likeliest class of every variable."""
        return self.log_probs(h).argmax(-1)

    @torch.no_grad()
    def sample(self, h: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """[..., variables] classes drawn from q."""
        return with_gumbel_noise(self.log_probs(h), generator).argmax(-1)

    @torch.no_grad()
    def sample_prior(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """[*sample_shape, variables] classes drawn from the module's own prior."""
        return with_gumbel_noise(self.log_prior.expand(*sample_shape, -1, -1).contiguous(), generator).argmax(-1)

    def decode(self, indices: Tensor) -> Tensor:
        """Classes [..., variables], of feature maps [N, ..., variables], to what ``z`` is for them."""
        check_integers(indices, "indices")
        check_variables(indices.shape, self.variables)
        return self._outward(F.one_hot(indices.long(), self.classes).to(self.linear.weight.dtype))

    def distribution(self, h: Tensor) -> Independent:
        """q as a torch distribution of one-hot vectors [variables, classes], with `rsample`."""
        return Independent(OneHotCategoricalStraightThrough(logits=self.log_probs(h), validate_args=False), 1)

    def extra_repr(self) -> str:
        """Settings for print()."""
        return f"variables={self.variables}, classes={self.classes}, head={self.head!r}, estimator={self.estimator!r}"

    def _checked(self, prior: Tensor, log_q: Tensor) -> Tensor:
        if self.prior is not None:
            raise ValueError('prior must be None where the module learns one of its own: prior="learned"')
        if prior.shape[-2:] != log_q.shape[-2:] or prior.dim() > log_q.dim():
            raise ValueError(f"prior must be [..., {self.variables}, {self.classes}]; got {tuple(prior.shape)}")
        if is_plain(prior) and prior.is_cpu and bool((prior > 1e-4).any()):
            raise ValueError(f"prior must be log-probabilities; got {prior.max().item():g}, which is above 0")
        return prior

    def _outward(self, z: Tensor) -> Tensor:
        z = z if self.codes is None else torch.einsum("...vk,vke->...ve", z, self.codes.to(z.dtype))
        return z.flatten(-2).movedim(-1, 1) if self.channel_first else z
