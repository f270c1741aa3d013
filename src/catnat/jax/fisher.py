"""The paper's theory as functions: Fisher matrices of catnat, of softmax and of any head."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from catnat.core.errors import advised, check_nonnegative
from catnat.core.parameterization import ParameterizationLike
from catnat.jax._inputs import check_floating, check_number, prepare, to_axis

__all__ = ["fisher_diagonal", "fisher_matrix", "natural_gradient", "softmax_fisher"]


@advised
def fisher_diagonal(scores: Array, parameterization: ParameterizationLike, *, axis: int = -1) -> Array:
    """The Fisher matrix of a catnat in its scores, which is diagonal: P(a_i) a'(s_i)^2 / (a (1-a)). O(K).

    This is Theorem 1 of the paper. With the natural activation the second factor is (pi/A)^2 wherever the score is
    inside its natural range (Corollary 1). Beyond, it is a (1-a) s^2, s the slope of the straight line; with ``tail=0``
    it is 0. Arguments as in `catnat.jax.log_catnat`, but for a mask: given one, the matrix is not diagonal.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.fisher_diagonal(jnp.zeros(3), 4).round(3)
        Array([0.25 , 0.125, 0.125], dtype=float32)
    """
    walk, x, _, dtype = prepare(scores, parameterization, axis=axis)
    return to_axis(walk.fisher_diagonal(x).astype(dtype), axis)


@advised
def natural_gradient(
    scores: Array, parameterization: ParameterizationLike, *, damping: Array | float = 0.0, axis: int = -1
) -> Array:
    """The scores themselves; their derivative is divided by (Fisher diagonal + damping).

    With ``damping=0`` the gradient through it is the exact natural gradient in the scores (0 where the Fisher
    information is 0). Nodes deep in the tree are rarely reached, so their Fisher information is small and noise in
    their gradient is blown up: with noisy gradients start from ``damping=0.1``.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> jax.grad(lambda s: cj.log_catnat(cj.natural_gradient(s, 4), 4)[0])(jnp.zeros(3)).round()
        Array([-2., -4.,  0.], dtype=float32)
    """
    scores = check_floating(scores, "scores")
    damping = check_number("damping", damping, check_nonnegative)
    divisor = fisher_diagonal(lax.stop_gradient(scores), parameterization, axis=axis) + damping
    return _divide(jnp.broadcast_to(scores, divisor.shape), lax.stop_gradient(divisor).astype(scores.dtype))


@jax.custom_jvp
def _divide(scores: Array, divisor: Array) -> Array:
    """Identity whose derivative is divided, and 0 where the divisor is."""
    return scores


@_divide.defjvp
def _divide_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (scores, divisor), (tangent, _) = primals, tangents
    return scores, jnp.where(divisor == 0, 0, tangent / jnp.where(divisor == 0, 1, divisor))


def softmax_fisher(logits: Array) -> Array:
    """The Fisher matrix of softmax in its logits, diag(p) - p p^T: dense (Proposition 1 of the paper).

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.softmax_fisher(jnp.zeros(2))
        Array([[ 0.25, -0.25],
               [-0.25,  0.25]], dtype=float32)
    """
    p = jax.nn.softmax(logits, axis=-1)
    return p[..., None] * (jnp.eye(p.shape[-1], dtype=p.dtype) - p[..., None, :])


def fisher_matrix(log_probs: Callable[[Array], Array], scores: Array) -> Array:
    """The Fisher matrix of any head by automatic differentiation: sum over classes of p_k grad log p_k grad log p_k^T.

    ``log_probs`` maps one row of scores [S] to log-probabilities [K], as `jax.nn.log_softmax` does; from scores
    [..., S] come matrices [..., S, S].

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.fisher_matrix(lambda s: cj.log_catnat(s, 4), jnp.zeros(3)).diagonal().round(3)
        Array([0.25 , 0.125, 0.125], dtype=float32)
    """

    def of_row(row: Array) -> Array:
        gradients = jax.jacrev(log_probs)(row)  # [K, S]
        # a class of probability 0 weighs nothing, even where its log has no gradient
        p = jnp.exp(log_probs(row))[:, None]
        outer = jnp.where(p > 0, gradients, 0).T, jnp.where(p > 0, p * gradients, 0)
        return jnp.matmul(*outer, precision=lax.Precision.HIGHEST)  # accelerators would take fewer digits

    rows = scores.reshape(-1, scores.shape[-1])
    return jax.vmap(of_row)(rows).reshape(*scores.shape, scores.shape[-1])
