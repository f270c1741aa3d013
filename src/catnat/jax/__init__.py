"""catnat for JAX: pure functions first, then distributions, estimators and Fisher matrices as pytrees."""

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("catnat.jax needs JAX 0.8 or newer; it comes with catnat's extra 'jax'") from missing

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
    gumbel_straight_through,
    relaxed_sample,
    sample_without_replacement,
    score_function,
    straight_through,
)
from catnat.jax.fisher import (
    condition_number,
    fisher_diagonal,
    fisher_matrix,
    monte_carlo_fisher,
    natural_gradient,
    network_fisher,
    softmax_fisher,
)
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
    scores_from_probs,
)
from catnat.jax.nn import Catnat, CatnatCrossEntropyLoss, CatnatLinear, LogCatnat
from catnat.jax.sampling import Draw, catnat_linear_sample, draw, mode, sample

__all__ = [
    "Catnat",
    "CatnatCategorical",
    "CatnatCrossEntropyLoss",
    "CatnatLinear",
    "Draw",
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
