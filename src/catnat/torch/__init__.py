"""catnat for PyTorch: functions, modules, distributions, estimators and Fisher matrices."""

try:
    import torch as _torch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("catnat.torch needs PyTorch 2.9 or newer; it comes with the extra 'torch'") from missing

import catnat as _catnat
from catnat.core.errors import gone as _gone
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

__all__ = distributions.__all__ + estimators.__all__ + fisher.__all__ + functional.__all__
__all__ += latents.__all__ + nn.__all__ + sampling.__all__


def __getattr__(name: str) -> object:
    raise _gone(__name__, name)
