"""catnat in distrax: a categorical distribution given by K-1 scores."""

from __future__ import annotations

from typing import Any

try:
    import distrax
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "catnat.integrations.distrax needs distrax 0.1.5 or newer; in catnat's folder: pip install '.[distrax]'"
    ) from missing

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import catnat
import catnat.jax as cj

__all__ = ["CatnatCategorical"]


class CatnatCategorical(distrax.Categorical):
    """A categorical distribution over 0..K-1 given by K-1 scores; in place of `distrax.Categorical`.

    Its leaves as a pytree are the scores and the mask, so `jax.grad` with respect to it is the gradient in the scores.

    Args:
        scores: [..., K-1].
        parameterization: a `catnat.Parameterization`, or the name (or value) of an activation on the balanced tree.
        mask: [..., K] boolean, True where a class is allowed.
        mask_mode: ``"renormalize"`` or ``"prune"``, as in `catnat.jax.log_catnat`.
        dtype: of the samples.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.integrations.distrax import CatnatCategorical
        >>> action, log_prob = CatnatCategorical(jnp.zeros((5, 17))).sample_and_log_prob(seed=0)
        >>> action.shape, log_prob.shape
        ((5,), (5,))
    """

    def __init__(
        self,
        scores: Array,
        parameterization: catnat.Parameterization | catnat.Activation | str = "natural",
        *,
        mask: Array | None = None,
        mask_mode: str = "renormalize",
        dtype: Any = int,
    ) -> None:
        if not jnp.issubdtype(dtype, jnp.integer) and not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"dtype must be one of integers or of floating-point numbers; got {dtype}")
        # Categorical's own would keep the logits beside the scores, and gradients would go to them
        distrax.Distribution.__init__(self)
        self.catnat = cj.CatnatCategorical(scores, parameterization, mask=mask, mask_mode=mask_mode)
        self.kind = dtype

    @property
    def scores(self) -> Array:
        """[..., K-1]."""
        return self.catnat.scores

    @property
    def logits(self) -> Array:
        """[..., K] normalised log-probabilities."""
        return self.catnat.logits

    @property
    def probs(self) -> Array:
        """[..., K] probabilities."""
        return self.catnat.probs

    @property
    def num_categories(self) -> int:
        """K."""
        return self.catnat.num_classes

    def _sample_n(self, key: Array, n: int) -> Array:
        drawn = self.catnat.sample(key, (n,))
        return jnp.where(jnp.isnan(self.scores).any(-1), -1, drawn).astype(self.kind)  # -1 as in distrax

    def log_prob(self, value: Any) -> Array:
        """log p of class ids; -inf of what is none, as in distrax."""
        index = jnp.clip(jnp.asarray(value), 0, self.num_categories - 1).astype(int)
        return jnp.where(index == value, self.catnat.log_prob(index), -jnp.inf)

    def entropy(self) -> Array:
        """Entropy in nats."""
        return self.catnat.entropy()

    def mode(self) -> Array:
        """The likeliest class."""
        return self.catnat.mode.astype(self.kind)

    def __getitem__(self, index: Any) -> CatnatCategorical:
        """The distributions at an index of the batch."""
        rows = np.arange(int(np.prod(self.batch_shape))).reshape(self.batch_shape)[index]  # the batch's axes alone
        return jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1])[rows], self)
