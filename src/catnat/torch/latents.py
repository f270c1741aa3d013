"""Discrete latent variables: samples of one-hot vectors with a gradient, and the module that draws them.

Every estimator is a function of log-probabilities, so that it is the same for softmax and for catnat; logits do as
well. It returns an exact one-hot sample (or, where its name says so, a relaxed one) whose gradient is the estimate.
Gumbel noise [..., K] may be handed over in place of a generator: the same noise in two calls, or a stream per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Independent, OneHotCategoricalStraightThrough

from catnat.core import latents as core
from catnat.core.errors import advised, check_choice, check_share
from catnat.core.latents import Stats
from catnat.core.parameterization import Activation, Parameterization
from catnat.torch import functional
from catnat.torch._compat import autocasts, is_plain
from catnat.torch._eager import p_log_ratio
from catnat.torch._inputs import check_integers, check_temperature
from catnat.torch._walk import at_least_single, known
from catnat.torch.estimators import check_noise, divided, largest, with_gumbel_noise
from catnat.torch.nn import Defined

__all__ = ["CategoricalLatent", "Latent"]

Tau = float | Tensor


def straight_through(
    log_p: Tensor, tau: Tau = 1.0, *, generator: torch.Generator | None = None, noise: Tensor | None = None
) -> Tensor:
    """The gradient of softmax(log p / tau); at tau = 1 that of the probabilities."""
    return _passed(torch.softmax(divided(log_p, tau), -1), largest(with_gumbel_noise(log_p.detach(), generator, noise)))


def gumbel_softmax(
    log_p: Tensor, tau: Tau = 1.0, *, generator: torch.Generator | None = None, noise: Tensor | None = None
) -> Tensor:
    """The gradient of the relaxed sample softmax((log p + Gumbel noise) / tau), which the sample rounds."""
    perturbed = with_gumbel_noise(log_p, generator, noise)
    return _passed(torch.softmax(divided(perturbed, tau), -1), largest(perturbed))


def gumbel_softmax_relaxed(
    log_p: Tensor, tau: Tau = 1.0, *, generator: torch.Generator | None = None, noise: Tensor | None = None
) -> Tensor:
    """The relaxed sample softmax((log p + Gumbel noise) / tau) itself, inside the simplex."""
    return torch.softmax(divided(with_gumbel_noise(log_p, generator, noise), tau), -1)


def gumbel_rao(
    log_p: Tensor,
    tau: Tau = 1.0,
    *,
    samples: int = 10,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """Gumbel-softmax, its gradient averaged over noise that draws the same sample (Paulus and others, 2021).

    ``noise`` is [1 + samples, ..., K]: that of the sample, then the others'.
    """
    core.check_sizes(samples=samples)
    fixed = log_p.detach().log_softmax(-1)  # logits are welcome
    if noise is None:
        sample = largest(with_gumbel_noise(fixed, generator))
        variates = log_p.new_empty((samples, *log_p.shape)).exponential_(generator=generator)
    else:
        check_noise(noise, (1 + samples, *log_p.shape), generator)
        sample, variates = largest(fixed + noise[0]), (-noise[1:]).exp()
    # given the class drawn, its perturbed log p is a Gumbel variate g, and the others are cut off at g; a Gumbel
    # variate is -log of an exponential one
    own, variates = sample > 0, variates.clamp(min=torch.finfo(log_p.dtype).tiny)
    top = torch.where(own, variates, 0.0).sum(-1, keepdim=True)
    perturbed = -(top + torch.where(own, 0.0, variates * (-fixed).exp())).log()
    return _passed(torch.softmax(divided(perturbed + _slope_of(log_p), tau), -1).mean(0), sample)


def reinmax(
    log_p: Tensor, tau: Tau = 1.0, *, generator: torch.Generator | None = None, noise: Tensor | None = None
) -> Tensor:
    """Second-order straight-through (Liu and others, 2023): exact for quadratic costs at tau = 1.

    A learned ``tau`` gets no gradient.
    """
    fixed = log_p.detach()
    sample = largest(with_gumbel_noise(fixed, generator, noise))
    middle = (sample + torch.softmax(divided(fixed, tau), -1).detach()) / 2
    # a softmax whose value is the middle and whose slope is that of a softmax there
    there = torch.softmax(middle.log() + _slope_of(log_p), -1)
    return _passed(2 * there - torch.softmax(log_p, -1) / 2, sample)


def _sample(
    log_p: Tensor, tau: Tau = 1.0, *, generator: torch.Generator | None = None, noise: Tensor | None = None
) -> Tensor:
    """No gradient: the score function goes through log p of the sample."""
    return largest(with_gumbel_noise(log_p.detach(), generator, noise))


ESTIMATORS: dict[str, Callable[..., Tensor]] = {
    "gumbel": gumbel_softmax,
    "gumbel-relaxed": gumbel_softmax_relaxed,
    "gumbel-rao": gumbel_rao,
    "reinmax": reinmax,
    "straight-through": straight_through,
    "score-function": _sample,
}


def kl_divergence(log_q: Tensor, log_prior: Tensor) -> Tensor:
    """[...] KL(q || prior) in nats, of log-probabilities [..., K]: 0 log 0 is 0, in value and gradient."""
    return p_log_ratio(log_q, log_prior).sum(-1)


def _slope_of(log_p: Tensor) -> Tensor:
    """0, with the gradient of log p; none where a probability is 0."""
    own = torch.where(log_p == -torch.inf, 0.0, log_p)
    return own - own.detach()


def _passed(soft: Tensor, sample: Tensor) -> Tensor:
    return sample + (soft - soft.detach())


def _known(values: Tensor) -> Tensor:
    """The class of the largest value, or what `known` makes of NaN."""
    best, found = values.max(-1)
    return known(torch.where(best.isnan(), values.shape[-1], found), values.shape[-1])


class Latent(NamedTuple):
    """What a `CategoricalLatent` makes of features [..., in_features]."""

    z: Tensor  # [..., variables, classes] one-hot, or [..., variables, embed]; with a gradient
    code: Tensor  # [..., variables, classes] the sample of which z is made: one-hot, but for "gumbel-relaxed"
    log_q: Tensor  # [..., variables, classes]
    log_prior: Tensor  # what log_q is held against
    kl: Tensor  # [..., variables] KL(q || prior) in nats

    def __repr__(self) -> str:
        return core.in_shapes(self)

    @property
    def _drawn(self) -> Tensor:
        return self.code.argmax(-1)  # of NaN any class: what is made of it is NaN

    @property
    def indices(self) -> Tensor:
        """[..., variables] int64: the classes drawn."""
        return known(torch.where(self.log_q.isnan().any(-1), self.code.shape[-1], self._drawn), self.code.shape[-1])

    @property
    def log_prob(self) -> Tensor:
        """[...] log q of the indices, the variables' sum: what `score_function` wants."""
        return self.log_q.gather(-1, self._drawn.unsqueeze(-1)).squeeze(-1).sum(-1)

    def loss(self, beta: float | Tensor = 1.0, *, free_nats: float = 0.0, balance: float | None = None) -> Tensor:
        """[...] beta times the KL, summed over the variables, but no less than ``free_nats``: one number per position.

        Args:
            beta: weight of the KL.
            free_nats: below so many nats there is no gradient.
            balance: share of the gradient that moves the prior; the rest moves q. None moves both as they are.
        """
        total = self.kl.sum(-1)
        if balance is not None:
            check_share("balance", balance)
            moved = p_log_ratio(self.log_q.detach(), self.log_prior).sum((-1, -2))
            drawn = p_log_ratio(self.log_q, self.log_prior.detach()).sum((-1, -2))
            total = balance * moved + (1 - balance) * drawn
        return beta * (total.clamp(min=free_nats) if free_nats else total)

    @torch.no_grad()
    def stats(self, sync: bool = False) -> Stats:
        """Usage of the classes in this batch; with ``sync`` over all processes, each of which must then ask."""
        *_, variables, classes = self.log_q.shape
        ids = self._drawn.reshape(-1, variables).T
        ones = torch.ones_like(ids, dtype=torch.float32)
        counts = ones.new_zeros(variables, classes).scatter_add_(1, ids, ones)
        nats = -p_log_ratio(self.log_q, torch.zeros_like(self.log_q)).reshape(-1, variables, classes).sum((0, -1))
        both = torch.cat((counts, nats.float().unsqueeze(-1)), -1)
        if sync:
            torch.distributed.all_reduce(both)
        counts, nats = both.split((classes, 1), -1)
        rows = counts.sum(-1, keepdim=True)
        usage = counts / rows
        perplexity = torch.special.entr(usage).sum(-1).exp()
        return Stats(usage, perplexity, (nats / rows).squeeze(-1), (usage == 0).float().mean(-1))


class CategoricalLatent(Defined):
    """Categorical latent variables: from features to samples with a gradient, with their KL from a prior.

    Args:
        in_features: size of the features.
        variables: how many latent variables.
        classes: how many classes each has.
        head: ``"natural"``, ``"sigmoid"``, ``"paper"``, a `catnat.Activation` or a `catnat.Parameterization`; or
            ``"softmax"``, to compare.
        estimator: of the gradient: ``"gumbel"``, ``"gumbel-relaxed"``, ``"gumbel-rao"``, ``"reinmax"``,
            ``"straight-through"``, or ``"score-function"``: then ``z`` has none, and `score_function` takes
            ``latent.log_prob``.
        tau: temperature of the estimator, of which the score function has none; by default 1 for ``"reinmax"`` and
            ``"straight-through"``, else 0.5. Or a function of the number of calls in training so far, a tensor.
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
    fixed_prior: Tensor | None  # the bits of float32 numbers, for the same reason

    @advised
    def __init__(
        self,
        in_features: int,
        variables: int,
        classes: int,
        *,
        head: str | Activation | Parameterization = "natural",
        estimator: str = "gumbel",
        tau: float | Callable[[Tensor], Tensor] | None = None,
        prior: str | Tensor | Sequence[float] = "uniform",
        unimix: float = 0.0,
        embed: int | None = None,
        channel_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        core.check_sizes(in_features=in_features, variables=variables, embed=embed)
        check_choice("estimator", estimator, tuple(ESTIMATORS), core.KNOWN_AS)
        pi, fixed = core.parameterization_of(head, classes), core.log_prior_of(prior, variables, classes)
        super().__init__(pi or classes, device, prior=core.number_of(fixed))
        self.in_features, self.variables, self.classes = in_features, variables, classes
        self.head, self.estimator, self.channel_first = head, estimator, channel_first
        self.tau = tau if callable(tau) else check_temperature(core.tau_of(estimator, tau), "tau")
        self.unimix = core.check_unimix(unimix)
        self.vanishes = core.vanishes(pi) and not unimix
        width = classes if head == "softmax" else classes - 1
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.linear = torch.nn.Linear(in_features, variables * width, **options)
        self.codes = None if embed is None else torch.nn.Parameter(torch.empty(variables, classes, embed, **options))
        self.prior = torch.nn.Parameter(torch.empty(variables, classes, **options)) if fixed is None else None
        self._fixed_prior: Any = None if fixed is None else torch.from_numpy(fixed.astype("f4")).view(torch.int32)
        bits = None if fixed is None else torch.empty(variables, classes, dtype=torch.int32, device=device)
        self.register_buffer("fixed_prior", bits)
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
                self.fixed_prior.copy_(self._fixed_prior)

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
        core.check_tau(self.estimator, tau)
        if tau is None and callable(self.tau):
            tau = self.tau(self.steps.float())
            self.steps += self.training
        z = ESTIMATORS[self.estimator](log_q, self.tau if tau is None else tau, generator=generator)
        log_prior = self.log_prior if prior is None else prior
        if prior is not None:
            seen = is_plain(prior) and prior.is_cpu and prior.numel() > 0
            off = prior.detach().double().logsumexp(-1).abs().max().item() if seen else 0.0
            core.check_prior(prior.shape, log_q.shape, off, learns=self.prior is not None)
        # 16 bits overflow easily
        vanishes = prior is not None or self.vanishes or h.element_size() < 4 or autocasts(h.device)
        if vanishes:
            kl = kl_divergence(log_q, log_prior)
        else:
            kl = (log_q.exp() * (log_q - log_prior)).sum(-1)  # cheaper on a GPU
        return Latent(self._outward(z.to(h.dtype)), z, log_q, log_prior, kl)

    def log_probs(self, h: Tensor) -> Tensor:
        """[..., variables, classes] log q, in float32 at least; of feature maps [N, ..., variables, classes]."""
        if not isinstance(h, Tensor) or not h.is_floating_point():
            raise TypeError(f"h must be a floating-point tensor; got {getattr(h, 'dtype', type(h).__name__)}")
        axis = 1 if self.channel_first else -1
        core.check_features(h.shape, self.in_features, f"dim {axis}", self.channel_first)
        scores = at_least_single(self.linear(h.movedim(axis, -1)).unflatten(-1, (self.variables, -1)))
        softmax = self.head == "softmax"
        log_q = scores.log_softmax(-1) if softmax else functional.log_catnat(scores, self.parameterization)
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
        return _known(self.log_probs(h))

    @torch.no_grad()
    def sample(self, h: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """[..., variables] classes drawn from q."""
        return _known(with_gumbel_noise(self.log_probs(h), generator))

    @torch.no_grad()
    def sample_prior(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """[..., variables] classes drawn from the module's own prior, the axes of ``sample_shape`` in front."""
        return _known(with_gumbel_noise(self.log_prior.expand(*sample_shape, -1, -1).contiguous(), generator))

    def decode(self, indices: Tensor) -> Tensor:
        """Classes [..., variables], of feature maps [N, ..., variables], to what ``z`` is for them."""
        check_integers(indices, "indices")
        core.check_variables(indices.shape, self.variables)
        return self._outward(F.one_hot(indices.long(), self.classes).to(self.linear.weight.dtype))

    def distribution(self, h: Tensor) -> Independent:
        """q as a torch distribution of one-hot vectors [variables, classes], with `rsample`."""
        return Independent(OneHotCategoricalStraightThrough(logits=self.log_probs(h), validate_args=False), 1)

    def extra_repr(self) -> str:
        """Settings for print()."""
        names = "variables", "classes", "head", "estimator", "tau"
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def _outward(self, z: Tensor) -> Tensor:
        z = z if self.codes is None else torch.einsum("...vk,vke->...ve", z, self.codes.to(z.dtype))
        return z.flatten(-2).movedim(-1, 1) if self.channel_first else z
