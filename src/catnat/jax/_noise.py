"""Gumbel noise, what a softmax makes of it, and the temperature of that."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from catnat.core.errors import check_positive
from catnat.jax._inputs import check_number


def check_temperature(
    temperature: Array | float, batch: tuple[int, ...], argument: str = "temperature"
) -> Array | float:
    """A temperature that is above 0, as far as can be seen, and of a shape that broadcasts to the scores' batch."""
    temperature = check_number(argument, temperature, check_positive)
    shape = np.shape(temperature)
    try:
        fits = np.broadcast_shapes(shape, batch) == tuple(batch)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{argument} must be one number or one a row, shape {tuple(batch)}; got shape {shape}")
    return temperature


@partial(jax.jit, static_argnames=("shape", "dtype"))
def gumbel(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Gumbel noise whose large values, which decide who is largest, are as fine as the others.

    `jax.random.gumbel` ends at 16 in float32, and is coarse before: classes rarer than 1e-5 or so would tie.
    """
    coarse, fine = jax.random.uniform(key, (2, *shape), dtype)
    limits = jnp.finfo(dtype)
    uniform = jnp.clip(coarse + limits.eps * fine, limits.tiny, 1 - limits.epsneg)
    return -jnp.log(-jnp.log1p(-uniform))


@jax.jit
def soften(perturbed: Array, temperature: Array | float) -> Array:
    """softmax(perturbed / temperature), of one temperature or of one a row."""
    dead = perturbed == -jnp.inf  # not divided, or it would spoil the temperature's gradient
    scaled = jnp.where(dead, 0, perturbed) / jnp.asarray(temperature, perturbed.dtype)[..., None]
    return jax.nn.softmax(jnp.where(dead, -jnp.inf, scaled), axis=-1)


@jax.jit
def relaxed_density(value: Array, log_p: Array, temperature: Array) -> Array:
    """log((K-1)! t^(K-1) prod_k (p_k v_k^(-t-1) / sum_j p_j v_j^-t)): log-density of softmax((log p + noise) / t)."""
    # a cold sample rounds to 0 in places, where the density has no finite value: there it is taken nearby
    log_value = jnp.log(jnp.maximum(value, jnp.finfo(value.dtype).tiny))
    score = jax.nn.log_softmax(log_p - temperature[..., None] * log_value, axis=-1)
    others = log_p.shape[-1] - 1
    return (score - log_value).sum(-1) + math.lgamma(others + 1) + others * jnp.log(temperature)
