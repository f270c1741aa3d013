"""catnat for JAX: pure functions first, then distributions, estimators and Fisher matrices as pytrees."""

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("catnat.jax needs JAX 0.8 or newer; it comes with catnat's extra 'jax'") from missing

from catnat.jax import distributions, estimators, fisher, functional, latents, nn, sampling
from catnat.jax.distributions import *
from catnat.jax.estimators import *
from catnat.jax.fisher import *
from catnat.jax.functional import *
from catnat.jax.latents import *
from catnat.jax.nn import *
from catnat.jax.sampling import *

__all__ = distributions.__all__ + estimators.__all__ + fisher.__all__ + functional.__all__
__all__ += latents.__all__ + nn.__all__ + sampling.__all__

_LINALG = "is gone: `fisher_matrix` and jax.numpy.linalg do it in a line or two"
_GONE = dict.fromkeys(("condition_number", "monte_carlo_fisher", "network_fisher"), _LINALG) | {
    "relaxed_sample": "is gumbel_softmax(key, scores, parameterization, tau) now",
    "gumbel_straight_through": "is gumbel_softmax(key, scores, parameterization, tau, hard=True) now",
}


def __getattr__(name: str) -> object:
    if name in _GONE:
        raise AttributeError(f"catnat.jax.{name} {_GONE[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
