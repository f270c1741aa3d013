"""The same numbers through JAX and through PyTorch: values and gradients are to agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from numpy.testing import assert_allclose


def draw(*shape: int, seed: int = 0, spread: float = 1.3) -> np.ndarray:
    """Normal numbers in float64."""
    return spread * np.random.default_rng(seed).normal(size=shape)


def of_torch(setting: object) -> object:
    """A setting of JAX's call in PyTorch's."""
    return torch.from_numpy(setting.copy()) if isinstance(setting, np.ndarray) else setting


def assert_same(ours: Callable, torchs: Callable, *arrays: np.ndarray, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Two functions of the same float64 arrays have the same value and, under the same weights, the same gradients."""
    leaves = [torch.from_numpy(array.copy()).requires_grad_() for array in arrays]
    expected = torchs(*leaves)
    weights = np.linspace(1, 2, expected.numel()).reshape(expected.shape)

    @jax.jit
    def both(*inputs: jax.Array) -> tuple[jax.Array, Sequence[jax.Array]]:
        value, pull_back = jax.vjp(ours, *inputs)
        return value, pull_back(jnp.asarray(weights, value.dtype))

    with jax.enable_x64(True):
        value, gradients = both(*map(jnp.asarray, arrays))
    assert value.dtype == np.float64
    assert_allclose(value, expected.detach().numpy(), rtol=rtol, atol=atol)
    wanted = torch.autograd.grad(expected, leaves, torch.from_numpy(weights), allow_unused=True)
    for mine, theirs in zip(gradients, wanted, strict=True):
        assert_allclose(mine, 0 if theirs is None else theirs.numpy(), rtol=rtol, atol=atol)
