"""The public functions on top of the kernels, which Triton's interpreter runs on CPU tensors: autograd around them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, library

import catnat.torch as ct
from catnat import Natural, Parameterization
from catnat.torch import _gpu, _plan

launch = pytest.importorskip("catnat.torch._gpu.launch")

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested there")

PI = Parameterization(6, "natural")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if a CPU were a GPU."""
    monkeypatch.setattr(plan, "kernels_for", lambda device: launch)
    plan._cached.cache_clear()
    yield
    plan._cached.cache_clear()


def both(function: object, *tensors: Tensor) -> list[list[Tensor]]:
    """Values and gradients by the kernels, and without."""
    found = []
    for _ in range(2):
        inputs = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
        value = function(*inputs)  # type: ignore[operator]
        gradients = torch.autograd.grad(value.double().sin().sum(), [t for t in inputs if t.requires_grad])
        found.append([value.detach(), *gradients])
        plan._cached.cache_clear()
        plan.kernels_for = lambda device: None
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["sigmoid", "natural", "revive"])
def test_functions_are_those_without_kernels(name: str, dtype: torch.dtype, kernels: None) -> None:
    torch.manual_seed(0)
    pi = Parameterization(6, Natural(saturation="revive", floor=1e-4) if name == "revive" else name)
    s, k = torch.randn(2, 4, 5).to(dtype), torch.randint(6, (2, 4))
    many = torch.randint(6, (3, 2, 4))
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    assert plan.takes_kernels(s, plan.plan_for(pi, 6, torch.float32, s.device))
    for function, arguments in (
        (lambda s: ct.log_catnat(s, pi), (s,)),
        (lambda s: ct.catnat(s, pi), (s,)),
        (lambda s: ct.log_catnat(s.transpose(1, 2), pi, dim=1), (s,)),
        (lambda s: ct.entropy(s, pi), (s,)),
        (lambda s, k: ct.log_prob(s, k, pi), (s, k)),
        (lambda s, k: ct.log_prob(s, k, pi), (s, many)),
        (lambda s, k: torch.stack(ct.draw(s, pi, index=k)[1:]), (s, k)),
        (lambda s, k: ct.cross_entropy(s, k, pi, ignore_index=3), (s, k)),
        (lambda s, k: ct.cross_entropy(s, k, pi, reduction="none", ignore_index=-1), (s, k)),
        (lambda s, k: ct.cross_entropy(s, k, pi, weight=torch.arange(6.0)), (s, k)),
    ):
        plan.kernels_for = lambda device: launch
        plan._cached.cache_clear()
        for a, b in zip(*both(function, *arguments), strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, **tolerance)


def test_draws_carry_gradients_and_ids_do_not(kernels: None) -> None:
    s = torch.randn(7, 5, requires_grad=True)
    drawn = ct.draw(s, PI)
    assert not drawn.sample.requires_grad and drawn.log_prob.requires_grad and drawn.entropy.requires_grad
    given = ct.draw(s, PI, index=drawn.sample)
    torch.testing.assert_close(drawn[1:], given[1:])
    for part in (1, 2):  # the other one's gradient is then a tensor of zeros
        ours, theirs = (torch.autograd.grad(d[part].sum(), s, retain_graph=True)[0] for d in (drawn, given))
        torch.testing.assert_close(ours, theirs)
    seeds = [ct.sample(s, PI, generator=torch.Generator().manual_seed(n)) for n in (1, 1, 2)]
    assert torch.equal(seeds[0], seeds[1])
    assert ct.sample(s, PI, sample_shape=(2, 3)).shape == (2, 3, 7)
    with torch.no_grad():
        assert not ct.draw(s, PI).entropy.requires_grad
    with torch.inference_mode():
        assert ct.log_catnat(s, PI).shape == (7, 6)


def test_second_derivatives(kernels: None) -> None:
    s = torch.randn(3, 5, requires_grad=True)
    k = torch.tensor([0, 3, 5])
    for function in (
        lambda s: ct.log_catnat(s, PI),
        lambda s: ct.catnat(s, PI),
        lambda s: ct.entropy(s, PI),
        lambda s: ct.log_prob(s, k, PI),
        lambda s: ct.cross_entropy(s, k, PI, reduction="none", ignore_index=3),
        lambda s: torch.stack(ct.draw(s, PI, index=k)[1:]),
    ):
        second = []
        for on in (launch, None):
            plan.kernels_for = lambda device, on=on: on  # type: ignore[misc]
            plan._cached.cache_clear()
            (first,) = torch.autograd.grad(function(s).sin().sum(), s, create_graph=True)
            second.append(torch.autograd.grad((first * first).sum(), s)[0])
        torch.testing.assert_close(*second, rtol=1e-3, atol=1e-4)


def test_what_was_overwritten_is_noticed(kernels: None) -> None:
    for overwrite_scores in (False, True):
        leaf, k = torch.randn(4, 5, requires_grad=True), torch.zeros(4, dtype=torch.int64)
        s = leaf * 1
        loss = ct.log_prob(s, k, PI).sum()
        (s if overwrite_scores else k).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_transforms_and_forward_mode_take_plain_code(kernels: None) -> None:
    s = torch.randn(4, 5)
    expected = ct.log_catnat(s, PI)
    torch.testing.assert_close(torch.func.vmap(lambda s: ct.log_catnat(s, PI))(s), expected)
    _, tangent = torch.func.jvp(lambda s: ct.log_catnat(s, PI), (s,), (torch.ones_like(s),))
    assert tangent.shape == (4, 6)
    assert on_gpu.has_head(s, plan.plan_for(PI, 6, torch.float32, s.device))


OPERATORS = {
    "walk": lambda x, coin: (x, *coin, False),
    "pull": lambda x, coin: (x.detach(), *coin, True, torch.rand(*x.shape[:-1], coin[1])),
    "log_path": lambda x, coin: (x, *coin, None, torch.zeros(*x.shape[:-1], 2, dtype=torch.int64)),
    "sample": lambda x, coin: (x.detach(), *coin, torch.tensor([3]), 5),
    "entropy": lambda x, coin: (x, *coin),
    "draw": lambda x, coin: (x, *coin, torch.tensor([3])),
    "judge": lambda x, coin: (x, *coin, torch.ones(x.shape[:-1], dtype=torch.int64)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_well_registered(name: str, kernels: None) -> None:
    from catnat.torch._gpu import ops  # noqa: F401

    coin = plan.plan_for(PI, 6, torch.float32, torch.device("cpu")).coin_arguments
    x = torch.randn(3, 5, requires_grad=True)
    library.opcheck(getattr(torch.ops.catnat, name).default, OPERATORS[name](x, coin))


def test_compilers_see_operators(kernels: None) -> None:
    from catnat.torch._gpu import ops  # noqa: F401

    def step(s: Tensor, k: Tensor) -> Tensor:
        drawn = ct.draw(s, PI, index=k)
        loss = ct.log_catnat(s, PI).sin().mean() + ct.catnat(s, PI).square().mean() + ct.cross_entropy(s, k, PI)
        return loss + drawn.log_prob.mean() + drawn.entropy.mean() + ct.log_prob(s, k, PI).mean()

    s, k = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 5, 2, 3])
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    values = [f(s, k) for f in (step, compiled)]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(v, s)[0] for v in values))

    class Head(torch.nn.Module):
        def forward(self, s: Tensor) -> Tensor:
            return ct.log_catnat(s, PI)

    program = torch.export.export(Head(), (s.detach(),))
    assert any("catnat.walk" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(s.detach()), ct.log_catnat(s.detach(), PI))


def test_transforms_inside_of_a_compiler_take_plain_code(kernels: None) -> None:
    from catnat.torch._gpu import ops  # noqa: F401

    def f(s: Tensor) -> Tensor:
        return ct.log_catnat(s, PI).sin().sum() + ct.entropy(s, PI).sum()

    x = torch.randn(3, 4, 5)
    for transformed in (
        torch.func.vmap(f),
        torch.func.grad(f),
        torch.func.vmap(torch.func.grad(f)),
        lambda x: torch.func.jvp(f, (x,), (x.cos(),))[1],
    ):
        torch._dynamo.reset()
        compiled = torch.compile(transformed, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), transformed(x))


def test_operators_refuse_second_derivatives(kernels: None) -> None:
    from catnat.torch._gpu import ops  # noqa: F401

    coin = plan.plan_for(PI, 6, torch.float32, torch.device("cpu")).coin_arguments
    x = torch.randn(3, 5, requires_grad=True)
    (first,) = torch.autograd.grad(torch.ops.catnat.walk(x, *coin, False).sin().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(first.sum(), x)


def test_gradients_without_memory_and_tangents_of_gradients(kernels: None) -> None:
    from torch.autograd import forward_ad

    x = torch.randn(3, 5, requires_grad=True)
    zeros = torch._efficientzerotensor((3, 6))
    assert (torch.autograd.grad(ct.log_catnat(x, PI), x, zeros)[0] == 0).all()
    out, upstream, tangent = ct.log_catnat(x, PI), torch.randn(3, 6), torch.randn(3, 6)
    expected = torch.autograd.grad(ct.log_catnat(x, PI), x, tangent)[0]
    with forward_ad.dual_level():
        (found,) = torch.autograd.grad(out, x, forward_ad.make_dual(upstream, tangent))
        torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, expected, rtol=1e-4, atol=1e-5)
