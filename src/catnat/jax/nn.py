"""The functions with their settings kept, as callables that need no framework. No logic of their own.

They may sit inside an Equinox or Flax module and go through `jax.jit`: the settings are static, a weight is a leaf.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from jax import Array
from jax.tree_util import register_dataclass, register_static

from catnat.core.errors import MASK_MODES, REDUCTIONS, check_choice, check_share
from catnat.core.parameterization import resolve
from catnat.jax import functional
from catnat.jax._inputs import ParameterizationLike

STATIC = {"static": True}  # what JAX reads in the metadata of a field


@register_static
@dataclass(frozen=True)
class Catnat:
    """Probabilities of K classes from K-1 scores; in place of `jax.nn.softmax` where a module is wanted.

    Args:
        parameterization: a `catnat.Parameterization`, or the name (or value) of an activation on the balanced tree.
        axis: the axis of the scores, and of the classes in the result.
        mask_mode: ``"renormalize"`` or ``"prune"``, as in `catnat.jax.log_catnat`.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> head = cj.Catnat("sigmoid")
        >>> head(jnp.zeros((2, 9))).shape
        (2, 10)
    """

    parameterization: ParameterizationLike = "natural"
    axis: int = -1
    _: KW_ONLY
    mask_mode: str = "renormalize"

    def __post_init__(self) -> None:
        check_choice("mask_mode", self.mask_mode, MASK_MODES)
        resolve(self.parameterization, 1)  # a wrong one is refused here, not at the first call

    def __call__(self, scores: Array, mask: Array | None = None) -> Array:
        """[..., K-1] scores to [..., K] probabilities."""
        return functional.catnat(scores, self.parameterization, mask=mask, mask_mode=self.mask_mode, axis=self.axis)


@register_static
@dataclass(frozen=True)
class LogCatnat(Catnat):
    """Log-probabilities of K classes from K-1 scores; in place of `jax.nn.log_softmax` where a module is wanted."""

    def __call__(self, scores: Array, mask: Array | None = None) -> Array:
        """[..., K-1] scores to [..., K] log-probabilities."""
        return functional.log_catnat(scores, self.parameterization, mask=mask, mask_mode=self.mask_mode, axis=self.axis)


@register_dataclass
@dataclass(frozen=True, eq=False)  # a weight has no truth value to compare by
class CatnatCrossEntropyLoss:
    """- log p of the labels; `catnat.jax.cross_entropy` with its settings kept.

    Args:
        parameterization: as in `Catnat`.
        weight: [K] weight of every class, a leaf.
        ignore_index: a class id whose rows count for nothing.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        label_smoothing: share of the labels that is spread over all classes, in [0, 1].
        axis: the axis of the scores.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> loss = cj.CatnatCrossEntropyLoss(reduction="sum")
        >>> loss(jnp.zeros((2, 3)), jnp.array([0, 3])).round(2)
        Array(2.77, dtype=float32)
    """

    parameterization: ParameterizationLike = field(default="natural", metadata=STATIC)
    _: KW_ONLY
    weight: Array | None = None
    ignore_index: int = field(default=-100, metadata=STATIC)
    reduction: str = field(default="none", metadata=STATIC)
    label_smoothing: float = field(default=0.0, metadata=STATIC)
    axis: int = field(default=-1, metadata=STATIC)

    def __post_init__(self) -> None:
        check_choice("reduction", self.reduction, REDUCTIONS)
        check_share("label_smoothing", self.label_smoothing)
        resolve(self.parameterization, 1)

    def __call__(self, scores: Array, labels: Array, where: Array | None = None) -> Array:
        """Loss of [..., K-1] scores against class ids or probabilities; ``where`` as in `catnat.jax.cross_entropy`."""
        return functional.cross_entropy(
            scores,
            labels,
            self.parameterization,
            axis=self.axis,
            where=where,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
