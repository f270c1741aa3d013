"""Ours in the place of their categorical distributions, for the test suites of other libraries.

A plugin of pytest, told by a variable whose place is taken; the files are those of their source distributions:

    IN_PLACE_OF=distrax python -m pytest -p tests.integrations.in_their_place FILE...

An adapter takes their positional arguments and hands them on. `results/integrations/README.md` has what came of it.
"""

from __future__ import annotations

import os
from typing import Any


def _positional(kind: Any, name: str, module: str, *first: str) -> Any:
    """A class of theirs, made of ours: probs and logits in their order, and their constraints."""
    from torch.distributions import constraints

    taken = {"probs": constraints.simplex, "logits": constraints.real_vector}

    class Adapter(kind):
        arg_constraints = {"temperature": constraints.positive, **taken} if first else taken

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(**dict(zip((*first, "probs", "logits", "validate_args"), args, strict=False)), **kwargs)

        def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
            return super().expand(batch_shape, self._get_checked_instance(Adapter, _instance))

        @classmethod
        def infer_shapes(cls, **shapes: Any) -> Any:
            return kind.infer_shapes(**{name: shape for name, shape in shapes.items() if shape})

    Adapter.__name__, Adapter.__qualname__, Adapter.__module__ = name, name, module
    return Adapter


def _in_torch() -> None:
    import torch.distributions as dist

    import catnat.torch as ct

    one_hot = _positional(ct.OneHotCatnat, "OneHotCategorical", "torch.distributions")
    straight = type("OneHotCatnatStraightThrough", (ct.OneHotCatnatStraightThrough, one_hot), {})
    dist.Categorical = _positional(ct.CatnatCategorical, "Categorical", "torch.distributions")  # type: ignore[misc]
    dist.OneHotCategorical = one_hot
    dist.OneHotCategoricalStraightThrough = _positional(  # type: ignore[misc]
        straight, "OneHotCategoricalStraightThrough", "torch.distributions"
    )
    dist.RelaxedOneHotCategorical = _positional(  # type: ignore[misc]
        ct.RelaxedOneHotCatnat, "RelaxedOneHotCategorical", "torch.distributions", "temperature"
    )


def _in_pyro() -> None:
    import pyro.distributions as dist

    from catnat.integrations import pyro as ours

    for name, kind in {"Categorical": ours.CatnatCategorical, "OneHotCategorical": ours.OneHotCatnat}.items():
        adapter = _positional(kind, name, "pyro.distributions.torch")
        setattr(dist, name, adapter)
        setattr(dist.torch, name, adapter)


def _in_sb3_contrib() -> None:
    import sb3_contrib
    import sb3_contrib.common.maskable.distributions as theirs
    import torch

    import catnat.torch as ct
    from catnat.integrations import sb3_contrib as ours

    class MaskableCategorical(ct.CatnatCategorical):
        def __init__(self, probs: Any = None, logits: Any = None, validate_args: Any = None, masks: Any = None) -> None:
            super().__init__(probs=probs, logits=logits, validate_args=validate_args)
            self.free = self.scores
            self.apply_masking(masks)

        def apply_masking(self, masks: Any) -> None:
            mask = None if masks is None else torch.as_tensor(masks, dtype=torch.bool).reshape(self.logits.shape)
            super().__init__(self.free, self.parameterization, mask=mask, validate_args=self._validate_args)

    def from_logits(kind: Any, parts_of: Any) -> Any:
        class Adapter(kind):
            def __init__(self, dims: Any) -> None:
                super().__init__(parts_of(dims))

            def proba_distribution(self, action_logits: Any) -> Any:
                nvec = self.actions.nvec
                parts = action_logits.view(-1, sum(nvec)).split(nvec, -1)
                scores = [ct.scores_from_log_probs(part, size) for part, size in zip(parts, nvec, strict=True)]
                return super().proba_distribution(torch.cat(scores, -1))

        return Adapter

    several = ours.MaskableMultiCatnatDistribution
    theirs.MaskableCategorical = MaskableCategorical
    theirs.MaskableCategoricalDistribution = from_logits(ours.MaskableCatnatDistribution, lambda dims: dims)
    theirs.MaskableMultiCategoricalDistribution = from_logits(several, lambda dims: dims)
    theirs.MaskableBernoulliDistribution = from_logits(several, lambda dims: [2] * dims)
    sb3_contrib.MaskablePPO.policy_aliases = {
        "MlpPolicy": ours.MaskableCatnatPolicy,
        "CnnPolicy": ours.MaskableCatnatCnnPolicy,
        "MultiInputPolicy": ours.MaskableCatnatMultiInputPolicy,
    }


def _in_distrax() -> None:
    from distrax._src.distributions import categorical, one_hot_categorical

    from catnat.integrations.distrax import CatnatCategorical, OneHotCatnat

    class Categorical(CatnatCategorical):
        def __init__(self, logits: Any = None, probs: Any = None, dtype: Any = int) -> None:
            super().__init__(logits=logits, probs=probs, dtype=dtype)

    class OneHotCategorical(OneHotCatnat):
        def __init__(self, logits: Any = None, probs: Any = None, dtype: Any = int) -> None:
            super().__init__(logits=logits, probs=probs, dtype=dtype)

    categorical.Categorical, one_hot_categorical.OneHotCategorical = Categorical, OneHotCategorical


def _in_numpyro() -> None:
    import numpyro.distributions as dist
    from numpyro.distributions import discrete

    from catnat.integrations.numpyro import CatnatCategorical

    class CategoricalLogits(CatnatCategorical):
        def __init__(self, logits: Any, *, validate_args: bool | None = None) -> None:
            super().__init__(logits=logits, validate_args=validate_args)

    class CategoricalProbs(CatnatCategorical):
        def __init__(self, probs: Any, *, validate_args: bool | None = None) -> None:
            super().__init__(probs=probs, validate_args=validate_args)

    for module in (dist, discrete):
        module.CategoricalLogits, module.CategoricalProbs = CategoricalLogits, CategoricalProbs


{
    "torch": _in_torch,
    "pyro": _in_pyro,
    "sb3_contrib": _in_sb3_contrib,
    "distrax": _in_distrax,
    "numpyro": _in_numpyro,
}[os.environ["IN_PLACE_OF"]]()
