"""Several independent catnats side by side, for actions with several parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import register_pytree_with_keys_class

from catnat.core.errors import check_num_classes, check_width
from catnat.jax.distributions import CatnatCategorical, Distribution, Shape
from catnat.jax._inputs import ParameterizationLike, check_integers, check_mask, check_scores


@register_pytree_with_keys_class
class MultiCatnat(Distribution):
    """Independent catnats of different sizes side by side, for actions with several parts (`MultiDiscrete`).

    Args:
        scores: [..., sum of (n - 1)], the parts' scores one after the other.
        nvec: number of classes of every part.
        parameterization: the name (or value) of an activation for all parts, or one `Parameterization` a part.
        mask: [..., sum of n] allowed classes, the parts' one after the other.
        mask_mode: as in `CatnatCategorical`.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> action = cj.MultiCatnat(jnp.zeros((7, 2 + 4)), [3, 5]).sample(jax.random.key(0))
        >>> action.shape
        (7, 2)
    """

    _settings = ("parameterization", "mask_mode", "nvec")

    def __init__(
        self,
        scores: Array,
        nvec: Sequence[int],
        parameterization: ParameterizationLike | Sequence[ParameterizationLike] = "natural",
        *,
        mask: Array | None = None,
        mask_mode: str = "renormalize",
    ) -> None:
        if not isinstance(nvec, Iterable):
            raise TypeError(f"nvec must be a sequence of numbers of classes; got {nvec!r}")
        self.nvec = tuple(check_num_classes(n) for n in nvec)
        if not self.nvec:
            raise ValueError("nvec must name at least one part; got none")
        per_part = isinstance(parameterization, Sequence) and not isinstance(parameterization, str)
        kinds: Any = tuple(parameterization) if per_part else parameterization  # type: ignore[arg-type]
        if per_part and len(kinds) != len(self.nvec):
            raise ValueError(f"parameterization must name one a part: {len(self.nvec)}; got {len(kinds)}")
        self.parameterization = kinds
        scores = check_scores(scores)
        check_width(sum(self.nvec) - len(self.nvec) + 1, scores.shape[-1], scores.shape, called="axis")
        if mask is not None:
            mask = check_mask(mask)
            if mask.shape[-1:] != (sum(self.nvec),):
                raise ValueError(f"mask must be sum(nvec) = {sum(self.nvec)} wide; got shape {mask.shape}")
        self.scores, self.allowed, self.mask_mode = scores, mask, mask_mode
        for part in self.parts:  # what is wrong with a part's own scores or mask, it says itself
            CatnatCategorical(part.scores, part.parameterization, mask=part.allowed, mask_mode=mask_mode)
        if mask is not None:
            batch = jnp.broadcast_shapes(scores.shape[:-1], mask.shape[:-1])
            self.scores = jnp.broadcast_to(scores, (*batch, scores.shape[-1]))
            self.allowed = jnp.broadcast_to(mask, (*batch, mask.shape[-1]))

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return (len(self.nvec),)

    @property
    def parts(self) -> list[CatnatCategorical]:
        """The catnats, one a part."""
        count, kind = len(self.nvec), self.parameterization
        kinds = kind if isinstance(kind, tuple) else (kind,) * count
        scores = jnp.split(self.scores, list(accumulate(n - 1 for n in self.nvec))[:-1], axis=-1)
        masks: list[Any] = [None] * count
        if self.allowed is not None:
            masks = jnp.split(self.allowed, list(accumulate(self.nvec))[:-1], axis=-1)
        return [
            CatnatCategorical.tree_unflatten((kind, self.mask_mode), leaves)
            for kind, *leaves in zip(kinds, scores, masks, strict=True)
        ]

    @property
    def mode(self) -> Array:
        """The likeliest class of every part."""
        return jnp.stack([part.mode for part in self.parts], -1)

    def sample(self, key: Array, sample_shape: Shape = ()) -> Array:
        """Draw class ids [..., parts]."""
        keys = jax.random.split(key, len(self.nvec))
        return jnp.stack([part.sample(k, sample_shape) for part, k in zip(self.parts, keys, strict=True)], -1)

    def log_prob(self, value: Array) -> Array:
        """log p of class ids [..., parts], summed over the parts."""
        value = check_integers(value, "value")
        if value.shape[-1:] != self.event_shape:
            raise ValueError(f"value must hold one class id a part: {len(self.nvec)}; got shape {value.shape}")
        return _total([part.log_prob(value[..., i]) for i, part in enumerate(self.parts)])

    def entropy(self) -> Array:
        """Entropy in nats, summed over the parts."""
        return _total([part.entropy() for part in self.parts])

    def kl_divergence(self, other: MultiCatnat) -> Array:
        """KL(self || other) in nats, summed over the parts; trees, activations and masks may differ."""
        if not isinstance(other, MultiCatnat):
            raise TypeError(f"KL needs another MultiCatnat; got {type(other).__name__}")
        if self.nvec != other.nvec:
            raise ValueError(f"KL needs the same nvec on both sides; got {self.nvec} and {other.nvec}")
        return _total([p.kl_divergence(q) for p, q in zip(self.parts, other.parts, strict=True)])


def _total(parts: list[Array]) -> Array:
    return jnp.stack(parts, -1).sum(-1)
