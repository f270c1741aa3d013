"""log_prob of the natural activation has a hand-written way of its own; the plain one is its judge."""

import math
from unittest.mock import patch

import pytest
import torch

import catnat.torch as ct
from catnat import Natural, Parameterization, Tree
from catnat.torch import eager, fused_path
from catnat.torch.plan import plan_for

PIS = {
    "even": Parameterization(8),
    "uneven": Parameterization(18),
    "chain": Parameterization(6, tree=Tree.chain(6)),
    "centred": Parameterization(7, Natural(), center="uniform"),
    "narrow, high floor": Parameterization(5, Natural(amplitude=0.5, floor=1e-3)),
}


def both_ways(x: torch.Tensor, index: torch.Tensor, pi: Parameterization) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Values and gradients by the hand-written way and by the plain one."""
    upstream = torch.randn(index.shape, dtype=x.dtype)
    found = []
    for applies in (True, False):
        with patch.object(fused_path, "applies", lambda *_, applies=applies: applies):
            value = ct.log_prob(x, index, pi)
            found.append((value.detach(), *torch.autograd.grad(value, x, upstream)))
    return found


@pytest.mark.parametrize("samples", [(), (4,)])
@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("pi", PIS.values(), ids=PIS)
def test_it_is_the_plain_one_with_values_and_gradients(pi, scale, samples):
    x = (torch.randn(50, pi.num_nodes, dtype=torch.float64) * scale).requires_grad_()
    index = torch.randint(pi.num_classes, (*samples, 50))
    (value, gradient), (plain_value, plain_gradient) = both_ways(x, index, pi)
    torch.testing.assert_close(value, plain_value, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gradient, plain_gradient, rtol=1e-11, atol=1e-11)


def test_infinite_scores_stand_on_the_floor_and_nan_stays_visible():
    x = torch.tensor([[math.inf, 0.0, -math.inf], [math.nan, 0.0, 0.0]], requires_grad=True)
    pi = Parameterization(4, Natural(floor=1e-6))
    value = ct.log_prob(x, torch.tensor([0, 0]), pi)
    value.sum().backward()
    torch.testing.assert_close(value[0].exp(), torch.tensor(0.5e-6), rtol=1e-5, atol=0)
    assert value[1].isnan() and x.grad[1].isnan().any()
    assert (x.grad[0] == torch.tensor([0.0, x.grad[0, 1], 0.0])).all() and x.grad[0, 1] != 0


def test_it_is_taken_where_a_product_of_sines_stays_in_range():
    def products(classes: int, dtype: torch.dtype = torch.float32, **options: object) -> bool:
        pi = Parameterization(classes, Natural(**options))
        return plan_for(pi, classes, dtype, torch.device("cpu")).path_products

    assert products(100) and products(1 << 14, torch.float64)
    assert not products(1 << 14)  # (1e-4)^14 is no float32
    assert not products(100, floor=1e-20) and not products(100, saturation="reflect")
    for classes, floor in ((128, 1e-8), (1 << 14, 1e-4)):  # at the very bottom of the deepest class
        pi = Parameterization(classes, Natural(floor=floor))
        value = ct.log_prob(torch.full((1, classes - 1), 99.0), torch.tensor([0]), pi)
        torch.testing.assert_close(value.item(), math.log(floor) * math.log2(classes), rtol=1e-6, atol=0)


def test_derivatives_of_derivatives_and_batches_of_gradients_are_the_plain_ones():
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    index = torch.randint(8, (5,))
    assert torch.autograd.gradcheck(lambda s: ct.log_prob(s, index), x)
    assert torch.autograd.gradgradcheck(lambda s: ct.log_prob(s, index), x)
    value = ct.log_prob(x, index)
    (rows,) = torch.autograd.grad(value, x, torch.eye(5, dtype=x.dtype), is_grads_batched=True)
    torch.testing.assert_close(rows.sum(0), torch.autograd.grad(ct.log_prob(x, index).sum(), x)[0])


def test_transforms_and_forward_mode_go_the_plain_way():
    x, index = torch.randn(5, 7), torch.randint(8, (5,))
    with patch.object(eager, "log_path", wraps=eager.log_path) as plain:
        torch.func.vmap(ct.log_prob)(x, index)
        torch.func.jvp(lambda s: ct.log_prob(s, index), (x,), (x,))
        assert plain.call_count == 2
        ct.log_prob(x, index)
        assert plain.call_count == 2
