"""`catnat.jax` under the contract.

JAX compiles a program for every parameterization, function and shape, which takes longer than everything that it then
computes. So the batches are filled up with zeros to one of few sizes, and the answer is cut; a value and its gradient
are one program; of an empty batch only the shapes are asked for; and cases.py says which part of the grid is JAX's.
"""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

import catnat.jax as cj
from catnat import Parameterization


def value_and_gradient(scores, upstream, mask, *, pi):
    value, pull = jax.vjp(lambda s: cj.log_catnat(s, pi, mask=mask), scores)
    return value, pull(upstream)[0]


def log_prob_gradient(scores, index, *, pi):
    return jax.grad(lambda s: cj.log_prob(s, index, pi).sum())(scores)


PROGRAMS = {
    "value and gradient": value_and_gradient,
    "log_prob": lambda x, index, mask, *, pi: cj.log_prob(x, index, pi, mask=mask),
    "log_prob gradient": log_prob_gradient,
    "entropy": lambda x, mask, *, pi: cj.entropy(x, pi, mask=mask),
    "kl": lambda p, q, mask, *, pi: cj.kl_divergence(p, q, pi, mask=mask),
    "mode": lambda x, mask, *, pi: cj.mode(x, pi, mask=mask),
    "reach": lambda x, *, pi: cj.reach(x, pi),
    "fisher_diagonal": lambda x, *, pi: cj.fisher_diagonal(x, pi),
    "scores_from_probs": lambda probs, *, pi: cj.scores_from_probs(probs, pi),
    "sample": lambda key, x, mask, *, pi, draws: cj.sample(key, x, pi, sample_shape=(draws,), mask=mask),
}


@cache
def program(name: str, **settings):
    return jax.jit(partial(PROGRAMS[name], **settings))


def forget() -> None:
    """Give back the memory of all programs."""
    program.cache_clear()
    jax.clear_caches()


def sizes_for(pi: Parameterization) -> tuple[int, ...]:
    """The batches that programs are compiled for."""
    return (304, 1152) if pi.num_classes <= 100 else (16,) if pi.num_classes <= 4096 else ()


class Jax:
    """`catnat.jax` through its public functions, compiled."""

    def __init__(self, dtype: type) -> None:
        self.dtype = dtype
        self.name = f"jax-{np.dtype(dtype).name}"
        self.tolerance = 1e-12 if dtype is np.float64 else 2e-6

    def _run(self, name, pi, *arrays, **settings):
        """One program on arrays whose batch is that of the first; K wide ones go with every row."""
        batch = arrays[0].shape[:-1]
        rows = batch[0] if len(batch) == 1 else None
        size = next((size for size in sizes_for(pi) if rows is not None and rows <= size), rows)
        shared = [a is not None and (a.ndim > 2 or a.shape[:1] != batch) for a in arrays]
        one_row = [s and a.shape == (pi.num_classes,) and a.dtype == bool for s, a in zip(shared, arrays, strict=True)]
        padded = bool(rows) and shared == one_row  # an empty batch stays one; other shapes are a test's own business
        with jax.enable_x64(self.dtype is np.float64):
            given = [
                a if a is None or skip or not padded else np.concatenate((a, self._rest(a, size - rows)))
                for a, skip in zip(arrays, shared, strict=True)
            ]
            run = program(name, pi=pi, **settings)
            if 0 in batch:
                return jax.tree.map(lambda a: np.empty(a.shape, a.dtype), jax.eval_shape(run, *given))
            found = run(*given)
            return jax.tree.map(lambda a: np.array(a[:rows] if padded else a), found)

    def _rest(self, array, rows):
        assert array.dtype in (self.dtype, bool, np.int64), f"{self.name} was handed {array.dtype}"
        return np.full((rows, *array.shape[1:]), array.dtype == bool, array.dtype)

    def log_catnat(self, scores, pi, mask=None):
        batch = scores.shape[:-1] if mask is None else np.broadcast_shapes(scores.shape[:-1], mask.shape[:-1])
        return self._both(scores, np.zeros((*batch, pi.num_classes), self.dtype), pi, mask)[0]

    def gradient(self, scores, upstream, pi, mask=None):
        return self._both(scores, upstream, pi, mask)[1]

    def _both(self, scores, upstream, pi, mask):
        return self._run("value and gradient", pi, scores, upstream, mask)

    def log_prob(self, scores, index, pi, mask=None):
        return self._run("log_prob", pi, scores, index, mask)

    def log_prob_gradient(self, scores, index, pi):
        return self._run("log_prob gradient", pi, scores, index)

    def entropy(self, scores, pi, mask=None):
        return self._run("entropy", pi, scores, mask)

    def kl(self, p, q, pi, mask=None):
        return self._run("kl", pi, p, q, mask)

    def mode(self, scores, pi, mask=None):
        return self._run("mode", pi, scores, mask)

    def reach(self, scores, pi):
        return self._run("reach", pi, scores)

    def fisher_diagonal(self, scores, pi):
        return self._run("fisher_diagonal", pi, scores)

    def scores_from_probs(self, probs, pi):
        return self._run("scores_from_probs", pi, probs)

    def counts(self, scores, pi, draws, mask=None):
        with jax.enable_x64(self.dtype is np.float64):
            draw = program("sample", pi=pi, draws=draws)
            drawn = np.asarray(draw(jax.random.key(0), jnp.asarray(scores), mask))
        return np.bincount(drawn, minlength=pi.num_classes)
