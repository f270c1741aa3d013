"""Tensors as they come: any layout, any axis, any floating dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import catnat.torch as ct
from catnat import Natural, Parameterization, Tree

PI = {
    "balanced": Parameterization(6),
    "chain": Parameterization(6, "sigmoid", Tree.chain(6)),
    "large": Parameterization(100, Natural(tail=0.001)),
    "wide heap": Parameterization(100, "sigmoid"),
}
every_pi = pytest.mark.parametrize("pi", PI.values(), ids=PI.keys())

# what takes scores of any layout and has an answer a row or a class
FUNCTIONS: dict[str, Callable[[Tensor, Parameterization], Tensor]] = {
    "catnat": ct.catnat,
    "log_catnat": ct.log_catnat,
    "masked": lambda x, pi: ct.log_catnat(x, pi, mask=torch.arange(pi.num_classes) % 3 != 1),
    "log_prob": lambda x, pi: ct.log_prob(x, torch.zeros(x.shape[:-1], dtype=torch.int64), pi),
    "entropy": ct.entropy,
    "kl_divergence": lambda x, pi: ct.kl_divergence(x, 0 * x, pi),
    "cross_entropy": lambda x, pi: ct.cross_entropy(x, torch.ones(x.shape[:-1], dtype=torch.int64), pi, dim=-1),
    "reach": ct.reach,
    "fisher_diagonal": ct.fisher_diagonal,
}
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
# what takes an axis
ALONG: dict[str, Callable[..., Tensor]] = {
    name: getattr(ct, name) for name in ("catnat", "log_catnat", "reach", "fisher_diagonal")
}


def scores(pi: Parameterization, *batch: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*batch, pi.num_nodes, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@every_pi
@every_function
def test_layout_in_memory_does_not_matter(function: Callable[..., Tensor], pi: Parameterization) -> None:
    x = scores(pi, 6, 4)
    layouts = {
        "transposed": x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        "strided": torch.stack((x, -x), -1).flatten(-2)[..., ::2],
        "offset": torch.cat((x.new_zeros(6, 4, 3), x), -1)[..., 3:],
    }
    for name, view in layouts.items():
        assert not view.is_contiguous() and torch.equal(view, x), name
        torch.testing.assert_close(function(view, pi), function(x, pi), rtol=1e-13, atol=1e-13)
    row = x[:1].expand(6, 4, -1)
    torch.testing.assert_close(function(row, pi), function(row.clone(), pi), rtol=1e-13, atol=1e-13)


@every_pi
@every_function
def test_batch_axes_do_not_matter(function: Callable[..., Tensor], pi: Parameterization) -> None:
    x = scores(pi, 6, 4)
    if function is FUNCTIONS["cross_entropy"]:
        torch.testing.assert_close(function(x, pi), function(x.flatten(0, 1), pi))
        return
    expected = function(x.flatten(0, 1), pi)
    torch.testing.assert_close(function(x, pi), expected.unflatten(0, (6, 4)), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(function(x[2, 3], pi), expected[11], rtol=1e-13, atol=1e-13)


@every_pi
@pytest.mark.parametrize("name", ALONG)
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_any_axis_may_hold_the_scores(name: str, dim: int, pi: Parameterization) -> None:
    x, function = scores(pi, 6, 4), ALONG[name]
    found = function(x.movedim(-1, dim), pi, dim=dim)
    assert found.shape[dim] == (pi.num_classes if "catnat" in name else pi.num_nodes)
    torch.testing.assert_close(found.movedim(dim, -1), function(x, pi), rtol=1e-13, atol=1e-13)


@every_pi
@pytest.mark.parametrize("dim", [0, 1, -2, -3])
def test_masks_targets_and_probabilities_share_the_axis(dim: int, pi: Parameterization) -> None:
    x = scores(pi, 6, 4)
    moved = x.movedim(-1, dim)
    mask = torch.rand(6, 4, pi.num_classes, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[..., 0] = True
    for allowed, own in ((mask.movedim(-1, dim), mask), (mask[0, 0], mask[0, 0])):
        found = ct.log_catnat(moved, pi, mask=allowed, dim=dim)
        torch.testing.assert_close(found.movedim(dim, -1), ct.log_catnat(x, pi, mask=own))
    target = torch.randint(pi.num_classes, (6, 4), generator=torch.Generator().manual_seed(2))
    expected = ct.cross_entropy(x, target, pi)
    torch.testing.assert_close(ct.cross_entropy(moved, target, pi, dim=dim), expected)
    one_hot = torch.nn.functional.one_hot(target, pi.num_classes).to(x.dtype).movedim(-1, dim)
    torch.testing.assert_close(ct.cross_entropy(moved, one_hot, pi, dim=dim), expected)
    probs = ct.catnat(moved, pi, dim=dim)
    inverse = ct.scores_from_probs(probs, pi, dim=dim)
    torch.testing.assert_close(ct.catnat(inverse, pi, dim=dim), probs)


@every_pi
@every_function
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_once(
    function: Callable[..., Tensor], dtype: torch.dtype, pi: Parameterization
) -> None:
    x = scores(pi, 50, dtype=dtype)
    found = function(x, pi)
    assert found.dtype == dtype
    assert torch.equal(found, function(x.float(), pi).to(dtype))


@every_pi
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_are_rounded_once(dtype: torch.dtype, pi: Parameterization) -> None:
    x = scores(pi, 50, dtype=dtype).requires_grad_()
    wide = x.detach().float().requires_grad_()
    upstream = torch.randn(50, pi.num_classes, generator=torch.Generator().manual_seed(1)).to(dtype)
    ct.log_catnat(x, pi).backward(upstream)
    ct.log_catnat(wide, pi).backward(upstream.float())
    assert torch.equal(x.grad, wide.grad.to(dtype))


@every_pi
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_integers_come_out_as_int64_whatever_the_scores_are(dtype: torch.dtype, pi: Parameterization) -> None:
    x = scores(pi, 5, dtype=dtype)
    assert ct.mode(x, pi).dtype == ct.sample(x, pi).dtype == torch.int64
    assert ct.scores_from_probs(ct.catnat(x, pi), pi).dtype == dtype


@every_function
def test_inputs_are_left_alone(function: Callable[..., Tensor]) -> None:
    for pi in PI.values():
        x = scores(pi, 30, dtype=torch.float32)
        kept = x.clone()
        function(x, pi)
        assert torch.equal(x, kept)
