"""catnat for PyTorch: functions, modules, distributions, estimators and Fisher matrices."""

try:
    import torch as _torch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "catnat.torch needs PyTorch 2.6 or newer; it comes with catnat's extra 'torch'"
    ) from missing

import catnat as _catnat
from catnat.torch.distributions import (
    CatnatCategorical,
    MultiCatnat,
    OneHotCatnat,
    OneHotCatnatStraightThrough,
    RelaxedOneHotCatnat,
)
from catnat.torch.estimators import (
    LeaveOneOut,
    MovingAverage,
    gumbel_softmax,
    sample_without_replacement,
    score_function,
    straight_through,
)
from catnat.torch.fisher import fisher_diagonal, fisher_matrix, natural_gradient, softmax_fisher
from catnat.torch.functional import (
    catnat,
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
from catnat.torch.latents import CategoricalLatent, Latent
from catnat.torch.nn import Catnat, CatnatCrossEntropyLoss, CatnatLinear, LogCatnat
from catnat.torch.sampling import Draw, draw, mode, sample

# what a checkpoint may hold beside tensors: `torch.load` refuses classes that nobody has vouched for
_torch.serialization.add_safe_globals([_catnat.Natural, _catnat.Parameterization, _catnat.Sigmoid, _catnat.Tree])

_LINALG = "is gone: `fisher_matrix` and torch.linalg do it in a line or two"
_GONE = dict.fromkeys(("condition_number", "monte_carlo_fisher", "network_fisher"), _LINALG) | {
    "relaxed_sample": "is gumbel_softmax(scores, parameterization, tau) now",
    "gumbel_straight_through": "is gumbel_softmax(scores, parameterization, tau, hard=True) now",
}


def __getattr__(name: str) -> object:
    if name in _GONE:
        raise AttributeError(f"catnat.torch.{name} {_GONE[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
