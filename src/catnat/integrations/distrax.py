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
import numpy as np
from jax import Array

import catnat
import catnat.jax as cj

__all__ = ["CatnatCategorical"]


class CatnatCategorical(distrax.Categorical):
    """A categorical distribution over 0..K-1 given by K-1 scores; in place of `distrax.Categorical`.

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
        self.catnat = cj.CatnatCategorical(scores, parameterization, mask=mask, mask_mode=mask_mode)
        super().__init__(logits=self.catnat.logits, dtype=dtype)

    @property
    def scores(self) -> Array:
        """[..., K-1]."""
        return self.catnat.scores

    def entropy(self) -> Array:
        """Entropy in nats."""
        return self.catnat.entropy()

    def __getitem__(self, index: Any) -> CatnatCategorical:
        """The distributions at an index of the batch."""
        rows = np.arange(int(np.prod(self.batch_shape))).reshape(self.batch_shape)[index]  # the batch's axes alone
        part = jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1])[rows], self.catnat)
        return CatnatCategorical(
            part.scores, part.parameterization, mask=part.allowed, mask_mode=part.mask_mode, dtype=self.dtype
        )
