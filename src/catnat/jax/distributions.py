"""Categorical distributions on catnat as plain classes: pytrees whose leaves are arrays and whose settings are static.

They go into and come out of jit, vmap, grad and scan. Every leaf has the batch's axes in front, so that mapping over a
distribution maps over its batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.tree_util import GetAttrKey, register_pytree_with_keys_class

from catnat.core.errors import advised, check_classes, check_width
from catnat.core.parameterization import Parameterization, ParameterizationLike, parts_of, repr_arguments, resolve
from catnat.jax import _inputs, functional, sampling
from catnat.jax._eager import p_log_ratio
from catnat.jax._inputs import as_array, at_least_single, check_floating, prepare, prepare_probs
from catnat.jax._noise import check_temperature, gumbel, relaxed_density, soften

__all__ = ["CatnatCategorical", "MultiCatnat", "OneHotCatnat", "OneHotCatnatStraightThrough", "RelaxedOneHotCatnat"]

Shape = Sequence[int]


class Distribution:
    """What every distribution here has: leaves by name and one setting, a batch, draws with their log p."""

    _leaves: tuple[str, ...] = ("scores", "allowed")
    parameterization: Any  # of every part, where there are several
    scores: Array
    allowed: Array | None = None  # the name that it has in PyTorch too
    sample: Any  # what every kind has of its own: draws from a key, and log p of values
    log_prob: Any

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the independent distributions side by side."""
        return tuple(self.scores.shape[:-1])

    @property
    def mask(self) -> Array | None:
        """[..., K] the classes that are allowed, or None: the same as ``allowed``."""
        return self.allowed

    def _keep(self, scores: Array, mask: Array | None) -> None:
        """Keep scores and mask, both with the whole batch."""
        if mask is not None:
            batch = jnp.broadcast_shapes(scores.shape[:-1], mask.shape[:-1])
            scores, mask = (jnp.broadcast_to(leaf, (*batch, leaf.shape[-1])) for leaf in (scores, mask))
        self.scores, self.allowed = scores, mask

    def expand(self, batch_shape: Shape) -> Self:
        """The same distribution over a larger batch."""
        axes = len(self.batch_shape)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*batch_shape, *leaf.shape[axes:])), self)

    def __getitem__(self, index: Any) -> Self:
        """The distributions at an index of the batch."""
        batch = self.batch_shape
        rows: Any = np.arange(math.prod(batch)).reshape(batch)
        if any(isinstance(part, Tracer) for part in jax.tree.leaves(index)):
            rows = jnp.asarray(rows)  # NumPy refuses what is out of range, but takes no tracers
        return jax.tree.map(lambda leaf: leaf.reshape(rows.size, *leaf.shape[len(batch) :])[rows[index]], self)

    def sample_and_log_prob(self, key: Array, sample_shape: Shape = ()) -> tuple[Array, Array]:
        """Draws and their log p."""
        drawn = self.sample(key, sample_shape)
        return drawn, self.log_prob(drawn)

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[GetAttrKey, Any], ...], Any]:
        """The leaves by name, and the setting."""
        return tuple((GetAttrKey(name), getattr(self, name)) for name in self._leaves), self.parameterization

    @classmethod
    def tree_unflatten(cls, parameterization: Any, leaves: Sequence[Any]) -> Self:
        """From leaves as they are: JAX puts tracers, None and other objects in the place of arrays."""
        new = object.__new__(cls)
        vars(new).update(zip(cls._leaves, leaves, strict=True), parameterization=parameterization)
        return new

    def __repr__(self) -> str:
        arrays = {name.replace("allowed", "mask"): getattr(self, name) for name in self._leaves}
        nvec = getattr(self, "nvec", None)
        return f"{type(self).__name__}({repr_arguments(self.parameterization, arrays, nvec=nvec)})"


class OverClasses(Distribution):
    """What has probabilities of K classes."""

    @property
    def num_classes(self) -> int:
        """K."""
        return int(self.scores.shape[-1]) + 1

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return (self.num_classes,)

    @property
    def logits(self) -> Array:
        """[..., K] normalised log-probabilities of the classes."""
        return functional.log_catnat(self.scores, self.parameterization, mask=self.allowed)

    @property
    def probs(self) -> Array:
        """[..., K] probabilities of the classes."""
        return functional.catnat(self.scores, self.parameterization, mask=self.allowed)

    def _single_logits(self) -> Array:
        """The logits in float32 at least."""
        return functional.log_catnat(at_least_single(self.scores), self.parameterization, mask=self.allowed)

    def _wide(self, value: Any) -> Array:
        """``value`` as an array of JAX's, or raise unless it has K numbers a row."""
        value = as_array(value, "value")
        check_classes("value", self.num_classes, value.shape[-1] if value.ndim else 0, value.shape)
        return value


@register_pytree_with_keys_class
class CatnatCategorical(OverClasses):
    """A categorical distribution over 0..K-1 given by K-1 scores; in place of `distrax.Categorical`.

    `log_prob` and `sample` touch only the paths of their classes; `entropy` and KL between two catnats on one tree use
    the tree's decomposition. `probs` and `logits` (normalised) are computed when asked for. ``policy[0]`` is the first
    of a batch.

    Args:
        scores: [..., K-1]; ``parameterization`` and ``mask`` as in `catnat.jax.log_catnat`. (`jax.grad` with respect to
            a distribution that has a mask needs ``allow_int=True``.)
        probs: [..., K] probabilities in place of scores, up to a factor; as many classes as there are, unless
            ``parameterization`` is given.
        logits: [..., K] log-probabilities in place of scores, up to a constant. Rows of either without any mass, or
            with NaN or infinite mass, are refused or, where values cannot be looked at (under `jax.jit`), made NaN.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> policy = cj.CatnatCategorical(jnp.zeros((5, 17)), 18)
        >>> action = policy.sample(jax.random.key(0))
        >>> policy.log_prob(action).shape, policy.entropy().shape
        ((5,), (5,))
    """

    @advised
    def __init__(
        self,
        scores: Array | None = None,
        parameterization: ParameterizationLike | None = None,
        *,
        probs: Array | None = None,
        logits: Array | None = None,
        mask: Array | None = None,
    ) -> None:
        scores, self.parameterization = _given(scores, probs, logits, parameterization)
        self._keep(scores, prepare(scores, self.parameterization, mask)[2])

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return ()

    @property
    def mode(self) -> Array:
        """The likeliest class."""
        return sampling.mode(self.scores, self.parameterization, mask=self.allowed)

    def sample(self, key: Array, sample_shape: Shape = ()) -> Array:
        """Draw class ids by tree descent."""
        return sampling.sample(key, self.scores, self.parameterization, sample_shape=sample_shape, mask=self.allowed)

    def log_prob(self, value: Array | int) -> Array:
        """log p of class ids."""
        index: Any = jnp.asarray(value) if isinstance(value, int) and not isinstance(value, bool) else value
        return functional.log_prob(self.scores, index, self.parameterization, mask=self.allowed)

    def entropy(self) -> Array:
        """Entropy in nats."""
        return functional.entropy(self.scores, self.parameterization, mask=self.allowed)

    def kl_divergence(self, other: CatnatCategorical) -> Array:
        """KL(self || other) in nats; trees, activations and masks may differ."""
        if not isinstance(other, CatnatCategorical):
            raise TypeError(f"KL needs two distributions over classes; got {type(other).__name__}")
        if self.num_classes != other.num_classes:
            raise ValueError(f"KL needs equally many classes; got {self.num_classes} and {other.num_classes}")
        if self.parameterization == other.parameterization and self.allowed is None and other.allowed is None:
            return functional.kl_divergence(self.scores, other.scores, self.parameterization)
        found = p_log_ratio(self._single_logits(), other._single_logits()).sum(-1)
        return found.astype(jnp.promote_types(self.scores.dtype, other.scores.dtype))


@register_pytree_with_keys_class
class OneHotCatnat(CatnatCategorical):
    """`CatnatCategorical` with one-hot samples; in place of `distrax.OneHotCategorical`.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> cj.OneHotCatnat(jnp.zeros((5, 3)), 4).sample(jax.random.key(0)).shape
        (5, 4)
    """

    event_shape = OverClasses.event_shape

    @property
    def mode(self) -> Array:
        """The likeliest class, one-hot."""
        return self._one_hot(super().mode)

    def sample(self, key: Array, sample_shape: Shape = ()) -> Array:
        """Draw one-hot vectors by tree descent."""
        return self._one_hot(super().sample(key, sample_shape))

    def log_prob(self, value: Array) -> Array:  # type: ignore[override]  # no class id
        """log p of one-hot vectors."""
        return super().log_prob(self._wide(value).argmax(-1))

    def _one_hot(self, index: Array) -> Array:
        return jax.nn.one_hot(index, self.num_classes, dtype=self.scores.dtype)


@register_pytree_with_keys_class
class OneHotCatnatStraightThrough(OneHotCatnat):
    """One-hot samples whose gradient is that of the probabilities; biased, low variance.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> cost = lambda s: cj.OneHotCatnatStraightThrough(s, 4).rsample(jax.random.key(0)) @ jnp.arange(4.0)
        >>> jax.grad(cost)(jnp.zeros(3)).round(3)
        Array([0.5  , 0.125, 0.125], dtype=float32)
    """

    def rsample(self, key: Array, sample_shape: Shape = ()) -> Array:
        """Draw one-hot vectors, with the probabilities' gradient."""
        return self.sample(key, sample_shape) + (self.probs - lax.stop_gradient(self.probs))


@register_pytree_with_keys_class
class RelaxedOneHotCatnat(OverClasses):
    """Gumbel-softmax samples around catnat probabilities; PyTorch's `RelaxedOneHotCategorical`.

    The ``temperature`` is above 0, a number or one a row, of the scores' batch shape; towards 0 the samples become
    one-hot. What follows is as in `CatnatCategorical`, but for a mask: a relaxed sample has mass everywhere.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> cj.RelaxedOneHotCatnat(0.5, jnp.zeros(3), 4).rsample(jax.random.key(0)).shape
        (4,)
    """

    _leaves = ("temperature", "scores")

    @advised
    def __init__(
        self,
        temperature: Array | float,
        scores: Array | None = None,
        parameterization: ParameterizationLike | None = None,
        *,
        probs: Array | None = None,
        logits: Array | None = None,
    ) -> None:
        self.scores, self.parameterization = _given(scores, probs, logits, parameterization)
        _, x, _, _ = prepare(self.scores, self.parameterization)
        batch = x.shape[:-1]
        self.temperature = jnp.broadcast_to(jnp.asarray(check_temperature(temperature, batch), x.dtype), batch)

    def rsample(self, key: Array, sample_shape: Shape = ()) -> Array:
        """Draw points of the simplex, differentiable in the scores and in the temperature."""
        _, soft = perturb(key, self._single_logits(), self.temperature, sample_shape)
        return soft.astype(self.scores.dtype)

    def sample(self, key: Array, sample_shape: Shape = ()) -> Array:
        """Draw points of the simplex, without a gradient."""
        return lax.stop_gradient(self.rsample(key, sample_shape))

    def log_prob(self, value: Array) -> Array:
        """Log-density of points of the simplex."""
        log_p = self._single_logits()
        return relaxed_density(self._wide(value).astype(log_p.dtype), log_p, self.temperature).astype(self.scores.dtype)


@register_pytree_with_keys_class
class MultiCatnat(Distribution):
    """Independent catnats of different sizes side by side, for actions with several parts (`MultiDiscrete`).

    Args:
        scores: [..., sum of (n - 1)], the parts' scores one after the other.
        nvec: for every part how many classes, or a `catnat.Parameterization` of them.
        mask: [..., sum of n] allowed classes, the parts' one after the other.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> action = cj.MultiCatnat(jnp.zeros((7, 2 + 4)), [3, 5]).sample(jax.random.key(0))
        >>> action.shape
        (7, 2)
    """

    @advised
    def __init__(self, scores: Array, nvec: Sequence[ParameterizationLike], *, mask: Array | None = None) -> None:
        self.parameterization = parts_of(nvec)
        scores = check_floating(scores, "scores")
        check_width(sum(self.nvec) - len(self.nvec) + 1, scores.shape[-1], scores.shape, called="axis")
        if mask is not None:
            mask = _inputs.check_mask(mask)
            if mask.shape[-1:] != (sum(self.nvec),):
                raise ValueError(f"mask must be sum(nvec) = {sum(self.nvec)} wide; got shape {mask.shape}")
        self.scores, self.allowed = scores, mask
        for part in self.parts:  # what is wrong with a part's own scores or mask, it says itself
            CatnatCategorical(part.scores, part.parameterization, mask=part.allowed)
        self._keep(scores, mask)

    @property
    def nvec(self) -> tuple[int, ...]:
        """How many classes every part has."""
        return tuple(part.num_classes for part in self.parameterization)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return (len(self.nvec),)

    @property
    def parts(self) -> list[CatnatCategorical]:
        """The catnats, one a part."""
        scores = jnp.split(self.scores, list(accumulate(n - 1 for n in self.nvec))[:-1], axis=-1)
        masks: list[Any] = [None] * len(self.nvec)
        if self.allowed is not None:
            masks = jnp.split(self.allowed, list(accumulate(self.nvec))[:-1], axis=-1)
        return [
            CatnatCategorical.tree_unflatten(kind, leaves)
            for kind, *leaves in zip(self.parameterization, scores, masks, strict=True)
        ]

    @property
    def mode(self) -> Array:
        """The likeliest class of every part."""
        return jnp.stack([part.mode for part in self.parts], -1)

    def sample(self, key: Array, sample_shape: Shape = ()) -> Array:
        """Draw class ids [..., parts]."""
        keys = jax.random.split(_inputs.check_key(key), len(self.nvec))
        return jnp.stack([part.sample(k, sample_shape) for part, k in zip(self.parts, keys, strict=True)], -1)

    def log_prob(self, value: Array) -> Array:
        """log p of class ids [..., parts], summed over the parts."""
        value = _inputs.check_integers(value, "value")
        if value.shape[-1:] != self.event_shape:
            raise ValueError(f"value must hold one class id a part: {len(self.nvec)}; got shape {value.shape}")
        return sum(part.log_prob(value[..., i]) for i, part in enumerate(self.parts))  # type: ignore[return-value]

    def entropy(self) -> Array:
        """Entropy in nats, summed over the parts."""
        return sum(part.entropy() for part in self.parts)  # type: ignore[return-value]

    def kl_divergence(self, other: MultiCatnat) -> Array:
        """KL(self || other) in nats, summed over the parts; trees, activations and masks may differ."""
        if not isinstance(other, MultiCatnat):
            raise TypeError(f"KL needs another MultiCatnat; got {type(other).__name__}")
        if self.nvec != other.nvec:
            raise ValueError(f"KL needs the same nvec on both sides; got {self.nvec} and {other.nvec}")
        return sum(p.kl_divergence(q) for p, q in zip(self.parts, other.parts, strict=True))  # type: ignore[return-value]


def perturb(key: Array, log_p: Array, temperature: Array | float, sample_shape: Shape = ()) -> tuple[Array, Array]:
    """log p plus Gumbel noise, and the softmax of that at a temperature."""
    shape = (*_inputs.check_shape("sample_shape", sample_shape), *log_p.shape)
    perturbed = log_p + gumbel(_inputs.check_key(key), shape, log_p.dtype)
    return perturbed, soften(perturbed, temperature)


def _given(
    scores: Array | None, probs: Array | None, logits: Array | None, parameterization: ParameterizationLike | None
) -> tuple[Array, Parameterization]:
    """The scores that came, or those whose distribution has the given probabilities or logits; and their meaning."""
    given = {name: v for name, v in (("scores", scores), ("probs", probs), ("logits", logits)) if v is not None}
    if len(given) != 1:
        raise ValueError(f"exactly one of scores, probs and logits must be given; got {' and '.join(given) or 'none'}")
    if scores is not None:
        return check_floating(scores, "scores"), resolve(parameterization)  # type: ignore[arg-type]  # refuses None
    ((name, classes),) = given.items()
    classes = as_array(classes, name)
    if jnp.issubdtype(classes.dtype, jnp.integer):
        classes = classes.astype(float)
    classes = check_floating(classes, name)
    # as many classes as there are probabilities: nothing to be mistaken for something else
    pi = resolve(classes.shape[-1] if parameterization is None else parameterization)
    walk, x, dtype = prepare_probs(classes, pi, -1, name)
    found = walk.scores_of_probs(x) if logits is None else walk.scores_of_log_probs(x)
    logs = lax.stop_gradient(jnp.log(x) if logits is None else x)
    # what cannot be refused under a transformation must not go on as a distribution either
    return jnp.where(jnp.isfinite(logs.max(-1, keepdims=True)), found, jnp.nan).astype(dtype), pi
