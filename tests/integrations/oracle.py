"""The scores that the integrations' tests use, and what the float64 reference says of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import catnat
from tests.core.trees import make_tree

K = 6
PARAMETERIZATIONS = {
    "natural": catnat.Parameterization(K, "natural"),
    "sigmoid": catnat.Parameterization(K, "sigmoid", make_tree("nested", K)),
    "chain": catnat.Parameterization(K, catnat.Natural(tail=0.3), make_tree("chain", K)),
}
ALLOWED = np.array([True, False, True, True, False, True])
MASKS = {"free": None, "masked": ALLOWED}
# A mixture of K normals: given class k the value is normal around k, with deviation SPREAD.
SPREAD = 0.7
DATA = np.array([0.3, 2.9, 5.2, 1.1, -0.4])


def draw_scores(*batch: int, seed: int = 0) -> np.ndarray:
    """[*batch, K-1] float64 scores."""
    return 1.3 * np.random.default_rng(seed).normal(size=(*batch, K - 1))


def kl(log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """KL(p || q) over the classes that p can give."""
    possible = np.isfinite(log_p)
    return (np.exp(log_p) * (np.where(possible, log_p, 0) - np.where(possible, log_q, 0))).sum(-1)


def mixture(log_p: np.ndarray) -> np.ndarray:
    """log p of each of DATA, the class summed out by hand; log_p: [K] or [5, K]."""
    normal = -0.5 * ((DATA[:, None] - np.arange(K)) / SPREAD) ** 2 - np.log(SPREAD * np.sqrt(2 * np.pi))
    return np.log(np.exp(log_p + normal).sum(-1))


def gradient(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Of the sum of function(x), by central differences."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[place] = step
        found[place] = (function(x + shift).sum() - function(x - shift).sum()) / (2 * step)
    return found
