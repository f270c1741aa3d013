"""catnat for JAX: pure functions first, then distributions, estimators and Fisher matrices as pytrees."""

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("catnat.jax needs JAX 0.8 or newer; it comes with catnat's extra 'jax'") from missing

from catnat.core.errors import gone as _gone
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


def __getattr__(name: str) -> object:
    raise _gone(__name__, name)
