"""catnat in distrax: categorical distributions given by K-1 scores."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from operator import attrgetter
from typing import Any

from catnat.integrations import needs

with needs(__name__, "distrax 0.1.5"):
    import distrax

import jax
import jax.numpy as jnp
from jax import Array

import catnat
import catnat.jax as cj

__all__ = ["CatnatCategorical", "OneHotCatnat"]


class CatnatCategorical(distrax.Categorical):
    """A categorical distribution over 0..K-1 given by K-1 scores; in place of `distrax.Categorical`.

    Its leaves as a pytree are the scores and the mask, so `jax.grad` with respect to it is the gradient in the scores.
    Where there is no distribution (NaN scores, probabilities without mass) draws are -1, as in distrax. Arguments as in
    `catnat.jax.CatnatCategorical`; ``dtype`` is that of the samples.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.integrations.distrax import CatnatCategorical
        >>> action, log_prob = CatnatCategorical(jnp.zeros((5, 17)), 18).sample_and_log_prob(seed=0)
        >>> action.shape, log_prob.shape
        ((5,), (5,))
    """

    def __init__(
        self,
        scores: Array | None = None,
        parameterization: catnat.Parameterization | int | None = None,
        *,
        probs: Any = None,
        logits: Any = None,
        mask: Array | None = None,
        dtype: Any = int,
    ) -> None:
        if not jnp.issubdtype(dtype, jnp.integer) and not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"dtype must be one of integers or of floating-point numbers; got {dtype}")
        # Categorical's own would keep the logits beside the scores, and gradients would go to them
        distrax.Distribution.__init__(self)
        given: Any = {n: jnp.asarray(v)[None] for n, v in (("probs", probs), ("logits", logits)) if v is not None}
        if scores is None and len(given) == 1:
            # mapped, it cannot look at values, and makes NaN of what it would refuse
            made = jax.vmap(lambda one: cj.CatnatCategorical(None, parameterization, **one))(given)
            scores, parameterization, given = made.scores[0], made.parameterization, {}
        self.catnat = cj.CatnatCategorical(scores, parameterization, mask=mask, **given)
        self.kind = dtype

    scores = property(attrgetter("catnat.scores"), doc="[..., K-1].")
    logits = property(attrgetter("catnat.logits"), doc="[..., K] normalised log-probabilities.")
    probs = property(attrgetter("catnat.probs"), doc="[..., K] probabilities.")
    num_categories = property(attrgetter("catnat.num_classes"), doc="K.")

    def _choose(self, of: Callable[[cj.CatnatCategorical], Array]) -> Array:
        """The class ids that ``of`` picks, and -1 where scores are NaN."""
        lost = jnp.isnan(self.scores).any(-1, keepdims=True)
        usable = copy(self.catnat)
        usable.scores = jnp.where(lost, 0, self.scores)
        return jnp.where(lost[..., 0], -1, of(usable))

    def _sample_n(self, key: Array, n: int) -> Array:
        return self._choose(lambda usable: usable.sample(key, (n,))).astype(self.kind)

    def mode(self) -> Array:
        """The likeliest class."""
        return self._choose(lambda usable: usable.mode).astype(self.kind)

    def log_prob(self, value: Any) -> Array:
        """log p of class ids; -inf of what is none, as in distrax."""
        index = jnp.clip(jnp.asarray(value), 0, self.num_categories - 1).astype(int)
        return jnp.where(index == value, self.catnat.log_prob(index), -jnp.inf)

    def entropy(self) -> Array:
        """Entropy in nats."""
        return self.catnat.entropy()

    def __getitem__(self, index: Any) -> CatnatCategorical:
        """The distributions at an index of the batch."""
        found = copy(self)
        found.catnat = self.catnat[index]
        return found


class OneHotCatnat(CatnatCategorical, distrax.OneHotCategorical):
    """`CatnatCategorical` with one-hot samples; in place of `distrax.OneHotCategorical`.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.integrations.distrax import OneHotCatnat
        >>> OneHotCatnat(jnp.zeros((5, 3)), 4).sample(seed=0).shape
        (5, 4)
    """

    log_prob = distrax.OneHotCategorical.log_prob

    def _choose(self, of: Callable[[cj.CatnatCategorical], Array]) -> Array:
        index = super()._choose(of)[..., None]
        return jnp.where(index < 0, -1, index == jnp.arange(self.num_categories))
