"""catnat in NumPyro: a categorical distribution given by K-1 scores, and its KL."""

from __future__ import annotations

try:
    import numpyro.distributions as dist
    from numpyro.distributions import kl_divergence
    from numpyro.distributions.util import lazy_property
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "catnat.integrations.numpyro needs NumPyro 0.15 or newer; in catnat's folder: pip install '.[numpyro]'"
    ) from missing

import jax.numpy as jnp
from jax import Array
from jax.nn import log_softmax

import catnat
import catnat.jax as cj

__all__ = ["CatnatCategorical"]


class CatnatCategorical(dist.CategoricalLogits):
    """A categorical distribution over 0..K-1 given by K-1 scores; in place of ``numpyro.distributions.Categorical``.

    Args:
        scores: [..., K-1].
        parameterization: a `catnat.Parameterization`, or the name (or value) of an activation on the balanced tree.
        mask: [..., K] boolean, True where a class is allowed. (The method ``.mask(...)`` is NumPyro's own.)
        mask_mode: ``"renormalize"`` or ``"prune"``, as in `catnat.jax.log_catnat`.
        validate_args: as in NumPyro.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.integrations.numpyro import CatnatCategorical
        >>> CatnatCategorical(jnp.zeros((5, 17))).sample(jax.random.key(0)).shape
        (5,)
    """

    arg_constraints = {"scores": dist.constraints.real_vector}  # noqa: RUF012 (NumPyro's own form)
    pytree_data_fields = ("scores", "allowed")
    pytree_aux_fields = ("parameterization", "mask_mode")

    def __init__(
        self,
        scores: Array,
        parameterization: catnat.Parameterization | catnat.Activation | str = "natural",
        *,
        mask: Array | None = None,
        mask_mode: str = "renormalize",
        validate_args: bool | None = None,
    ) -> None:
        checked = cj.CatnatCategorical(scores, parameterization, mask=mask, mask_mode=mask_mode)
        # as they came where possible: inside jit NumPyro can validate constants, and nothing that was traced
        self.scores, self.allowed = (scores, None) if mask is None else (checked.scores, checked.allowed)
        self.parameterization, self.mask_mode = parameterization, mask_mode
        dist.Distribution.__init__(self, checked.batch_shape, validate_args=validate_args)

    @lazy_property
    def logits(self) -> Array:
        """[..., K] normalised log-probabilities."""
        return cj.log_catnat(self.scores, self.parameterization, mask=self.allowed, mask_mode=self.mask_mode)

    def entropy(self) -> Array:
        """Entropy in nats; NumPyro's own is NaN where a class has probability 0."""
        return cj.entropy(self.scores, self.parameterization, mask=self.allowed, mask_mode=self.mask_mode)


PLAIN = (dist.CategoricalLogits, dist.CategoricalProbs)


@kl_divergence.register(CatnatCategorical, CatnatCategorical)
@kl_divergence.register(CatnatCategorical, PLAIN)
@kl_divergence.register(PLAIN, CatnatCategorical)
def _kl(p: dist.Distribution, q: dist.Distribution) -> Array:
    log_p, log_q = log_softmax(p.logits), log_softmax(q.logits)
    possible = jnp.exp(log_p) > 0  # elsewhere 0 log 0 = 0, and no NaN in the gradient
    return (jnp.exp(log_p) * (jnp.where(possible, log_p, 0) - jnp.where(possible, log_q, 0))).sum(-1)
