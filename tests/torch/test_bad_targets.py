"""Bad class ids, targets and probabilities: the message names the argument, what came and what was wanted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

import catnat.torch as ct
from catnat import Natural, Parameterization, Tree

K = 6
X = torch.zeros(4, K - 1)
IDS = torch.zeros(4, dtype=torch.int64)
TREES = {
    "balanced": Parameterization(K),
    "chain": Parameterization(K, "sigmoid", Tree.chain(K)),
    "paper": Parameterization(K, "paper"),
    "deep": Parameterization(K, Natural(tail=0.0, floor=0.0), Tree.chain(K)),
    "huge": Parameterization(K, "sigmoid", Tree.huffman([1, 1, 2, 3, 5, 8])),
}

# -- class ids ----------------------------------------------------------------------------------------------------

TAKES_IDS: dict[str, tuple[str, Callable[[torch.Tensor, Parameterization], object]]] = {
    "log_prob": ("index", lambda ids, pi: ct.log_prob(X, ids, pi)),
    "log_prob masked": ("index", lambda ids, pi: ct.log_prob(X, ids, pi, mask=torch.ones(K, dtype=torch.bool))),
    "cross_entropy": ("target", lambda ids, pi: ct.cross_entropy(X, ids, pi)),
    "cross_entropy smooth": ("target", lambda ids, pi: ct.cross_entropy(X, ids, pi, label_smoothing=0.1)),
    "cross_entropy weighted": ("target", lambda ids, pi: ct.cross_entropy(X, ids, pi, weight=torch.ones(K))),
    "CatnatCrossEntropyLoss": ("target", lambda ids, pi: ct.CatnatCrossEntropyLoss(pi)(X, ids)),
    "CatnatCategorical": ("index", lambda ids, pi: ct.CatnatCategorical(X, pi, validate_args=False).log_prob(ids)),
}
takes_ids = pytest.mark.parametrize(("argument", "call"), TAKES_IDS.values(), ids=TAKES_IDS.keys())
every_tree = pytest.mark.parametrize("pi", TREES.values(), ids=TREES.keys())


@every_tree
@takes_ids
@pytest.mark.parametrize("wrong", [-1, -K, K, K + 100])
def test_ids_out_of_range(argument: str, call: Callable[..., object], pi: Parameterization, wrong: int) -> None:
    ids = IDS.clone()
    ids[2] = wrong
    with pytest.raises(IndexError, match=rf"{argument} must lie in \[0, 5\] for 6 classes; got {wrong}"):
        call(ids, pi)


@pytest.mark.parametrize("size", [100, 5000, 400_000])
@pytest.mark.parametrize("wrong", [-1, None])
def test_ids_out_of_range_among_many_classes(size: int, wrong: int | None) -> None:
    # with few classes, many, and too many for a table of all paths
    index = torch.tensor([0, size if wrong is None else wrong])
    with pytest.raises(IndexError, match=rf"index must lie in \[0, {size - 1}\] .*; got {int(index[1])}"):
        ct.log_prob(torch.zeros(2, size - 1), index, size)


def test_an_id_out_of_range_for_one_class() -> None:
    for wrong in (-1, 1):
        with pytest.raises(IndexError, match=rf"index must lie in \[0, 0\] for 1 classes; got {wrong}"):
            ct.log_prob(torch.zeros(3, 0), torch.tensor([0, wrong, 0]), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_index_of_no_integers(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=rf"index must be an integer torch\.Tensor of class ids; got {dtype}"):
        ct.log_prob(X, IDS.to(dtype), K)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.uint8])
def test_any_integer_dtype_is_an_index(dtype: torch.dtype) -> None:
    ids = torch.tensor([0, 1, 5, 3])
    for pi in TREES.values():
        assert torch.equal(ct.log_prob(X, ids.to(dtype), pi), ct.log_prob(X, ids, pi))
        assert torch.equal(ct.cross_entropy(X, ids.to(dtype), pi), ct.cross_entropy(X, ids, pi))


def test_index_that_is_no_tensor() -> None:
    with pytest.raises(TypeError, match=r"index must be an integer torch\.Tensor of class ids; got list"):
        ct.log_prob(X, [0, 1, 2, 3], K)  # type: ignore[arg-type]


def test_index_whose_shape_does_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"index must .*\(4,\).*; got .*\(3,\)"):
        ct.log_prob(X, torch.zeros(3, dtype=torch.int64), K)


# -- cross-entropy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        (
            torch.zeros(3, dtype=torch.int64),
            ValueError,
            r"target must hold one class id a row, shape \(4,\).*; got torch.int64 of shape \(3,\)",
        ),
        (
            torch.zeros(4, 1, dtype=torch.int64),
            ValueError,
            r"target must hold one class id a row, .* of shape \(4, 1\)$",
        ),
        (torch.tensor(0), ValueError, r"target must hold one class id a row, shape \(4,\).* of shape \(\)"),
        (torch.zeros(4, K - 1), ValueError, r"target must hold one value a class: 6 .*; got 5 .*\(4, 5\)"),
        (torch.zeros(3, K), ValueError, r"target must have the scores' batch shape \(4,\); got \(3,\)"),
        (torch.zeros(4), TypeError, "target must hold integers if it holds class ids; got torch.float32"),
        (torch.tensor(0.0), ValueError, r"target must have at least one dimension; got a scalar"),
        (torch.zeros(4, dtype=torch.bool), TypeError, r"target must be an integer .*; got torch\.bool"),
        ([0, 1, 2, 3], TypeError, r"target must be .*; got list"),
    ],
    ids=["short", "extra axis", "scalar id", "narrow", "batch", "float ids", "scalar", "bool", "list"],
)
def test_bad_target(target: object, error: type[Exception], message: str) -> None:
    for loss in (partial(ct.cross_entropy, parameterization=K), ct.CatnatCrossEntropyLoss(K)):
        with pytest.raises(error, match=message):
            loss(X, target)


def test_unknown_reduction_has_a_hint() -> None:
    message = r"reduction must be one of 'none', 'mean', 'sum'; got 'meen' \(did you mean 'mean'\?\)"
    with pytest.raises(ValueError, match=message):
        ct.cross_entropy(X, IDS, K, reduction="meen")
    with pytest.raises(ValueError, match=message):
        ct.CatnatCrossEntropyLoss(K, reduction="meen")


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan")])
def test_label_smoothing_out_of_range(wrong: float) -> None:
    with pytest.raises(ValueError, match=rf"label_smoothing must lie in \[0, 1\]; got {wrong}"):
        ct.cross_entropy(X, IDS, K, label_smoothing=wrong)
    with pytest.raises(ValueError, match=rf"label_smoothing must lie in \[0, 1\]; got {wrong}"):
        ct.CatnatCrossEntropyLoss(K, label_smoothing=wrong)  # as soon as it is known


@pytest.mark.parametrize("weight", [torch.ones(K - 1), torch.tensor(1.0), torch.ones(2, K)], ids=["5", "scalar", "2x6"])
def test_bad_class_weight(weight: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"weight must .*6.*; got"):
        ct.cross_entropy(X, IDS, K, weight=weight)


# -- probabilities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probs", "error", "message"),
    [
        (torch.ones(4, K - 1), ValueError, r"probs must hold one value a class: 6 .*; got 5 .*\(4, 5\)"),
        (torch.ones(4, 0), ValueError, r"probs must hold at least one class along dim -1; got shape \(4, 0\)"),
        (torch.tensor(1.0), ValueError, r"probs must have at least one dimension; got a scalar"),
        (
            torch.ones(4, K, dtype=torch.complex64),
            TypeError,
            r"probs must be a torch.Tensor of .*; got torch\.complex64",
        ),
        ([1.0] * K, TypeError, r"probs must be a torch\.Tensor of numbers; got <class 'list'>"),
        (torch.full((K,), torch.inf), ValueError, r"probs must be finite and at least 0; it holds inf"),
        (torch.eye(K)[1:] * 0, ValueError, r"probs must give some class a mass in every row; row \(0,\) has none"),
    ],
    ids=["narrow", "none", "scalar", "complex", "list", "infinite", "massless"],
)
def test_bad_probs(probs: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ct.scores_from_probs(probs, Parameterization(K))  # type: ignore[arg-type]


def test_negative_probabilities_have_no_scores() -> None:
    with pytest.raises(ValueError, match=r"probs must be finite and at least 0; .* holds -0\.2"):
        ct.scores_from_probs(torch.tensor([0.5, -0.2, 0.7]), 3)
