"""catnat in Pyro: the distributions of `catnat.torch` that `pyro.sample` takes.

They enumerate, expand and sit in plates as Pyro's own do. ``mask=`` in the constructor forbids classes; the method
``.mask(...)`` is Pyro's, and says which rows count.
"""

from __future__ import annotations

try:
    from pyro.distributions.torch_distribution import TorchDistributionMixin
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "catnat.integrations.pyro needs Pyro 1.9 or newer; in catnat's folder: pip install '.[pyro]'"
    ) from missing

import catnat.torch as ct

__all__ = ["CatnatCategorical", "OneHotCatnat", "OneHotCatnatStraightThrough"]


class CatnatCategorical(ct.CatnatCategorical, TorchDistributionMixin):
    """`catnat.torch.CatnatCategorical` for Pyro; in place of `pyro.distributions.Categorical`.

    Example:
        >>> import pyro, torch
        >>> from catnat.integrations.pyro import CatnatCategorical
        >>> pyro.sample("k", CatnatCategorical(torch.zeros(17), 18).expand([5])).shape
        torch.Size([5])
    """


class OneHotCatnat(ct.OneHotCatnat, TorchDistributionMixin):
    """`catnat.torch.OneHotCatnat` for Pyro; in place of `pyro.distributions.OneHotCategorical`."""


class OneHotCatnatStraightThrough(ct.OneHotCatnatStraightThrough, TorchDistributionMixin):
    """`catnat.torch.OneHotCatnatStraightThrough` for Pyro: one-hot samples with the probabilities' gradient."""
