"""The functions with their settings kept, as callables that need no framework. No logic of their own.

They may sit inside an Equinox or Flax module and go through `jax.jit`: the settings are static, a weight is a leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.tree_util import register_dataclass, register_static

from catnat.core.errors import REDUCTIONS, advised, check_choice, check_share
from catnat.core.parameterization import ParameterizationLike, repr_arguments, resolve
from catnat.jax import functional, sampling
from catnat.jax._compat import is_readable
from catnat.jax._dispatch import reads_paths
from catnat.jax._inputs import as_array, check_index, check_key, prepare_linear
from catnat.jax._wide import LinearWalk, TopK
from catnat.jax.distributions import CatnatCategorical

__all__ = ["Catnat", "CatnatCrossEntropyLoss", "CatnatLinear", "LogCatnat"]

STATIC = {"static": True}  # what JAX reads in the metadata of a field


@advised
@register_static
@dataclass(frozen=True)
class Catnat:
    """Probabilities of K classes from K-1 scores; in place of `jax.nn.softmax` where a module is wanted.

    Arguments as in `catnat.jax.log_catnat`.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> head = cj.Catnat(10)
        >>> head(jnp.zeros((2, 9))).shape
        (2, 10)
    """

    _function = staticmethod(functional.catnat)

    parameterization: ParameterizationLike
    axis: int = -1

    def __post_init__(self) -> None:
        resolve(self.parameterization)  # a wrong one is refused here, not at the first call

    def __repr__(self) -> str:
        return f"{type(self).__name__}({repr_arguments(self.parameterization, axis=self.axis)})"

    def __call__(self, scores: Array, mask: Array | None = None) -> Array:
        """[..., K-1] scores to [..., K] probabilities, or their logarithms."""
        return self._function(scores, self.parameterization, mask=mask, axis=self.axis)


@register_static
class LogCatnat(Catnat):
    """Log-probabilities of K classes from K-1 scores; in place of `jax.nn.log_softmax` where a module is wanted."""

    _function = staticmethod(functional.log_catnat)


@advised
@register_dataclass
@dataclass(frozen=True, eq=False)  # a weight has no truth value to compare by
class CatnatCrossEntropyLoss:
    """- log p of the labels; `catnat.jax.cross_entropy` with its settings kept, of which ``weight`` is a leaf.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> loss = cj.CatnatCrossEntropyLoss(4, reduction="sum")
        >>> loss(jnp.zeros((2, 3)), jnp.array([0, 3])).round(2)
        Array(2.77, dtype=float32)
    """

    parameterization: ParameterizationLike = field(metadata=STATIC)
    _: KW_ONLY
    weight: Array | None = None
    ignore_index: int = field(default=-100, metadata=STATIC)
    reduction: str = field(default="mean", metadata=STATIC)
    label_smoothing: float = field(default=0.0, metadata=STATIC)
    axis: int | None = field(default=None, metadata=STATIC)

    def __post_init__(self) -> None:
        check_choice("reduction", self.reduction, REDUCTIONS)
        check_share("label_smoothing", self.label_smoothing)
        resolve(self.parameterization)

    def __repr__(self) -> str:
        settings = {"reduction": self.reduction, "axis": self.axis}
        return f"{type(self).__name__}({repr_arguments(self.parameterization, {'weight': self.weight}, **settings)})"

    def __call__(self, scores: Array, labels: Array, where: Array | None = None) -> Array:
        """Loss of [..., K-1] scores against class ids or probabilities; ``where`` as in `catnat.jax.cross_entropy`."""
        return functional.cross_entropy(scores, labels, where=where, **vars(self))


@advised
@register_dataclass
@dataclass(frozen=True, eq=False)
class CatnatLinear:
    """A linear layer of the right width with a catnat on top: the head of a classifier or of a policy.

    It is a pytree, so it may be a field of an Equinox module or an entry of a dict of parameters. Make one with
    `init`. A ``mask`` is as in `catnat.jax.log_catnat`.

    From 2,048 classes on `loss`, `log_prob` and `sample` read one path of the tree: of K-1 rows of weights, about
    log2 K. These may be differentiated as `catnat_linear_loss` may.

    Its leaves are the ``weight`` [num_classes - 1, in_features] and the ``bias`` [num_classes - 1], or None.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> head = cj.CatnatLinear.init(jax.random.key(0), 16, 10)
        >>> head(jnp.zeros((2, 16))).shape, head.loss(jnp.zeros((2, 16)), jnp.array([3, 9])).round(4)
        ((2, 10), Array(2.3026, dtype=float32))
    """

    weight: Array
    bias: Array | None
    parameterization: ParameterizationLike = field(metadata=STATIC)

    def __repr__(self) -> str:
        arrays = {"weight": self.weight, "bias": self.bias}
        return f"{type(self).__name__}({repr_arguments(self.parameterization, arrays)})"

    @classmethod
    @advised
    def init(
        cls,
        key: Array,
        in_features: int,
        parameterization: ParameterizationLike,
        *,
        class_frequencies: Array | None = None,
        bias: bool = True,
    ) -> CatnatLinear:
        """Weights as of `torch.nn.Linear`, around the uniform distribution or around ``class_frequencies`` [K]."""
        pi = resolve(parameterization)
        bound = in_features**-0.5
        weight = jax.random.uniform(check_key(key), (pi.num_nodes, in_features), minval=-bound, maxval=bound)
        if class_frequencies is None:
            return cls(weight, jnp.zeros(pi.num_nodes) if bias else None, pi)
        if not bias:
            raise ValueError("class_frequencies need a bias to start from; got bias=False")
        if is_readable(class_frequencies) and not (np.asarray(class_frequencies) > 0).all():
            raise ValueError("class_frequencies must be above 0: a class that never comes has no finite score")
        return cls(weight, functional.scores_from_probs(class_frequencies, pi), pi)

    def scores(self, x: Array) -> Array:
        """[..., in_features] to [..., K-1] scores."""
        scores = x @ self.weight.T
        return scores if self.bias is None else scores + self.bias

    def log_probs(self, x: Array, **masking: Any) -> Array:
        """[..., in_features] to [..., K] log-probabilities."""
        return functional.log_catnat(self.scores(x), self.parameterization, **masking)

    __call__ = log_probs

    def loss(
        self,
        x: Array,
        labels: Array,
        *,
        where: Array | None = None,
        weight: Array | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Array:
        """- log p of the labels; settings as in `catnat.jax.cross_entropy`.

        Class ids without label smoothing or ``where`` need the scores on their paths alone.
        """
        settings: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction}
        has_ids = jnp.issubdtype(as_array(labels, "labels").dtype, jnp.integer)
        if has_ids and where is None and not label_smoothing and self._path_walk(x) is not None:
            parts = self.weight, self.bias, x, labels, self.parameterization
            return functional.catnat_linear_loss(*parts, class_weight=weight, **settings)
        settings |= {"where": where, "weight": weight, "label_smoothing": label_smoothing, "axis": -1}
        return functional.cross_entropy(self.scores(x), labels, self.parameterization, **settings)

    def log_prob(self, x: Array, index: Array) -> Array:
        """log p of classes whose shape broadcasts with the batch of [..., in_features]: one per row, or several."""
        walk = self._path_walk(x)
        if walk is None:
            return functional.log_prob(self.scores(x), index, self.parameterization)
        return walk.log_prob(x, check_index(index, walk.plan)).astype(jnp.result_type(self.weight, x))

    def sample(self, key: Array, x: Array, *, sample_shape: Sequence[int] = (), **masking: Any) -> Array:
        """Class ids drawn by tree descent; settings as in `catnat.jax.sample`."""
        if masking.get("mask") is None and self._path_walk(x) is not None:
            parts = self.weight, self.bias, x, self.parameterization
            return sampling.catnat_linear_sample(key, *parts, sample_shape=sample_shape)
        return sampling.sample(key, self.scores(x), self.parameterization, sample_shape=sample_shape, **masking)

    def topk(self, x: Array, k: int, *, beam: int | None = None) -> TopK:
        """The ``k`` likeliest classes of every row and their log-probabilities: [..., k] each.

        Without a ``beam`` all K scores are computed. A number, at least k, follows that many subtrees down the tree
        instead. What it finds has its right log-probability, but a likelier class may have been missed, in a subtree
        that was unlikely as a whole.
        """
        walk, x, dtype = prepare_linear(self.weight, self.bias, x, self.parameterization)
        size = walk.plan.num_classes
        if not 1 <= k <= size:
            raise ValueError(f"k must lie in [1, {size}]; got {k}")
        if beam is None:
            return TopK(*lax.top_k(self.log_probs(x), k))
        if beam < k:
            raise ValueError(f"beam must be at least k = {k}; got {beam}")
        log_p, classes = walk.topk(x, k=k, beam=min(beam, size))
        return TopK(log_p.astype(dtype), classes)

    def mode(self, x: Array, *, beam: int | None = None, **masking: Any) -> Array:
        """The likeliest class of every row, about which the largest score says nothing; ``beam`` as in `topk`."""
        if beam is not None:
            return self.topk(x, 1, beam=beam).classes[..., 0]
        return sampling.mode(self.scores(x), self.parameterization, **masking)

    def distribution(self, x: Array, **masking: Any) -> CatnatCategorical:
        """The distribution of every row."""
        return CatnatCategorical(self.scores(x), self.parameterization, **masking)

    def _path_walk(self, x: Array) -> LinearWalk | None:
        """The walk along one path; None where all scores are as fast."""
        walk, _, _ = prepare_linear(self.weight, self.bias, x, self.parameterization)
        return walk if reads_paths(walk.plan) else None
