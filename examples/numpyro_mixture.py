"""A mixture density network in NumPyro: which of eight normals a value is from depends on the input.

The data are Bishop's: y is given and x is asked for, in x + 0.3 sin(2 pi x) = y, which has up to three answers.
Needs: pip install ".[numpyro]"
"""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO

from catnat.integrations.numpyro import CatnatCategorical

PARTS, HIDDEN = 8, 32
keys = jax.random.split(jax.random.key(0), 5)
x = jax.random.uniform(keys[0], (2000,))
y = x + 0.3 * jnp.sin(2 * jnp.pi * x) + jax.random.uniform(keys[1], (2000,), minval=-0.1, maxval=0.1)


def mixture(width, mixing, y):
    """The distribution of x given y: one hidden layer, then the mixing distribution, means and deviations."""
    draw = lambda key, *shape: jax.random.normal(key, shape) / shape[0] ** 0.5  # noqa: E731
    first = numpyro.param("first", draw(keys[2], 1, HIDDEN))
    offset = numpyro.param("offset", draw(keys[3], HIDDEN))
    last = numpyro.param("last", draw(keys[4], HIDDEN, width + 2 * PARTS))
    start = jnp.concatenate([jnp.zeros(width), jnp.linspace(0, 1, PARTS), jnp.full(PARTS, -2.0)])
    out = jnp.tanh(y[:, None] @ first + offset) @ last + numpyro.param("start", start)
    means, deviations = out[:, width : width + PARTS], jnp.exp(out[:, width + PARTS :])
    return dist.MixtureSameFamily(mixing(out[:, :width]), dist.Normal(means, deviations))


def log_likelihood(width, mixing):
    """Nats per unseen value after 2000 steps of Adam at 1e-3."""

    def model(x, y):
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", mixture(width, mixing, y), obs=x)

    svi = SVI(model, lambda x, y: None, numpyro.optim.Adam(1e-3), Trace_ELBO())
    fitted = svi.run(jax.random.key(1), 2000, x[:1500], y[:1500], progress_bar=False)
    with numpyro.handlers.substitute(data=fitted.params):
        return mixture(width, mixing, y[1500:]).log_prob(x[1500:]).mean()


softmax = log_likelihood(PARTS, lambda logits: dist.Categorical(logits=logits))
catnat = log_likelihood(PARTS - 1, lambda scores: CatnatCategorical(scores, PARTS))
print(f"log-likelihood of unseen values, in nats: softmax {softmax:.3f}, catnat {catnat:.3f}")
