"""torch and JAX give the same loss: values and gradients, on the same drawn cases. The contract has all else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import catnat.jax as cj
import catnat.torch as ct
from catnat import Natural, Parameterization, Sigmoid
from tests.core.trees import KINDS, make_tree
from tests.thinned import thinned

TOLERANCE = {np.float32: 1e-6, np.float64: 1e-12}
FEW = settings(max_examples=8)  # every example is compiled


@dataclass(frozen=True)
class Drawn:
    """One case; the arrays are in float64 and cast by the test."""

    pi: Parameterization
    scores: np.ndarray  # [3, K-1]
    ids: np.ndarray  # [3]
    seed: int


@st.composite
def drawn(draw: Any) -> Drawn:
    size = draw(st.sampled_from([2, 3, 5, 9, 21]))
    amplitude = st.sampled_from([2 * np.pi, 5.0, 1.0])
    family = st.builds(Natural, st.sampled_from([0.5, 0.1, 0.05, 0.01, 1e-3]), amplitude)
    paper = st.builds(Natural, st.just(0.0), amplitude, st.sampled_from([1e-8, 1e-3, 0.1, 1e-6]))
    center = draw(st.sampled_from(["uniform", 0.0, 0.4]))
    tree = make_tree(draw(st.sampled_from(KINDS)), size, draw(st.integers(0, 9)))
    pi = Parameterization(size, draw(st.one_of(st.just(Sigmoid()), family, paper)), tree, center)
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    # in float32 already, so that both precisions are asked about the same numbers
    scores = (draw(st.sampled_from([0.3, 1.0, 4.0])) * rng.normal(size=(3, size - 1))).astype(np.float32)
    return Drawn(pi, scores, rng.integers(size, size=3), seed)


def compare(dtype: type, case: Drawn, of_torch: Any, of_jax: Any, *inputs: np.ndarray) -> None:
    """Values, and gradients of a weighted sum of those that are finite, for all inputs."""
    inputs = tuple(np.asarray(i, dtype) for i in inputs)
    leaves = [torch.from_numpy(i.copy()).requires_grad_() for i in inputs]
    value = of_torch(*leaves)
    finite = value.detach().isfinite().numpy()
    upstream = np.where(finite, np.random.default_rng(case.seed).normal(size=finite.shape), 0).astype(dtype)
    gradients = torch.autograd.grad(value, leaves, torch.from_numpy(upstream))
    with jax.enable_x64(dtype is np.float64):
        found, pulled = jax.jit(lambda *i: (lambda v, p: (v, p(upstream)))(*jax.vjp(of_jax, *i)))(*inputs)
        assert found.dtype == dtype
        agree(np.asarray(found), value.detach().numpy(), 1.0, dtype)
        # a gradient is a sum of upstream values times slopes: their size is the measure, see tests/contract/judge.py
        natural = case.pi.activation
        least = 0.25 if isinstance(natural, Sigmoid) else natural.tail or natural.floor
        steepest = 1.0 if isinstance(natural, Sigmoid) else np.pi / natural.amplitude / np.sqrt(least)
        for ours, theirs in zip(pulled, gradients, strict=True):
            size = min(steepest, max(1.0, float(np.abs(theirs.numpy()).max(initial=0))) * 30)
            agree(np.asarray(ours), theirs.numpy(), max(1.0, float(np.abs(upstream).sum()) * size), dtype)


def agree(found: np.ndarray, wanted: np.ndarray, scale: float, dtype: type) -> None:
    assert found.shape == wanted.shape
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite])
    error = np.abs(found[finite] - wanted[finite]) / np.maximum(scale, np.abs(wanted[finite]))
    assert error.max(initial=0) <= TOLERANCE[dtype], f"off by {error.max()}"


def in_torch(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array)


@pytest.mark.parametrize("dtype", thinned(TOLERANCE), ids=lambda d: d.__name__)
@FEW
@given(
    case=drawn(),
    reduction=st.sampled_from(["none", "mean", "sum"]),
    smoothing=st.sampled_from([0.0, 0.2]),
    weighted=st.booleans(),
    kind=st.sampled_from(["ids", "some ignored", "probabilities"]),
)
def test_cross_entropy(dtype: type, case: Drawn, reduction: str, smoothing: float, weighted: bool, kind: str) -> None:
    rng = np.random.default_rng(case.seed)
    labels = case.ids.copy()
    if kind == "some ignored":
        labels[1] = -1
    if kind == "probabilities":
        labels = rng.dirichlet(np.ones(case.pi.num_classes), size=3).astype(dtype)
    weight = rng.uniform(0.5, 2, case.pi.num_classes).astype(dtype) if weighted else None
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": -1}
    in_weight = None if weight is None else in_torch(weight)
    compare(
        dtype,
        case,
        lambda s: ct.cross_entropy(s, in_torch(labels), case.pi, weight=in_weight, **options),
        lambda s: cj.cross_entropy(s, labels, case.pi, weight=weight, **options),
        case.scores,
    )
