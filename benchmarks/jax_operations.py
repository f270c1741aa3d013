"""What is timed against what on the JAX side: everything under `jax.jit`, on JAX's default device.

The shapes are those of a CPU, or, where there is a GPU, 64 million elements for every number of classes.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import catnat
import catnat.jax as cj
from benchmarks.measure import Run
from benchmarks.operations import ACTIVATIONS, CHECKED_ROWS, SHAPES, Case, Operation, check, check_draws, check_gradient
from catnat_lab import reference

ON_GPU = jax.default_backend() == "gpu"
ELEMENTS = 1 << 26
GPU_CLASSES = (8, 18, 32, 128, 1000, 1024, 8192, 50257, 131072)
JAX_SHAPES = tuple((ELEMENTS // k, k) for k in GPU_CLASSES) if ON_GPU else SHAPES


def _random(rows: int, classes: int) -> tuple[Array, Array, Array, Array]:
    """Scores, logits, weights of the classes, and one class a row."""
    keys = jax.random.split(jax.random.key(0), 4)
    scores = jax.random.normal(keys[0], (rows, classes - 1))
    logits, weights = (jax.random.normal(key, (rows, classes)) for key in keys[1:3])
    return scores, logits, weights, jax.random.randint(keys[3], (rows,), 0, classes)


def _launch(function: Callable[..., object], *arguments: Array) -> Run:
    """A call; on a CPU, where JAX would run several at once, with the wait for its end."""
    if ON_GPU:
        return lambda: function(*arguments)
    return lambda: jax.block_until_ready(function(*arguments))


def _value_and_grad(function: Callable[..., Array], x: Array, weights: Array, *others: Array) -> Run:
    # all arrays are arguments: XLA must not compute anything of them beforehand
    step = jax.jit(jax.value_and_grad(lambda x, weights, *others: (function(x, *others) * weights).sum()))
    return _launch(step, x, weights, *others)


def _few(array: Array) -> np.ndarray:
    """Rows from both ends of the batch, so from the first block of a kernel and from the last."""
    return np.asarray(jnp.concatenate((array[: CHECKED_ROWS // 2], array[-CHECKED_ROWS // 2 :])), np.float64)


def log_probabilities(rows: int, classes: int) -> Case:
    """All log-probabilities and the gradient of their weighted sum."""
    scores, logits, weights, _ = _random(rows, classes)
    ours = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        run = _value_and_grad(lambda s, pi=pi: cj.log_catnat(s, pi), scores, weights)
        expected = reference.log_catnat(_few(scores), pi)
        check(f"log_catnat {activation}", _few(jax.jit(lambda s, pi=pi: cj.log_catnat(s, pi))(scores)), expected)
        check_gradient(f"log_catnat {activation}", _few(run()[1]), _few(scores), _few(weights), pi)
        ours[activation] = run
    limit = 1.5 if ON_GPU else 1.0 if rows * classes < 1000 else 4.0
    return Case(_value_and_grad(jax.nn.log_softmax, logits, weights), ours, dict.fromkeys(ACTIVATIONS, limit))


def log_probability_of_one(rows: int, classes: int) -> Case:
    """The log-probability of one class a row and its gradient."""
    scores, logits, weights, index = _random(rows, classes)
    weight = weights[:, 0]
    ours = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        run = _value_and_grad(lambda s, k, pi=pi: cj.log_prob(s, k, pi), scores, weight, index)
        few = _few(index).astype(np.int64)
        expected = reference.log_prob(_few(scores), few, pi)
        check(f"log_prob {activation}", _few(jax.jit(lambda s, pi=pi: cj.log_prob(s, index, pi))(scores)), expected)
        upstream = (np.arange(classes) == few[:, None]) * _few(weight)[:, None]
        check_gradient(f"log_prob {activation}", _few(run()[1]), _few(scores), upstream, pi)
        ours[activation] = run

    def rival(x: Array, index: Array) -> Array:
        return jnp.take_along_axis(jax.nn.log_softmax(x), index[:, None], -1)[:, 0]

    return Case(_value_and_grad(rival, logits, weight, index), ours, dict.fromkeys(ACTIVATIONS))


def one_sample(rows: int, classes: int) -> Case:
    """One draw a row."""
    scores, logits, _, _ = _random(rows, classes)
    key, ours = jax.random.key(1), {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        drawn = cj.sample(key, scores[0], pi, sample_shape=(20_000,))
        check_draws(f"sample {activation}", np.bincount(np.asarray(drawn), minlength=classes), _few(scores)[:1], pi)
        draw = jax.jit(lambda key, s, pi=pi: cj.sample(key, s, pi))
        ours[activation] = _launch(draw, key, scores)
    rival = jax.jit(jax.random.categorical)
    return Case(_launch(rival, key, logits), ours, dict.fromkeys(ACTIVATIONS))


OPERATIONS = {
    "log_catnat value_and_grad": Operation("jax.nn.log_softmax", JAX_SHAPES, log_probabilities),
    "log_prob value_and_grad": Operation("jax.nn.log_softmax + take", JAX_SHAPES, log_probability_of_one),
    "sample": Operation("jax.random.categorical", JAX_SHAPES, one_sample),
}
