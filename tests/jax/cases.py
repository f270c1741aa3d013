"""Parameterizations and scores that the tests of JAX share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import catnat
import catnat.jax as cj
from tests.core.trees import make_tree

# name: number of classes, activation, tree, whether it is masked
CASES = {
    "natural-5": (5, "natural", "balanced", False),
    "paper-5": (5, catnat.Natural(tail=0.0), "balanced", False),
    "tail-7": (7, catnat.Natural(amplitude=3.0, tail=0.003), "nested", False),
    "sigmoid-8": (8, "sigmoid", "balanced", False),
    "chain-9": (9, "sigmoid", "chain", False),
    "paper-6": (6, "paper", "huffman", False),
    "masked-7": (7, "natural", "huffman", True),
    "masked-5": (5, "sigmoid", "balanced", True),
}


def make_case(name):
    """A parameterization, and the masking arguments that go with it."""
    num_classes, activation, kind, masked = CASES[name]
    pi = catnat.Parameterization(num_classes, activation, make_tree(kind, num_classes))
    return pi, {"mask": np.arange(num_classes) % 3 != 1} if masked else {}


def draw_scores(pi, *batch, seed=0, dtype=np.float64, scale=1.0):
    return np.asarray(scale * np.random.default_rng(seed).normal(size=(*batch, pi.num_nodes)), dtype)


def operations(case):
    """Every smooth public function, as a function of the scores alone."""
    pi, masking = make_case(case)
    free = draw_scores(pi, seed=7)
    return {
        # -inf has no gradient to compare
        "log_catnat": lambda s: jnp.maximum(cj.log_catnat(s, pi, **masking), -1e4),
        "catnat": lambda s: cj.catnat(s, pi, **masking),
        "log_prob": lambda s: cj.log_prob(s, np.full(s.shape[:-1], 3), pi, **masking),
        "entropy": lambda s: cj.entropy(s, pi, **masking),
        "kl_divergence": lambda s: cj.kl_divergence(s, jnp.asarray(free, s.dtype), pi, **masking),
        "cross_entropy": lambda s: cj.cross_entropy(
            s, np.full(s.shape[:-1], 2), pi, label_smoothing=0.1, reduction="none"
        ),
        "reach": lambda s: cj.reach(s, pi),
    }


def everything(case, *names):
    """All of them, or those that are named, at once: one program in place of seven."""
    functions = [function for name, function in operations(case).items() if name in names or not names]
    return lambda s: jnp.concatenate([f(s).reshape(*s.shape[:-1], -1) for f in functions], -1)


def weighted(function):
    """A function's values as one number, each with a weight of its own."""

    def total(s):
        value = function(s)
        return (value * jnp.linspace(-1, 2, value.size, dtype=value.dtype).reshape(value.shape)).sum()

    return total


def close(found, wanted, tolerance=1e-9):
    """Trees of arrays alike to a tolerance relative to max(1, |value|)."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
