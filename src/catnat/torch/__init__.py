"""catnat for PyTorch: functions, modules, distributions, estimators and Fisher matrices."""

try:
    import torch as _torch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("catnat.torch needs PyTorch 2.9 or newer; it comes with the extra 'torch'") from missing

import catnat as _catnat
from catnat.torch import distributions, estimators, fisher, functional, latents, nn, sampling
from catnat.torch.distributions import *
from catnat.torch.estimators import *
from catnat.torch.fisher import *
from catnat.torch.functional import *
from catnat.torch.latents import *
from catnat.torch.nn import *
from catnat.torch.sampling import *

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


__all__ = distributions.__all__ + estimators.__all__ + fisher.__all__ + functional.__all__
__all__ += latents.__all__ + nn.__all__ + sampling.__all__
