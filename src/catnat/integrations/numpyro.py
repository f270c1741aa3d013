"""catnat in NumPyro: categorical distributions given by K-1 scores, and their KL."""

from __future__ import annotations

from catnat.integrations import needs

with needs(__name__, "NumPyro 0.15"):
    import numpyro.distributions as dist
    from numpyro.distributions import kl_divergence
    from numpyro.distributions.util import lazy_property, validate_sample

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import log_softmax

import catnat
import catnat.jax as cj

__all__ = ["CatnatCategorical", "OneHotCatnat"]


class _Number(type(dist.constraints.real)):  # type: ignore[misc]  # its class has no public name
    """Any number, infinite ones too: where probabilities are 0 scores are infinite."""

    def __call__(self, x: Array) -> Array:
        return x == x  # false for NaN


class _OneHot(dist.constraints.multinomial):
    """A vector of zeros and one 1."""

    def __call__(self, x: Array) -> Array:
        return super().__call__(x) & ((x == 0) | (x == 1)).all(-1)


PLAIN = dist.CategoricalLogits, dist.CategoricalProbs
_NUMBERS = dist.constraints.independent(_Number(), 1)
dist.biject_to.register(_Number, lambda _: dist.transforms.IdentityTransform())


class CatnatCategorical(dist.CategoricalLogits):
    """A categorical distribution over 0..K-1 given by K-1 scores; in place of ``numpyro.distributions.Categorical``.

    Arguments as in `catnat.jax.CatnatCategorical`; ``validate_args`` as in NumPyro. (The method
    ``.mask(...)`` is NumPyro's own.)

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.integrations.numpyro import CatnatCategorical
        >>> CatnatCategorical(jnp.zeros((5, 17)), 18).sample(jax.random.key(0)).shape
        (5,)
    """

    arg_constraints = {  # noqa: RUF012 (NumPyro's own form)
        "scores": _NUMBERS,
        "logits": _NUMBERS,
        "probs": dist.constraints.simplex,
    }
    pytree_data_fields = ("scores", "allowed")
    pytree_aux_fields = ("parameterization",)
    _kind = cj.CatnatCategorical

    def __init__(
        self,
        scores: Array | None = None,
        parameterization: catnat.Parameterization | int | None = None,
        *,
        probs: Array | None = None,
        logits: Array | None = None,
        mask: Array | None = None,
        validate_args: bool | None = None,
    ) -> None:
        made = self._kind(scores, parameterization, probs=probs, logits=logits, mask=mask)
        # as they came where possible: inside jit NumPyro can validate constants, and nothing that was traced
        self.scores = made.scores if scores is None or mask is not None else scores
        self.allowed, self.parameterization = made.allowed, made.parameterization
        dist.Distribution.__init__(self, made.batch_shape, made.event_shape, validate_args=validate_args)

    @lazy_property
    def logits(self) -> Array:
        """[..., K] normalised log-probabilities."""
        return cj.log_catnat(self.scores, self.parameterization, mask=self.allowed)

    def entropy(self) -> Array:
        """Entropy in nats."""
        return cj.entropy(self.scores, self.parameterization, mask=self.allowed)


class OneHotCatnat(CatnatCategorical):
    """`CatnatCategorical` with one-hot samples.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.integrations.numpyro import OneHotCatnat
        >>> OneHotCatnat(jnp.zeros((5, 3)), 4).sample(jax.random.key(0)).shape
        (5, 4)
    """

    _kind = cj.OneHotCatnat
    support = _OneHot(1)

    @property
    def mean(self) -> Array:
        """[..., K] the probabilities."""
        return self.probs

    @property
    def variance(self) -> Array:
        """[..., K] that of every entry."""
        return self.probs * (1 - self.probs)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw one-hot vectors."""
        return jax.nn.one_hot(super().sample(key, sample_shape), *self.event_shape, dtype=self.logits.dtype)

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        """log p of one-hot vectors."""
        return cj.log_prob(self.scores, jnp.argmax(value, -1), self.parameterization, mask=self.allowed)

    def enumerate_support(self, expand: bool = True) -> Array:
        """Every one-hot vector."""
        return jax.nn.one_hot(super().enumerate_support(expand), *self.event_shape, dtype=self.logits.dtype)


@kl_divergence.register(CatnatCategorical, CatnatCategorical)
@kl_divergence.register(CatnatCategorical, PLAIN)
@kl_divergence.register(PLAIN, CatnatCategorical)
def _kl(p: dist.Distribution, q: dist.Distribution) -> Array:
    log_p, log_q = log_softmax(p.logits), log_softmax(q.logits)
    if log_p.shape[-1] != log_q.shape[-1]:
        raise ValueError(f"KL needs equally many classes; got {log_p.shape[-1]} and {log_q.shape[-1]}")
    possible = jnp.exp(log_p) > 0  # elsewhere 0 log 0 = 0, and no NaN in the gradient
    return (jnp.exp(log_p) * (jnp.where(possible, log_p, 0) - jnp.where(possible, log_q, 0))).sum(-1)
