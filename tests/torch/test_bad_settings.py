"""Bad temperatures, baselines, parts and the like: the message names the argument, what came and what was wanted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import catnat.torch as ct

K = 6
X = torch.zeros(4, K - 1)

# -- one number each ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize(
    "call",
    [
        lambda t: ct.gumbel_softmax(X, K, tau=t),
        lambda t: ct.gumbel_softmax(X, K, tau=t, hard=True),
        lambda t: ct.RelaxedOneHotCatnat(t, X, K),
        lambda t: ct.RelaxedOneHotCatnat(torch.tensor(t), X, K),
    ],
    ids=["relaxed_sample", "gumbel_straight_through", "RelaxedOneHotCatnat", "with a tensor"],
)
def test_temperature_must_be_above_zero(call: Callable[[float], object], wrong: float) -> None:
    with pytest.raises(ValueError, match=rf"(tau|temperature) must be .*above 0; got .*{str(wrong).split('.')[0]}"):
        call(wrong)


@pytest.mark.parametrize("wrong", [-0.1, float("inf"), float("nan")])
def test_damping_must_not_be_negative(wrong: float) -> None:
    with pytest.raises(ValueError, match=rf"damping must be a finite number of at least 0; got {wrong}"):
        ct.natural_gradient(X, K, damping=wrong)


@pytest.mark.parametrize("wrong", [1.0, -0.1, float("nan")])
def test_decay_out_of_range(wrong: float) -> None:
    with pytest.raises(ValueError, match=rf"decay must lie in \[0, 1\); got {wrong}"):
        ct.MovingAverage(wrong)


# -- estimators and parts -----------------------------------------------------------------------------------------


def test_leave_one_out_needs_two_samples() -> None:
    with pytest.raises(ValueError, match=r"at least 2 samples along dim 0; got 1 \(cost has shape \(1, 4\)\)"):
        ct.score_function(torch.zeros(1, 4), torch.zeros(1, 4, requires_grad=True), ct.LeaveOneOut())
    with pytest.raises(ValueError, match=r"at least 2 samples along dim 1; got 1 \(cost has shape \(5, 1\)\)"):
        ct.LeaveOneOut(dim=1)(torch.zeros(5, 1))
    with pytest.raises(ValueError, match=r"at least 2 samples along dim 0; got 0 \(cost has shape \(\)\)"):
        ct.LeaveOneOut()(torch.tensor(1.0))


def test_cost_and_log_prob_must_match() -> None:
    with pytest.raises(ValueError, match=r"cost and log_prob must have one shape; got \(4,\) and \(3, 4\)"):
        ct.score_function(torch.zeros(4), torch.zeros(3, 4))


@pytest.mark.parametrize("wrong", ["mean", True])
def test_unknown_baseline(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"baseline must be None, a number, .*MovingAverage or .*LeaveOneOut; got"):
        ct.score_function(torch.zeros(4), torch.zeros(4, requires_grad=True), wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nvec", "options", "error", "message"),
    [
        ([3, 5], {}, ValueError, r"scores must .* 6 values .*; got 5 \(scores have shape \(4, 5\)\)"),
        ([], {}, ValueError, r"nvec must name at least one part; got none"),
        ([6, 0], {}, ValueError, r"must be at least 1; got 0"),
        ([2.5, 4], {}, TypeError, r"must be the number of classes or .*; got 2\.5"),
        (6, {}, TypeError, r"nvec must be a sequence .*; got 6"),
        ([3, "natural"], {}, TypeError, r"got 'natural': write catnat.Parameterization\(num_classes, 'natural'\)"),
        (
            [3, 4],
            {"mask": torch.ones(4, 6, dtype=torch.bool)},
            ValueError,
            r"mask .*sum\(nvec\) = 7 wide; got .*\(4, 6\)",
        ),
    ],
    ids=["width", "empty", "zero", "float", "number", "name", "mask"],
)
def test_bad_parts(nvec: object, options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ct.MultiCatnat(X, nvec, **options)  # type: ignore[arg-type]


def test_kl_between_things_of_different_size() -> None:
    p, q = ct.CatnatCategorical(X, K), ct.CatnatCategorical(torch.zeros(4, 3), 4)
    with pytest.raises(ValueError, match=r"KL needs equally many classes; got 6 and 4"):
        torch.distributions.kl_divergence(p, q)
    p, q = ct.MultiCatnat(X, [3, 4]), ct.MultiCatnat(X, [4, 3])
    with pytest.raises(ValueError, match=r"KL needs the same nvec on both sides; got \(3, 4\) and \(4, 3\)"):
        torch.distributions.kl_divergence(p, q)


@pytest.mark.parametrize("wrong", [-1, K, 0.5])
def test_validated_distributions_refuse_values_outside_their_support(wrong: float) -> None:
    policy = ct.CatnatCategorical(X, K, validate_args=True)
    with pytest.raises(ValueError, match=r"within the support"):
        policy.log_prob(torch.full((4,), wrong))
    with pytest.raises(ValueError, match=r"within the support"):
        ct.OneHotCatnat(X, K, validate_args=True).log_prob(torch.full((4, K), 0.5))
    with pytest.raises(ValueError, match=r"within the support"):
        ct.MultiCatnat(X, [3, 4], validate_args=True).log_prob(torch.full((4, 2), wrong))


# -- how many classes ---------------------------------------------------------------------------------------------

MISUSES = {
    "cross_entropy": ("'parameterization'", lambda: ct.cross_entropy(X, torch.zeros(4, dtype=torch.int64))),
    "gumbel_softmax": ("'parameterization'", lambda: ct.gumbel_softmax(X, tau=0.5, hard=True)),
    "temperature": ("'temperature'.* scores, parameterization, tau", lambda: ct.gumbel_softmax(X, K, temperature=1.0)),
    "log_catnat": ("'activation'", lambda: ct.log_catnat(X, K, activation="sigmoid")),
    "Catnat": ("'activation'", lambda: ct.Catnat(K, activation="sigmoid")),
    "LogCatnat": ("'num_classes'", lambda: ct.LogCatnat(num_classes=K)),
    "CatnatCrossEntropyLoss": ("3 were given", lambda: ct.CatnatCrossEntropyLoss(K, "sigmoid")),
    "CatnatLinear": ("'parameterization'", lambda: ct.CatnatLinear(3)),
    "CatnatCategorical": ("'activation'", lambda: ct.CatnatCategorical(X, K, activation="sigmoid")),
    "OneHotCatnat": ("'num_classes'", lambda: ct.OneHotCatnat(X, num_classes=K)),
    "RelaxedOneHotCatnat": ("'num_classes'", lambda: ct.RelaxedOneHotCatnat(1.0, X, num_classes=K)),
    "MultiCatnat": ("'activation'", lambda: ct.MultiCatnat(X, [3, 4], activation="sigmoid")),
}


@pytest.mark.parametrize(("named", "call"), MISUSES.values(), ids=MISUSES.keys())
def test_a_wrong_argument_is_named_and_the_right_one_written(named: str, call: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=rf"{named}.* number of classes, or catnat.Parameterization\(num_classes, act"):
        call()


def test_torchs_compiler_tells_advised_functions_apart() -> None:
    # it counts by code object how often something was compiled anew, and gives up after eight times
    advised = [f for name in ct.__all__ if hasattr(f := getattr(ct, name), "__wrapped__")]
    assert len({id(f.__code__) for f in advised}) == len(advised) > 8


def test_scores_without_their_classes() -> None:
    with pytest.raises(TypeError, match=r"got None: write catnat.Parameterization\(num_classes, activation\)"):
        ct.CatnatCategorical(X)


def test_an_error_inside_keeps_its_own_words() -> None:
    with pytest.raises(TypeError, match=r"^scores must be a torch.Tensor; got str$"):
        ct.cross_entropy("scores", torch.zeros(4, dtype=torch.int64), K)  # type: ignore[arg-type]
