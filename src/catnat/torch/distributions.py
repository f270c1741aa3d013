"""torch.distributions on catnat: subclasses of torch's own, so that whatever takes those takes these."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.distributions import Categorical, Distribution, OneHotCategorical, constraints, transforms
from torch.distributions.constraint_registry import biject_to, transform_to
from torch.distributions.kl import kl_divergence, register_kl
from torch.distributions.relaxed_categorical import ExpRelaxedCategorical, RelaxedOneHotCategorical

from catnat.core.errors import advised, check_width
from catnat.core.parameterization import Parameterization, ParameterizationLike, parts_of, repr_arguments
from catnat.torch import functional, sampling
from catnat.torch._compat import constant, remember_kl
from catnat.torch._dispatch import resolved
from catnat.torch._eager import p_log_ratio
from catnat.torch._inputs import check_mask, check_scores, check_temperature, prepare, prepare_mask

__all__ = ["CatnatCategorical", "MultiCatnat", "OneHotCatnat", "OneHotCatnatStraightThrough", "RelaxedOneHotCatnat"]

Shape = Sequence[int] | torch.Size


class _Scores(constraints.Constraint):
    """Rows of numbers; unlike torch's `real_vector` it knows an empty batch."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value == value).all(-1)  # false for NaN


class _WideSimplex(constraints.Constraint):
    """The simplex, to within what rounding does to a sum of so many terms: torch's own allows 1e-6 for any number."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        tolerance = 1e-6 + value.shape[-1] * torch.finfo(value.dtype).eps
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < tolerance)


for registry in (biject_to, transform_to):
    registry.register(_Scores, lambda _: transforms.IndependentTransform(transforms.identity_transform, 1))
biject_to.register(_WideSimplex, lambda _: transforms.StickBreakingTransform())
transform_to.register(_WideSimplex, lambda _: transforms.SoftmaxTransform())


class _ClassIds(constraints.Constraint):
    """One class id per part."""

    is_discrete = True
    event_dim = 1

    def __init__(self, nvec: Sequence[int]) -> None:
        self.nvec = tuple(nvec)

    def check(self, value: Tensor) -> Tensor:
        return ((value >= 0) & (value < value.new_tensor(self.nvec)) & (value % 1 == 0)).all(-1)

    def __repr__(self) -> str:
        return f"class ids below {self.nvec}"


def _given(
    scores: Tensor | None, probs: Tensor | None, logits: Tensor | None, parameterization: ParameterizationLike | None
) -> tuple[Tensor, Parameterization]:
    """The scores that came, or those whose distribution has the given probabilities or logits; and their meaning."""
    given = [name for name, value in (("scores", scores), ("probs", probs), ("logits", logits)) if value is not None]
    if len(given) != 1:
        raise ValueError(f"exactly one of scores, probs and logits must be given; got {' and '.join(given) or 'none'}")
    if scores is not None:
        return scores, resolved(parameterization)  # type: ignore[arg-type]  # None is refused there
    classes: Any = probs if logits is None else logits
    # as many classes as there are probabilities: nothing to be mistaken for something else
    infers = parameterization is None and isinstance(classes, Tensor)
    pi = resolved(classes.shape[-1] if infers else parameterization)  # type: ignore[arg-type]
    convert = functional.scores_from_probs if logits is None else functional.scores_from_log_probs
    return convert(classes, pi), pi


class CatnatCategorical(Categorical):
    """A categorical distribution over 0..K-1 given by K-1 scores; in place of `torch.distributions.Categorical`.

    `log_prob` and `sample` touch only the paths of their classes; the KL between two catnats on one tree is that of
    their nodes. `probs` and `logits` (normalised) are computed whenever asked for: nothing is kept, so a
    change of the scores in place is a change of the whole distribution.

    Args:
        scores: [..., K-1]; ``parameterization`` and ``mask`` as in `catnat.torch.log_catnat`.
        probs: [..., K] probabilities in place of scores; converted by `catnat.torch.scores_from_probs`.
        logits: [..., K] log-probabilities, normalised or not, in place of scores; converted without leaving logarithms.
        validate_args: as in torch.

    Example:
        >>> import torch, catnat.torch as ct
        >>> policy = ct.CatnatCategorical(torch.zeros(5, 17), 18)
        >>> action = policy.sample()
        >>> policy.log_prob(action).shape, policy.entropy().shape
        (torch.Size([5]), torch.Size([5]))
    """

    arg_constraints = {"scores": _Scores()}  # noqa: RUF012 (torch's own form)

    @advised
    def __init__(
        self,
        scores: Tensor | None = None,
        parameterization: ParameterizationLike | None = None,
        *,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        mask: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if is_compiling():
            constant(remember_kl)
        scores, parameterization = _given(scores, probs, logits, parameterization)
        x, plan, _ = prepare(scores, parameterization)
        mask = prepare_mask(mask, x, plan)
        batch = scores.shape[:-1]
        if mask is not None:
            batch = torch.broadcast_shapes(batch, mask.shape[:-1])
            scores, mask = scores.expand((*batch, -1)), mask.expand((*batch, -1))
        self.scores = scores
        self.parameterization = parameterization
        self.allowed = mask  # not .mask: Pyro gives that name another meaning
        self._num_events = plan.num_classes
        Distribution.__init__(self, batch, validate_args=validate_args)

    def __repr__(self) -> str:
        arrays = {"scores": self.scores, "mask": self.allowed}
        return f"{type(self).__name__}({repr_arguments(self.parameterization, arrays)})"

    @property
    def logits(self) -> Tensor:
        """[..., K] normalised log-probabilities."""
        return functional.log_catnat(self.scores, self.parameterization, mask=self.allowed)

    @property
    def probs(self) -> Tensor:
        """[..., K] probabilities."""
        return functional.catnat(self.scores, self.parameterization, mask=self.allowed)

    @property
    def _param(self) -> Tensor:  # type: ignore[override]  # what torch's own methods read
        return self.logits

    @property
    def mode(self) -> Tensor:
        """The likeliest class."""
        return sampling.mode(self.scores, self.parameterization, mask=self.allowed)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode, under TorchRL's name."""
        return self.mode

    def expand(self, batch_shape: Shape, _instance: Any = None) -> CatnatCategorical:
        """The same distribution over a larger batch."""
        new = self._get_checked_instance(CatnatCategorical, _instance)
        new.parameterization, new.scores = self.parameterization, self.scores.expand((*batch_shape, -1))
        new.allowed = None if self.allowed is None else self.allowed.expand((*batch_shape, -1))
        return super().expand(batch_shape, new)

    def sample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw class ids by tree descent."""
        settings: Any = {"sample_shape": sample_shape, "mask": self.allowed, "generator": generator}
        return sampling.sample(self.scores, self.parameterization, **settings)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of class ids."""
        if self._validate_args:
            self._validate_sample(value)
        return functional.log_prob(self.scores, value.long(), self.parameterization, mask=self.allowed)

    def entropy(self) -> Tensor:
        """Entropy in nats."""
        return functional.entropy(self.scores, self.parameterization, mask=self.allowed)


@register_kl(CatnatCategorical, CatnatCategorical)
def _kl_catnat_catnat(p: CatnatCategorical, q: CatnatCategorical) -> Tensor:
    # by number: a compiler cannot compare constants that are no words
    if p.parameterization.number == q.parameterization.number and p.allowed is None and q.allowed is None:
        return functional.kl_divergence(p.scores, q.scores, p.parameterization)
    return _kl_by_class(p, q)


@register_kl(CatnatCategorical, Categorical)
@register_kl(Categorical, CatnatCategorical)
def _kl_by_class(p: Categorical, q: Categorical) -> Tensor:
    if p._num_events != q._num_events:
        raise ValueError(f"KL needs equally many classes; got {p._num_events} and {q._num_events}")
    return p_log_ratio(p.logits, q.logits).sum(-1)


class OneHotCatnat(OneHotCategorical):
    """`CatnatCategorical` with one-hot samples; in place of `torch.distributions.OneHotCategorical`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.OneHotCatnat(torch.zeros(5, 3), 4).sample().shape
        torch.Size([5, 4])
    """

    arg_constraints = {"scores": _Scores()}  # noqa: RUF012
    _categorical: CatnatCategorical

    @wraps(CatnatCategorical.__init__)  # type: ignore[misc]  # of constructors mypy knows no wrappers
    def __init__(self, *args: Any, validate_args: bool | None = None, **settings: Any) -> None:
        self._categorical = CatnatCategorical(*args, validate_args=validate_args, **settings)
        event = torch.Size([self._categorical._num_events])
        Distribution.__init__(self, self._categorical.batch_shape, event, validate_args=validate_args)

    def __repr__(self) -> str:
        return repr(self._categorical).replace("CatnatCategorical", type(self).__name__, 1)

    @property
    def scores(self) -> Tensor:
        """[..., K-1]."""
        return self._categorical.scores

    @property
    def mode(self) -> Tensor:
        """The likeliest class of every row, as a one-hot row."""
        return torch.nn.functional.one_hot(self._categorical.mode, self.event_shape[0]).to(self.scores)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> OneHotCatnat:
        """The same distribution over a larger batch."""
        return super().expand(batch_shape, self._get_checked_instance(OneHotCatnat, _instance))

    def sample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw one-hot vectors by tree descent."""
        drawn = self._categorical.sample(sample_shape, generator=generator)
        return torch.nn.functional.one_hot(drawn, self._categorical._num_events).to(self.scores.dtype)


@register_kl(OneHotCatnat, OneHotCatnat)
@register_kl(OneHotCatnat, OneHotCategorical)
@register_kl(OneHotCategorical, OneHotCatnat)
def _kl_one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return kl_divergence(p._categorical, q._categorical)


class OneHotCatnatStraightThrough(OneHotCatnat):
    """One-hot samples whose gradient is that of the probabilities; biased, low variance.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.OneHotCatnatStraightThrough(torch.zeros(3, requires_grad=True), 4).rsample().requires_grad
        True
    """

    has_rsample = True

    def rsample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw one-hot vectors, with the probabilities' gradient."""
        return self.sample(sample_shape, generator=generator) + (self.probs - self.probs.detach())


class RelaxedOneHotCatnat(RelaxedOneHotCategorical):
    """Gumbel-softmax samples around catnat probabilities; in place of `RelaxedOneHotCategorical`.

    With ``temperature``, above 0, towards 0 the samples become one-hot; a tensor may be learned. Other arguments as in
    `CatnatCategorical`, but there is no mask: a relaxed sample has mass everywhere. As in torch, the scores are read
    once, at the construction.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.RelaxedOneHotCatnat(0.5, torch.zeros(3), 4).rsample().shape
        torch.Size([4])
    """

    arg_constraints = {"scores": _Scores()}  # noqa: RUF012
    support = _WideSimplex()  # type: ignore[assignment]  # wider than its parent's

    @advised
    def __init__(
        self,
        temperature: Tensor | float,
        scores: Tensor | None = None,
        parameterization: ParameterizationLike | None = None,
        *,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        scores, self.parameterization = _given(scores, probs, logits, parameterization)
        log_p = functional.log_catnat(scores, self.parameterization)
        self.scores = scores.clone()
        value = torch.as_tensor(check_temperature(temperature), dtype=scores.dtype, device=scores.device)
        # what it would check is checked above, and its own check of probabilities fails for many classes
        # torch refuses an empty batch, but expands one row to it; the sum over no rows is zero and keeps the gradient
        row = log_p if log_p.numel() else log_p.reshape(-1, log_p.shape[-1]).sum(0)
        base = ExpRelaxedCategorical(value, logits=row, validate_args=False).expand(log_p.shape[:-1])
        super(RelaxedOneHotCategorical, self).__init__(base, transforms.ExpTransform(), validate_args=validate_args)

    def __repr__(self) -> str:
        arrays = {"temperature": self.temperature, "scores": self.scores}
        return f"{type(self).__name__}({repr_arguments(self.parameterization, arrays)})"

    def expand(self, batch_shape: Shape, _instance: Any = None) -> RelaxedOneHotCatnat:
        """The same distribution over a larger batch."""
        new = self._get_checked_instance(RelaxedOneHotCatnat, _instance)
        new.parameterization, new.scores = self.parameterization, self.scores.expand((*batch_shape, -1))
        return super().expand(batch_shape, new)

    def log_prob(self, value: Tensor) -> Tensor:
        """The density's logarithm. torch's own way to it does not know an empty batch."""
        if self._validate_args:
            self._validate_sample(value)
        logs = value.log()
        return self.base_dist.log_prob(logs) - logs.sum(-1)


class MultiCatnat(Distribution):
    """Independent catnats of different sizes side by side, for actions with several parts (`MultiDiscrete`).

    ``scores`` [..., sum of (n - 1)] and ``mask`` [..., sum of n] hold the parts' one after the other; ``nvec`` says for
    every part how many classes, or a `catnat.Parameterization` of them. Other arguments as in `CatnatCategorical`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> action = ct.MultiCatnat(torch.zeros(7, 2 + 4), [3, 5]).sample()
        >>> action.shape
        torch.Size([7, 2])
    """

    arg_constraints = {"scores": _Scores()}  # noqa: RUF012
    has_enumerate_support = True

    @advised
    def __init__(
        self,
        scores: Tensor,
        nvec: Sequence[ParameterizationLike],
        *,
        mask: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        kinds = tuple(map(resolved, nvec)) if is_compiling() else parts_of(nvec)
        self.nvec = tuple(kind.num_classes for kind in kinds)
        check_scores(scores)
        check_width(sum(self.nvec) - len(self.nvec) + 1, scores.shape[-1], scores.shape)
        if mask is not None:
            check_mask(mask)
            if mask.shape[-1:] != (sum(self.nvec),):
                raise ValueError(f"mask must be sum(nvec) = {sum(self.nvec)} wide; got shape {tuple(mask.shape)}")
        masks = [None] * len(self.nvec) if mask is None else mask.split(self.nvec, -1)
        parts = scores.split([n - 1 for n in self.nvec], -1)
        self.parts = [
            CatnatCategorical(part, kind, mask=allowed, validate_args=validate_args)
            for part, kind, allowed in zip(parts, kinds, masks, strict=True)
        ]
        self.scores = scores
        super().__init__(self.parts[0].batch_shape, torch.Size([len(self.nvec)]), validate_args=validate_args)

    def __repr__(self) -> str:
        first, kinds = self.parts[0], [part.parameterization for part in self.parts]
        kind = kinds[0] if all(k == kinds[0] for k in kinds) else kinds
        masked = first.allowed is not None
        arrays = {"scores": self.scores, "mask": [*self.batch_shape, sum(self.nvec)] if masked else None}
        return f"MultiCatnat({repr_arguments(kind, arrays, nvec=self.nvec)})"

    @property
    def support(self) -> constraints.Constraint:
        """Class ids, part by part."""
        return _ClassIds(self.nvec)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Every combination of class ids: [product of nvec, ..., parts]."""
        ids = [torch.arange(n, device=self.scores.device) for n in self.nvec]
        values = torch.cartesian_prod(*ids).reshape(-1, *[1] * len(self._batch_shape), len(self.nvec))
        return values.expand((-1, *self._batch_shape, -1)) if expand else values

    @property
    def mode(self) -> Tensor:
        """The likeliest class of every part."""
        return torch.stack([part.mode for part in self.parts], -1)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode, under TorchRL's name."""
        return self.mode

    def expand(self, batch_shape: Shape, _instance: Any = None) -> MultiCatnat:
        """The same distribution over a larger batch."""
        new = self._get_checked_instance(MultiCatnat, _instance)
        new.nvec, new.scores = self.nvec, self.scores.expand((*batch_shape, -1))
        new.parts = [part.expand(batch_shape) for part in self.parts]
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def sample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw class ids [..., parts]."""
        return torch.stack([part.sample(sample_shape, generator=generator) for part in self.parts], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of class ids [..., parts], summed over the parts."""
        if self._validate_args:
            self._validate_sample(value)
        return torch.stack([part.log_prob(v) for part, v in zip(self.parts, value.unbind(-1), strict=True)], -1).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy in nats, summed over the parts."""
        return torch.stack([part.entropy() for part in self.parts], -1).sum(-1)


@register_kl(MultiCatnat, MultiCatnat)
def _kl_multi_multi(p: MultiCatnat, q: MultiCatnat) -> Tensor:
    if p.nvec != q.nvec:
        raise ValueError(f"KL needs the same nvec on both sides; got {p.nvec} and {q.nvec}")
    parts = [kl_divergence(a, b) for a, b in zip(p.parts, q.parts, strict=True)]
    return torch.stack(parts, -1).sum(-1)
