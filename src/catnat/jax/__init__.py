"""catnat for JAX: pure functions first, then distributions, estimators and Fisher matrices as pytrees."""

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("catnat.jax needs JAX 0.8 or newer; it comes with catnat's extra 'jax'") from missing

from inspect import signature as _signature
from sys import modules as _modules

from catnat.core.errors import advised as _advised
from catnat.jax.distributions import (
    CatnatCategorical,
    MultiCatnat,
    OneHotCatnat,
    OneHotCatnatStraightThrough,
    RelaxedOneHotCatnat,
)
from catnat.jax.estimators import (
    LeaveOneOut,
    MovingAverage,
    gumbel_softmax,
    sample_without_replacement,
    score_function,
    straight_through,
)
from catnat.jax.fisher import fisher_diagonal, fisher_matrix, natural_gradient, softmax_fisher
from catnat.jax.functional import (
    catnat,
    catnat_linear_loss,
    cross_entropy,
    entropy,
    kl_divergence,
    log_catnat,
    log_prob,
    reach,
    saturation,
    scores_from_log_probs,
    scores_from_probs,
)
from catnat.jax.latents import CategoricalLatent, Latent
from catnat.jax.nn import Catnat, CatnatCrossEntropyLoss, CatnatLinear, LogCatnat
from catnat.jax.sampling import Draw, catnat_linear_sample, draw, mode, sample

__all__ = [
    "CategoricalLatent",
    "Catnat",
    "CatnatCategorical",
    "CatnatCrossEntropyLoss",
    "CatnatLinear",
    "Draw",
    "Latent",
    "LeaveOneOut",
    "LogCatnat",
    "MovingAverage",
    "MultiCatnat",
    "OneHotCatnat",
    "OneHotCatnatStraightThrough",
    "RelaxedOneHotCatnat",
    "catnat",
    "catnat_linear_loss",
    "catnat_linear_sample",
    "cross_entropy",
    "draw",
    "entropy",
    "fisher_diagonal",
    "fisher_matrix",
    "gumbel_softmax",
    "kl_divergence",
    "log_catnat",
    "log_prob",
    "mode",
    "natural_gradient",
    "reach",
    "sample",
    "sample_without_replacement",
    "saturation",
    "score_function",
    "scores_from_log_probs",
    "scores_from_probs",
    "softmax_fisher",
    "straight_through",
]

for _name in __all__:
    _thing = globals()[_name]
    if isinstance(_thing, type):
        if "parameterization" in _signature(_thing).parameters and "__init__" in vars(_thing):
            _thing.__init__ = _advised(_thing.__init__)  # type: ignore[misc]
    elif "parameterization" in _signature(_thing).parameters:  # in its module too, where pickle looks for it
        globals()[_name] = vars(_modules[_thing.__module__])[_name] = _advised(_thing)

_LINALG = "is gone: `fisher_matrix` and jax.numpy.linalg do it in a line or two"
_GONE = dict.fromkeys(("condition_number", "monte_carlo_fisher", "network_fisher"), _LINALG) | {
    "relaxed_sample": "is gumbel_softmax(key, scores, parameterization, tau) now",
    "gumbel_straight_through": "is gumbel_softmax(key, scores, parameterization, tau, hard=True) now",
}


def __getattr__(name: str) -> object:
    if name in _GONE:
        raise AttributeError(f"catnat.jax.{name} {_GONE[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
