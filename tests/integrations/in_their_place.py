"""Ours in the place of their categorical distributions, for the test suites of distrax and NumPyro.

A plugin of pytest: `python -m pytest -p tests.integrations.in_their_place FILE...` with files of their source
distributions (distrax's are in its wheel too). `results/integrations/README.md` has what came of it.
"""

from __future__ import annotations

import sys
from typing import Any


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


_in_numpyro() if any("numpyro" in argument for argument in sys.argv) else _in_distrax()
