"""Values against code that is not ours, and derivatives against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Categorical, StickBreakingTransform, kl_divergence

import catnat.torch as ct
from catnat import Natural, Parameterization, Sigmoid
from tests.core.trees import KINDS, make_tree
from tests.thinned import thinned

ACTIVATIONS = [
    Sigmoid(),
    Natural(),
    Natural(tail=0.0, floor=0.0),
    Natural(tail=0.0),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 3, 18, 33, 65, 400])
def test_a_sigmoid_chain_is_stick_breaking(size: int, dtype: torch.dtype) -> None:
    pi = Parameterization(size, "sigmoid", make_tree("chain", size))
    for scale in (0.0, 1.0, 5.0):
        x = scale * torch.randn(7, size - 1, generator=torch.Generator().manual_seed(size), dtype=dtype)
        torch.testing.assert_close(ct.catnat(x, pi), StickBreakingTransform()(x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3, 18, 33, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_summaries_are_those_of_torchs_categorical(kind: str, size: int) -> None:
    pi = Parameterization(size, "sigmoid", make_tree(kind, size))
    p, q = torch.randn(2, 9, size - 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    index = torch.arange(9) % size
    theirs, other = (Categorical(logits=ct.log_catnat(x, pi)) for x in (p, q))
    torch.testing.assert_close(ct.entropy(p, pi), theirs.entropy())
    torch.testing.assert_close(ct.kl_divergence(p, q, pi), kl_divergence(theirs, other))
    torch.testing.assert_close(ct.log_prob(p, index, pi), theirs.log_prob(index))
    torch.testing.assert_close(ct.mode(p, pi), theirs.mode)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_is_torchs(reduction: str, smoothing: float, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
    weight = torch.rand(6, generator=generator, dtype=torch.float64) if weighted else None
    options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
    log_p = ct.log_catnat(x, 6, dim=1)
    ids = torch.randint(6, (4, 3), generator=generator)
    ids[1, 2] = -100
    torch.testing.assert_close(ct.cross_entropy(x, ids, 6, dim=1, **options), F.cross_entropy(log_p, ids, **options))
    ids[0, 0], ids[1, 2] = 5, 3
    options["ignore_index"] = 3
    torch.testing.assert_close(ct.cross_entropy(x, ids, 6, dim=1, **options), F.cross_entropy(log_p, ids, **options))
    del options["ignore_index"]
    probs = torch.rand(4, 6, 3, generator=generator, dtype=torch.float64).softmax(1)
    # torch divides the mean over probabilities by the number of rows, weights or not
    torch.testing.assert_close(
        ct.cross_entropy(x, probs, 6, dim=1, **options), F.cross_entropy(log_p, probs, **options)
    )


# -- derivatives -------------------------------------------------------------------------------------------------

INDEX = torch.tensor([1, 4])


def differentiable(pi: Parameterization) -> dict[str, tuple[Callable[..., Tensor], int]]:
    """Functions of one or two score tensors."""
    mask = torch.tensor([True, False, True, True, True])
    return {
        "log_catnat": (lambda x: ct.log_catnat(x, pi), 1),
        "masked": (lambda x: ct.catnat(x, pi, mask=mask), 1),
        "log_prob": (lambda x: ct.log_prob(x, INDEX, pi), 1),
        "entropy": (lambda x: ct.entropy(x, pi), 1),
        "kl_divergence": (lambda p, q: ct.kl_divergence(p, q, pi), 2),
        "cross_entropy": (lambda x: ct.cross_entropy(x, INDEX, pi, label_smoothing=0.1), 1),
    }


@pytest.mark.parametrize(
    ("activation", "kind", "name"),
    thinned(product(ACTIVATIONS, KINDS, differentiable(Parameterization(5))), every=12),
    ids=repr,
)
def test_first_and_second_derivatives_are_limits_of_differences(
    name: str, kind: str, activation: Sigmoid | Natural
) -> None:
    pi = Parameterization(5, activation, make_tree(kind, 5, seed=1))
    function, count = differentiable(pi)[name]
    generator = torch.Generator().manual_seed(3)
    inside = [
        (torch.rand(2, 4, generator=generator, dtype=torch.float64) * 4 - 2 + torch.from_numpy(pi.centers.copy()))
        .requires_grad_()
        for _ in range(count)
    ]  # fmt: skip
    assert gradcheck(function, inside)
    assert gradgradcheck(function, inside)
