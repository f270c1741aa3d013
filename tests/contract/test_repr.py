"""What modules and distributions print, the same in both backends but for what only one of them has."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch

import catnat
import catnat.jax as cj
import catnat.torch as ct

DEFAULT = "num_classes=4, activation=Natural(tail=0.1), tree=balanced"
CHAIN = catnat.Parameterization(4, "sigmoid", catnat.Tree.chain(4))
ON_CHAIN = "num_classes=4, activation=Sigmoid(), tree=chain"


def test_modules() -> None:
    assert repr(ct.Catnat(4)) == f"Catnat({DEFAULT}, dim=-1)"
    assert repr(cj.Catnat(4)) == f"Catnat({DEFAULT}, axis=-1)"
    assert repr(ct.LogCatnat(CHAIN, dim=1)) == f"LogCatnat({ON_CHAIN}, dim=1)"
    assert repr(cj.LogCatnat(CHAIN, axis=1)) == f"LogCatnat({ON_CHAIN}, axis=1)"
    loss = ct.CatnatCrossEntropyLoss(CHAIN, weight=torch.ones(4))
    assert repr(loss) == f"CatnatCrossEntropyLoss(weight=[4], {ON_CHAIN}, reduction='mean')"
    assert repr(cj.CatnatCrossEntropyLoss(CHAIN, weight=jnp.ones(4))) == repr(loss)


def test_linear_heads() -> None:
    assert repr(ct.CatnatLinear(64, 4)) == f"CatnatLinear(in_features=64, {DEFAULT})"
    assert repr(ct.CatnatLinear(64, CHAIN, bias=False)) == f"CatnatLinear(in_features=64, {ON_CHAIN}, bias=False)"
    head = cj.CatnatLinear.init(jax.random.key(0), 64, 4)
    assert repr(head) == f"CatnatLinear(weight=[3, 64], bias=[3], {DEFAULT})"


@pytest.mark.parametrize("kind", ["CatnatCategorical", "OneHotCatnat", "OneHotCatnatStraightThrough"])
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_distributions_over_classes(backend: str, kind: str) -> None:
    xp, make = (torch, getattr(ct, kind)) if backend == "torch" else (jnp, getattr(cj, kind))
    assert repr(make(xp.zeros((5, 3)), 4)) == f"{kind}(scores=[5, 3], {DEFAULT})"
    masked = make(xp.zeros((5, 3)), CHAIN, mask=xp.ones((5, 4), dtype=bool))
    assert repr(masked) == f"{kind}(scores=[5, 3], mask=[5, 4], {ON_CHAIN})"


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_distributions(backend: str) -> None:
    xp, c = (torch, ct) if backend == "torch" else (jnp, cj)
    relaxed = c.RelaxedOneHotCatnat(xp.ones(5), xp.zeros((5, 3)), CHAIN)
    temperature = [5, 1] if backend == "torch" and relaxed.temperature.ndim == 2 else [5]
    assert repr(relaxed) == f"RelaxedOneHotCatnat(temperature={temperature}, scores=[5, 3], {ON_CHAIN})"
    several = c.MultiCatnat(xp.zeros((5, 5)), [3, 4], mask=xp.ones((5, 7), dtype=bool))
    shown = repr(several)
    assert shown.startswith("MultiCatnat(scores=[5, 5], mask=[5, 7], ") and "nvec=(3, 4)" in shown
    mixed = repr(c.MultiCatnat(xp.zeros(6), [CHAIN, 4]))
    assert ON_CHAIN in mixed and DEFAULT in mixed and "nvec=(4, 4)" in mixed


def test_baselines() -> None:
    assert repr(ct.LeaveOneOut(1)) == "LeaveOneOut(dim=1)" and repr(cj.LeaveOneOut(1)) == "LeaveOneOut(axis=1)"
    assert repr(ct.MovingAverage(0.9)) == "MovingAverage(decay=0.9)"
