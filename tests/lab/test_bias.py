"""`benchmarks.bias`: the enumeration, and what is unbiased comes out so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks import bias
from benchmarks.bias import TAUS, UNBIASED, Cost, cost_of, known, measured
from catnat.torch.latents import ESTIMATORS

IMAGES, VARIABLES, CLASSES, PIXELS, DRAWS = 2, 3, 3, 5, 20_000


def toy() -> tuple[Tensor, Cost]:
    torch.manual_seed(0)
    decoder = torch.nn.Linear(VARIABLES * CLASSES, PIXELS, dtype=torch.float64).requires_grad_(False)
    decoder.weight *= 4  # far from linear
    log_q = torch.randn(IMAGES, VARIABLES, CLASSES, dtype=torch.float64).log_softmax(-1)
    return log_q, cost_of(decoder, torch.bernoulli(torch.full((IMAGES, PIXELS), 0.5, dtype=torch.float64)))


def test_every_code_has_its_cost_and_its_share_of_the_gradient() -> None:
    log_q, cost = toy()
    costs, gradient = known(log_q, cost)
    expected = torch.zeros_like(log_q)
    for place, code in enumerate(torch.cartesian_prod(*[torch.arange(CLASSES)] * VARIABLES)):
        z = torch.nn.functional.one_hot(code, CLASSES).double().expand_as(log_q)
        torch.testing.assert_close(costs[place], cost(z))
        expected += z * (costs[place] * (z * log_q).sum((-1, -2)).exp())[:, None, None]
    torch.testing.assert_close(gradient, expected)


def test_every_estimator_is_measured() -> None:
    assert set(TAUS) == {*ESTIMATORS, *UNBIASED}


@pytest.mark.parametrize("name", UNBIASED)
def test_the_unbiased_have_no_bias_but_noise(name: str) -> None:
    for found in measured(*toy(), name, 1.0, DRAWS).values():
        assert abs(found["bias"]) < 2 * found["noise"] < 0.2
        assert found["cosine"] == pytest.approx(1, abs=0.02)
        assert found["error"] == pytest.approx(found["deviation"], rel=0.02)


def test_reinmax_is_unbiased_for_a_quadratic_cost_and_straight_through_is_not() -> None:
    log_q, _ = toy()
    weight = torch.randn(VARIABLES * CLASSES, PIXELS, dtype=torch.float64)

    def cost(z: Tensor) -> Tensor:
        return (z.flatten(-2) @ weight).square().sum(-1)

    for found in measured(log_q, cost, "reinmax", 1.0, DRAWS).values():
        assert abs(found["bias"]) < 2 * found["noise"] < 0.1
    for found in measured(log_q, cost, "straight-through", 1.0, DRAWS).values():
        assert found["bias"] > 5 * found["noise"]


def test_the_noise_of_the_mean_is_taken_off() -> None:
    """Draws around a vector a tenth too long, so few that their mean is further off by its noise."""
    torch.manual_seed(0)
    exact = torch.ones(1_000, dtype=torch.float64)
    draws = 1.1 * exact + 3 * torch.randn(300, 1_000, dtype=torch.float64)
    found = bias.judged(exact, draws.sum(0), draws.square().sum(0), len(draws))
    assert found["noise"] > 1.5 * found["bias"]
    assert found["bias"] == pytest.approx(0.1, abs=0.02)
    assert found["cosine"] == pytest.approx(1, abs=0.005)
    assert found["deviation"] == pytest.approx(3, rel=0.02)
    assert found["error"] == pytest.approx((9 + 0.01) ** 0.5, rel=0.02)
