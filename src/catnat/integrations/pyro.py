"""catnat in Pyro: the distributions of `catnat.torch` that `pyro.sample` takes.

They enumerate, expand and sit in plates as Pyro's own do. ``mask=`` in the constructor forbids classes; the method
``.mask(...)`` is Pyro's, and says which rows count.
"""

from __future__ import annotations

from collections.abc import Sequence

from catnat.integrations import needs

with needs(__name__, "Pyro 1.9"):
    from pyro.distributions.torch_distribution import TorchDistributionMixin

import torch

import catnat.torch as ct

__all__ = ["CatnatCategorical", "OneHotCatnat", "OneHotCatnatStraightThrough", "RelaxedOneHotCatnat"]


class _Shapes(TorchDistributionMixin):
    @classmethod
    def infer_shapes(cls, **arg_shapes: Sequence[int]) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from those of the arguments, under Pyro's name for this."""
        rows = {name: arg_shapes[name] for name in ("scores", "probs", "logits", "mask") if arg_shapes.get(name)}
        classes = {shape[-1] + (name == "scores") for name, shape in rows.items()}
        if len(classes) != 1:
            raise ValueError(f"the arguments' shapes must agree on the number of classes; got {arg_shapes}")
        batch = torch.broadcast_shapes(*(shape[:-1] for shape in rows.values()), arg_shapes.get("temperature", ()))
        return batch, torch.Size(classes if issubclass(cls, (ct.OneHotCatnat, ct.RelaxedOneHotCatnat)) else ())


class CatnatCategorical(ct.CatnatCategorical, _Shapes):
    """`catnat.torch.CatnatCategorical` for Pyro; in place of `pyro.distributions.Categorical`.

    Example:
        >>> import pyro, torch
        >>> from catnat.integrations.pyro import CatnatCategorical
        >>> pyro.sample("k", CatnatCategorical(torch.zeros(17), 18).expand([5])).shape
        torch.Size([5])
    """


class OneHotCatnat(ct.OneHotCatnat, _Shapes):
    """`catnat.torch.OneHotCatnat` for Pyro; in place of `pyro.distributions.OneHotCategorical`."""


class OneHotCatnatStraightThrough(ct.OneHotCatnatStraightThrough, _Shapes):
    """`catnat.torch.OneHotCatnatStraightThrough` for Pyro: one-hot samples with the probabilities' gradient."""


class RelaxedOneHotCatnat(ct.RelaxedOneHotCatnat, _Shapes):
    """`catnat.torch.RelaxedOneHotCatnat` for Pyro; in place of `pyro.distributions.RelaxedOneHotCategorical`."""
