"""catnat for PyTorch: functions, modules, distributions, estimators and Fisher matrices."""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "catnat.torch needs PyTorch 2.6 or newer; it comes with catnat's extra 'torch'"
    ) from missing

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
    gumbel_straight_through,
    relaxed_sample,
    sample_without_replacement,
    score_function,
    straight_through,
)
from catnat.torch.fisher import (
    condition_number,
    fisher_diagonal,
    fisher_matrix,
    monte_carlo_fisher,
    natural_gradient,
    network_fisher,
    softmax_fisher,
)
from catnat.torch.functional import (
    catnat,
    cross_entropy,
    entropy,
    kl_divergence,
    log_catnat,
    log_prob,
    reach,
    saturation,
    scores_from_probs,
)
from catnat.torch.nn import Catnat, CatnatCrossEntropyLoss, LogCatnat
from catnat.torch.sampling import Draw, draw, mode, sample

__all__ = [
    "Catnat",
    "CatnatCategorical",
    "CatnatCrossEntropyLoss",
    "Draw",
    "LeaveOneOut",
    "LogCatnat",
    "MovingAverage",
    "MultiCatnat",
    "OneHotCatnat",
    "OneHotCatnatStraightThrough",
    "RelaxedOneHotCatnat",
    "catnat",
    "condition_number",
    "cross_entropy",
    "draw",
    "entropy",
    "fisher_diagonal",
    "fisher_matrix",
    "gumbel_straight_through",
    "kl_divergence",
    "log_catnat",
    "log_prob",
    "mode",
    "monte_carlo_fisher",
    "natural_gradient",
    "network_fisher",
    "reach",
    "relaxed_sample",
    "sample",
    "sample_without_replacement",
    "saturation",
    "score_function",
    "scores_from_probs",
    "softmax_fisher",
    "straight_through",
]
