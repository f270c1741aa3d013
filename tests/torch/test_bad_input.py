"""Bad scores and masks, for everything public: the message names the argument, what came and what was wanted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import pytest
import torch

import catnat.torch as ct
from catnat import Natural, Parameterization, Sigmoid, Tree

K = 6
PI = Parameterization(K)
X = torch.zeros(4, K - 1)
IDS = torch.zeros(4, dtype=torch.int64)

# -- scores: everything that takes them ---------------------------------------------------------------------------

TAKES_SCORES: dict[str, Callable[[object, object], object]] = {
    "catnat": ct.catnat,
    "log_catnat": ct.log_catnat,
    "log_prob": lambda x, pi: ct.log_prob(x, IDS, pi),
    "sample": ct.sample,
    "mode": ct.mode,
    "entropy": ct.entropy,
    "kl_divergence p": lambda x, pi: ct.kl_divergence(x, X, pi),
    "kl_divergence q": lambda x, pi: ct.kl_divergence(X, x, pi),
    "cross_entropy": lambda x, pi: ct.cross_entropy(x, IDS, pi),
    "reach": ct.reach,
    "fisher_diagonal": ct.fisher_diagonal,
    "natural_gradient": ct.natural_gradient,
    "straight_through": ct.straight_through,
    "relaxed_sample": ct.gumbel_softmax,
    "gumbel_straight_through": partial(ct.gumbel_softmax, hard=True),
    "Catnat": lambda x, pi: ct.Catnat(pi)(x),
    "LogCatnat": lambda x, pi: ct.LogCatnat(pi)(x),
    "CatnatCrossEntropyLoss": lambda x, pi: ct.CatnatCrossEntropyLoss(pi)(x, IDS),
    "CatnatCategorical": ct.CatnatCategorical,
    "OneHotCatnat": ct.OneHotCatnat,
    "OneHotCatnatStraightThrough": ct.OneHotCatnatStraightThrough,
    "RelaxedOneHotCatnat": lambda x, pi: ct.RelaxedOneHotCatnat(0.5, x, pi),
    "MultiCatnat": lambda x, pi: ct.MultiCatnat(x, [pi]),
}
takes_scores = pytest.mark.parametrize("call", TAKES_SCORES.values(), ids=TAKES_SCORES.keys())


@takes_scores
def test_good_scores_are_taken(call: Callable[..., object]) -> None:
    call(X, PI)


@takes_scores
@pytest.mark.parametrize("width", [K, K - 2, 0])
def test_scores_of_the_wrong_width(call: Callable[..., object], width: int) -> None:
    with pytest.raises(ValueError, match=rf"scores must .*{K - 1}.*{K} classes; got {width} .*shape \(4, {width}\)"):
        call(torch.zeros(4, width), PI)


@takes_scores
def test_as_many_scores_as_classes_are_asked_whether_they_are_log_probabilities(call: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match=r"got 6 .*\. Make the last layer 5 wide; logits or log-prob"):
        call(torch.zeros(4, K).log_softmax(-1), PI)


@pytest.mark.parametrize("name", ct.__all__)
def test_the_number_of_classes_has_no_default(name: str) -> None:
    """But where it may be that of `probs=` or `logits=`."""
    public = getattr(ct, name)
    known = inspect.signature(public).parameters
    if "parameterization" in known and "probs" not in known:
        assert known["parameterization"].default is inspect.Parameter.empty
    elif "parameterization" in known and "scores" in known:
        with pytest.raises(TypeError, match="parameterization"):
            public(**({"temperature": 1.0} if "temperature" in known else {}), scores=X)


@takes_scores
def test_scores_of_integers(call: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=r"scores must be floating point.*; got torch\.int64"):
        call(torch.zeros(4, K - 1, dtype=torch.int64), PI)


@takes_scores
def test_scores_that_are_complex(call: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=r"scores must be floating point.*; got torch\.complex64"):
        call(torch.zeros(4, K - 1, dtype=torch.complex64), PI)


@takes_scores
def test_scores_without_a_dimension(call: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match=r"scores must have at least one dimension; got a scalar"):
        call(torch.tensor(0.0), PI)


@takes_scores
def test_scores_that_are_no_tensor(call: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=r"scores must be a torch\.Tensor; got list"):
        call([0.0] * (K - 1), PI)


@takes_scores
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ("natrual", ValueError, r"activation must be one of .*; got 'natrual' \(did you mean 'natural'\?\)"),
        ("sigmoid", TypeError, r"got 'sigmoid': write catnat.Parameterization\(num_classes, 'sigmoid'\)"),
        (Natural(0.01), TypeError, r"got Natural\(tail=0.01\): write .*\(num_classes, Natural\(tail=0.01\)\)"),
        (Sigmoid, TypeError, r"write catnat.Parameterization\(num_classes, Sigmoid\(\)\)"),
        (Tree.chain(K), TypeError, r"got Tree.chain\(6\): write catnat.Parameterization\(6, tree=...\)"),
        (True, TypeError, r"parameterization must be the number of classes or .*; got True"),
        (0.5, TypeError, r"parameterization must be the number of classes or .*; got 0.5"),
        (0, ValueError, r"num_classes must be at least 1; got 0"),
    ],
)
def test_unknown_parameterization(
    call: Callable[..., object], wrong: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(X, wrong)


def test_parameterization_that_cannot_be_hashed() -> None:
    with pytest.raises(TypeError, match=r"parameterization must be .*Parameterization; got \["):
        ct.log_catnat(X, [PI])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["catnat", "log_catnat", "reach", "fisher_diagonal", "natural_gradient", "cross_entropy", "scores_from_probs"],
)
@pytest.mark.parametrize("dim", [2, -3])
def test_dim_out_of_range(name: str, dim: int) -> None:
    arguments = {"cross_entropy": (X, IDS), "scores_from_probs": (torch.ones(4, K),)}.get(name, (X,))
    with pytest.raises(IndexError, match=rf"dim must lie in \[-2, 1\] for (scores|probs); got {dim}"):
        getattr(ct, name)(*arguments, PI, dim=dim)


def test_kl_of_scores_of_different_widths() -> None:
    with pytest.raises(ValueError, match=r"scores must hold num_classes - 1 = 5 .*; got 3 .*shape \(4, 3\)"):
        ct.kl_divergence(X, torch.zeros(4, 3), PI)


# -- masks --------------------------------------------------------------------------------------------------------


def with_mask(function: Callable[..., object], *arguments: object) -> Callable[[object], object]:
    return lambda mask: function(*arguments, mask=mask)


TAKES_MASK = {
    "catnat": with_mask(ct.catnat, X, PI),
    "log_catnat": with_mask(ct.log_catnat, X, PI),
    "log_prob": with_mask(ct.log_prob, X, IDS, PI),
    "sample": with_mask(ct.sample, X, PI),
    "mode": with_mask(ct.mode, X, PI),
    "entropy": with_mask(ct.entropy, X, PI),
    "kl_divergence": with_mask(ct.kl_divergence, X, X, PI),
    "straight_through": with_mask(ct.straight_through, X, PI),
    "relaxed_sample": with_mask(ct.gumbel_softmax, X, PI),
    "gumbel_straight_through": with_mask(partial(ct.gumbel_softmax, hard=True), X, PI),
    "CatnatCategorical": with_mask(ct.CatnatCategorical, X, PI),
    "OneHotCatnat": with_mask(ct.OneHotCatnat, X, PI),
    "OneHotCatnatStraightThrough": with_mask(ct.OneHotCatnatStraightThrough, X, PI),
    "MultiCatnat": with_mask(ct.MultiCatnat, X, [K]),
}
takes_mask = pytest.mark.parametrize("call", TAKES_MASK.values(), ids=TAKES_MASK.keys())


@takes_mask
def test_a_good_mask_is_taken(call: Callable[..., object]) -> None:
    call(torch.ones(4, K, dtype=torch.bool))


@takes_mask
@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.ones(4, K - 1, dtype=torch.bool), ValueError, r"mask .*6.*; got .*\(4, 5\)"),
        (torch.ones(4, K), TypeError, r"mask must be a boolean .*True where a class is allowed; got torch\.float32"),
        (torch.ones(4, K, dtype=torch.uint8), TypeError, r"mask must be a boolean .*; got torch\.uint8"),
        ([True] * K, TypeError, r"mask must be a boolean torch\.Tensor.*; got list"),
        (torch.ones(3, K, dtype=torch.bool), ValueError, r"mask must broadcast .*\(4,\).*; got shape \(3, 6\)"),
        (torch.tensor(True), ValueError, r"mask must .*; got"),
        (
            torch.arange(4)[:, None].expand(4, K) != 2,
            ValueError,
            r"mask must allow .* every row; row \(2,\) allows none",
        ),
        (
            torch.zeros(K, dtype=torch.bool),
            ValueError,
            r"mask must allow at least one class in every row; it allows none",
        ),
    ],
    ids=["narrow", "float", "uint8", "list", "batch", "scalar", "empty row", "empty"],
)
def test_bad_masks(call: Callable[..., object], mask: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(mask)


@pytest.mark.parametrize(
    "call",
    [
        partial(ct.log_catnat, X, PI),
        partial(ct.sample, X, PI),
        partial(ct.CatnatCategorical, X, PI),
        partial(ct.OneHotCatnat, X, PI),
        partial(ct.MultiCatnat, X, [K]),
    ],
)
def test_a_call_that_prunes_is_told_what_is_taken(call: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'mask_mode'\. It takes .*mask"):
        call(mask_mode="prune")
