"""What the contract asks of a backend, and the backends it is asked of.

To put another backend under the contract, write a class with these methods and add it to `BACKENDS`. Everything goes in
and comes out as NumPy arrays; scores are in the backend's dtype already.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
import torch

import catnat.torch as ct
from catnat import Parameterization
from catnat.torch import _eager
from catnat.torch._inputs import prepare
from catnat_lab import reference
from tests.contract.cases import Case
from tests.contract.jax_backend import Jax

Mask = np.ndarray | None


class Backend(Protocol):
    """One implementation in one precision."""

    name: str
    dtype: type
    tolerance: float  # relative to max(1, |value|)

    def log_catnat(self, scores: np.ndarray, pi: Parameterization, mask: Mask = None) -> np.ndarray: ...

    def gradient(self, scores: np.ndarray, upstream: np.ndarray, pi: Parameterization, mask: Mask = None) -> np.ndarray:
        """The vector-Jacobian product of `log_catnat` with ``upstream``."""
        ...

    def log_prob(
        self, scores: np.ndarray, index: np.ndarray, pi: Parameterization, mask: Mask = None
    ) -> np.ndarray: ...

    def log_prob_gradient(self, scores: np.ndarray, index: np.ndarray, pi: Parameterization) -> np.ndarray: ...

    def entropy(self, scores: np.ndarray, pi: Parameterization, mask: Mask = None) -> np.ndarray: ...

    def kl(self, p: np.ndarray, q: np.ndarray, pi: Parameterization, mask: Mask = None) -> np.ndarray: ...

    def mode(self, scores: np.ndarray, pi: Parameterization, mask: Mask = None) -> np.ndarray: ...

    def reach(self, scores: np.ndarray, pi: Parameterization) -> np.ndarray: ...

    def fisher_diagonal(self, scores: np.ndarray, pi: Parameterization) -> np.ndarray: ...

    def scores_from_probs(self, probs: np.ndarray, pi: Parameterization) -> np.ndarray: ...

    def counts(self, scores: np.ndarray, pi: Parameterization, draws: int, mask: Mask = None) -> np.ndarray:
        """[K] how often each class came up in that many draws from one row [K-1]."""
        ...


class Oracle:
    """The reference. What it has no function for is written out here over all classes."""

    name, dtype, tolerance = "oracle", np.float64, 1e-12

    def log_catnat(self, scores, pi, mask=None):
        return reference.log_catnat(scores, pi, mask)

    def gradient(self, scores, upstream, pi, mask=None):
        if mask is None:
            return reference.log_catnat_gradient(scores, upstream, pi)
        upstream = np.where(mask, upstream, 0.0)
        share = reference.catnat(scores, pi, mask) * upstream.sum(-1, keepdims=True)
        return reference.log_catnat_gradient(scores, upstream - share, pi)

    def log_prob(self, scores, index, pi, mask=None):
        return np.take_along_axis(self.log_catnat(scores, pi, mask), index[..., None], -1)[..., 0]

    def log_prob_gradient(self, scores, index, pi):
        return reference.log_catnat_gradient(scores, np.eye(pi.num_classes)[index], pi)

    def entropy(self, scores, pi, mask=None):
        return reference.entropy(scores, pi, mask)

    def kl(self, p, q, pi, mask=None):
        log_p, log_q = self.log_catnat(p, pi, mask), self.log_catnat(q, pi, mask)
        dead = np.isneginf(log_p)
        return np.sum(np.exp(log_p) * (np.where(dead, 0.0, log_p) - np.where(dead, 0.0, log_q)), -1)

    def mode(self, scores, pi, mask=None):
        return self.log_catnat(scores, pi, mask).argmax(-1)

    def reach(self, scores, pi):
        return np.exp(self.log_catnat(scores, pi)) @ classes_below(pi).T

    def fisher_diagonal(self, scores, pi):
        return self.reach(scores, pi) * reference.fisher_of_node(scores, pi)

    def scores_from_probs(self, probs, pi):
        return reference.scores_from_probs(probs, pi)

    def counts(self, scores, pi, draws, mask=None):
        p = np.exp(self.log_catnat(scores, pi, mask))
        return np.random.default_rng(0).multinomial(draws, p / p.sum())


@lru_cache
def classes_below(pi: Parameterization) -> np.ndarray:
    """[K-1, K] whether class k is below node i."""
    below = np.zeros((pi.num_nodes, pi.num_classes))
    for k in range(pi.num_classes):
        for node, _ in pi.tree.path(k):
            below[node - 1, k] = 1
    return below


class Torch:
    """`catnat.torch` through its public functions."""

    def __init__(self, dtype: type) -> None:
        self.dtype = dtype
        self.name = f"torch-{np.dtype(dtype).name}"
        self.tolerance = 1e-12 if dtype is np.float64 else 2e-6

    def _in(self, array):
        if array is None:  # a mask
            return None
        assert array.dtype in (self.dtype, bool, np.int64), f"{self.name} was handed {array.dtype}"
        return torch.from_numpy(np.ascontiguousarray(array))

    def log_catnat(self, scores, pi, mask=None):
        return ct.log_catnat(self._in(scores), pi, mask=self._in(mask)).numpy()

    def gradient(self, scores, upstream, pi, mask=None):
        x = self._in(scores).requires_grad_()
        ct.log_catnat(x, pi, mask=self._in(mask)).backward(self._in(upstream))
        return x.grad.numpy()

    def log_prob(self, scores, index, pi, mask=None):
        return ct.log_prob(self._in(scores), self._in(index), pi, mask=self._in(mask)).numpy()

    def log_prob_gradient(self, scores, index, pi):
        x = self._in(scores).requires_grad_()
        ct.log_prob(x, self._in(index), pi).sum().backward()
        return x.grad.numpy()

    def entropy(self, scores, pi, mask=None):
        return ct.entropy(self._in(scores), pi, mask=self._in(mask)).numpy()

    def kl(self, p, q, pi, mask=None):
        return ct.kl_divergence(self._in(p), self._in(q), pi, mask=self._in(mask)).numpy()

    def mode(self, scores, pi, mask=None):
        return ct.mode(self._in(scores), pi, mask=self._in(mask)).numpy()

    def reach(self, scores, pi):
        return ct.reach(self._in(scores), pi).numpy()

    def fisher_diagonal(self, scores, pi):
        return ct.fisher_diagonal(self._in(scores), pi).numpy()

    def scores_from_probs(self, probs, pi):
        return ct.scores_from_probs(self._in(probs), pi).numpy()

    def counts(self, scores, pi, draws, mask=None):
        generator = torch.Generator().manual_seed(0)
        drawn = ct.sample(self._in(scores), pi, sample_shape=(draws,), generator=generator, mask=self._in(mask))
        return np.bincount(drawn.numpy(), minlength=pi.num_classes)


class TorchPlainWalk(Torch):
    """`catnat.torch` with the plain walk forced, as compilers and transforms see it."""

    def __init__(self, dtype: type) -> None:
        super().__init__(dtype)
        self.name += "-plain"

    def _walk(self, x, pi):
        x, plan, _ = prepare(x, pi)
        return _eager.log_classes(x, plan)

    def log_catnat(self, scores, pi, mask=None):
        assert mask is None, "masks are judged through the public functions"
        return self._walk(self._in(scores), pi).numpy()

    def gradient(self, scores, upstream, pi, mask=None):
        assert mask is None, "masks are judged through the public functions"
        x = self._in(scores).requires_grad_()
        self._walk(x, pi).backward(self._in(upstream))
        return x.grad.numpy()


ORACLE = Oracle()
PUBLIC: list[Backend] = [Torch(np.float32), Torch(np.float64), Jax(np.float32), Jax(np.float64)]
PLAIN: list[Backend] = [TorchPlainWalk(np.float32), TorchPlainWalk(np.float64)]
BACKENDS: list[Backend] = [ORACLE, *PUBLIC]  # the laws are asked of the judge as well


def asked(backends: list[Backend], case: Case) -> list[Backend]:
    """Those of the backends that are asked about a case of the grid; JAX about a part of them, for it is slow."""
    return [b for b in backends if not isinstance(b, Jax) or b.dtype in case.for_jax]
