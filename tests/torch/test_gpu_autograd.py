"""The public functions on top of the kernels, which Triton's interpreter runs on CPU tensors: autograd around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from torch import Tensor, library

import catnat
import catnat.torch as ct
from catnat import Parameterization, Tree
from catnat.torch import _dispatch
from catnat.torch._bernoulli import bernoulli_of
from catnat.torch._plan import Plan
from catnat.torch._walk import Walk
from tests.thinned import thinned

operators = pytest.importorskip("catnat.torch._gpu.operators")
autograd = pytest.importorskip("catnat.torch._gpu.autograd")

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested there")

PI = Parameterization(6)


def by_kernels(plan: Plan) -> Walk:
    """As if a CPU were a GPU."""
    return Walk(plan) if plan.bernoulli is None else autograd.KernelWalk(plan)


def choose(monkeypatch: pytest.MonkeyPatch, kernels: bool) -> None:
    """The walk of plain tensors, and what compilers see of it."""
    walk = by_kernels if kernels else Walk
    for_compilers = {"cpu": autograd.KernelWalk} if kernels else {}
    monkeypatch.setattr(_dispatch, "_KERNEL_WALK", for_compilers)
    monkeypatch.setattr(_dispatch._WALKS, "make", walk)
    catnat.clear_caches()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    choose(monkeypatch, True)
    yield monkeypatch
    catnat.clear_caches()


def both(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Tensor], *tensors: Tensor) -> list[list[Tensor]]:
    """Values and gradients by the kernels, and without."""
    found = []
    for on in (True, False):
        choose(monkeypatch, on)
        inputs = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
        value = function(*inputs)
        upstream = torch.linspace(-1, 1, value.numel()).cos().view(value.shape).to(value.dtype)
        gradients = torch.autograd.grad(value, [t for t in inputs if t.requires_grad], upstream)
        found.append([value.detach(), *gradients])
    return found


TREES = {"heap": None, "clustered": Tree.cluster([[0.0], [5.0], [0.1], [5.1], [2.0], [9.0]])}


@pytest.mark.parametrize(
    ("name", "tree", "dtype"),
    thinned(
        product(("sigmoid", "paper", "natural"), TREES, (torch.float32, torch.bfloat16)),
        quick=[("natural", "clustered", torch.float32)],  # the kernels' own tests have the others
    ),
    ids=str,
)
def test_functions_are_those_without_kernels(
    name: str, tree: str, dtype: torch.dtype, kernels: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    pi = Parameterization(6, name, TREES[tree])
    s, k = torch.randn(2, 4, 5).to(dtype), torch.randint(6, (2, 4))
    many = torch.randint(6, (3, 2, 4))
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for function, arguments in (
        (lambda s: ct.log_catnat(s, pi), (s,)),
        (lambda s: ct.catnat(s, pi), (s,)),
        (lambda s: ct.log_catnat(s.transpose(1, 2), pi, dim=1), (s,)),
        (lambda s: ct.entropy(s, pi), (s,)),
        (lambda s, k: ct.log_prob(s, k, pi), (s, k)),
        (lambda s, k: ct.log_prob(s, k, pi), (s, many)),
        (lambda s, k: torch.stack(ct.draw(s, pi, index=k)[1:]), (s, k)),
        (lambda s, k: ct.cross_entropy(s, k, pi, ignore_index=3), (s, k)),
        (lambda s, k: ct.cross_entropy(s, k, pi, reduction="sum", ignore_index=3), (s, k)),
        (lambda s, k: ct.cross_entropy(s, k, pi, reduction="none", ignore_index=-1), (s, k)),
        (lambda s, k: ct.cross_entropy(s, k, pi, weight=torch.arange(6.0)), (s, k)),
    ):
        for a, b in zip(*both(kernels, function, *arguments), strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, **tolerance)


def test_the_kernels_are_asked(kernels: pytest.MonkeyPatch) -> None:
    asked = []
    directly = operators.directly
    kernels.setattr(operators, "directly", lambda name, *rest: asked.append(name) or directly(name, *rest))
    s, k = torch.randn(3, 5, requires_grad=True), torch.tensor([0, 5, 2])
    ct.log_catnat(s, PI).sum().backward()
    ct.cross_entropy(s, k, PI).backward()
    (ct.log_prob(s, k, PI).sum() + ct.entropy(s, PI).sum() + ct.draw(s, PI).log_prob.sum()).backward()
    ct.sample(s, PI)
    assert asked.count("pull_path") == 2 and asked.count("pull") == 3
    assert {"walk", "pull", "loss", "log_path", "entropy", "sample_and_score", "sample"} < set(asked)


def test_draws_carry_gradients_and_ids_do_not(kernels: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("tree", thinned(TREES, quick=["clustered"]))
def test_second_derivatives(tree: str, kernels: pytest.MonkeyPatch) -> None:
    pi = Parameterization(6, "natural", TREES[tree])
    s = torch.randn(3, 5, requires_grad=True)
    k = torch.tensor([0, 3, 5])
    for function in (
        lambda s: ct.log_catnat(s, pi),
        lambda s: ct.catnat(s, pi),
        lambda s: ct.entropy(s, pi),
        lambda s: ct.log_prob(s, k, pi),
        lambda s: ct.cross_entropy(s, k, pi, reduction="none", ignore_index=3),
        lambda s: ct.cross_entropy(s, k, pi, ignore_index=3, weight=torch.arange(6.0)),
        lambda s: torch.stack(ct.draw(s, pi, index=k)[1:]),
    ):
        second = []
        for on in (True, False):
            choose(kernels, on)
            (first,) = torch.autograd.grad(function(s).sin().sum(), s, create_graph=True)
            second.append(torch.autograd.grad((first * first).sum(), s)[0])
        torch.testing.assert_close(*second, rtol=1e-3, atol=1e-4)


def test_what_was_overwritten_is_noticed(kernels: pytest.MonkeyPatch) -> None:
    for overwrite_scores in (False, True):
        leaf, k = torch.randn(4, 5, requires_grad=True), torch.zeros(4, dtype=torch.int64)
        s = leaf * 1
        loss = ct.log_prob(s, k, PI).sum()
        (s if overwrite_scores else k).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_transforms_and_forward_mode_take_plain_code(kernels: pytest.MonkeyPatch) -> None:
    s = torch.randn(4, 5)
    expected = ct.log_catnat(s, PI)
    torch.testing.assert_close(torch.func.vmap(lambda s: ct.log_catnat(s, PI))(s), expected)
    _, tangent = torch.func.jvp(lambda s: ct.log_catnat(s, PI), (s,), (torch.ones_like(s),))
    assert tangent.shape == (4, 6)


OPERATORS = {
    "walk": lambda x: (False,),
    "pull": lambda x: (torch.rand(*x.shape[:-1], 6), True),
    "log_path": lambda x: (torch.zeros(*x.shape[:-1], 2, dtype=torch.int64),),
    "loss": lambda x: (torch.zeros(x.shape[:-1], dtype=torch.int64), 3, None, "none"),
    "loss, reduced": lambda x: (torch.ones(x.shape[:-1], dtype=torch.int64), 3, torch.arange(6.0), "mean"),
    "sample": lambda x: (torch.tensor([3]), 5),
    "entropy": lambda x: (),
    "sample_and_score": lambda x: (torch.tensor([3]),),
    "score": lambda x: (torch.ones(x.shape[:-1], dtype=torch.int64),),
}


@pytest.mark.parametrize("name", thinned(OPERATORS, quick=["pull", "loss, reduced", "sample_and_score"]))
def test_operators_are_well_registered(name: str) -> None:
    x = torch.randn(3, 5, requires_grad=name not in ("pull", "sample"))
    operator = getattr(torch.ops.catnat, name.split(",")[0]).default
    nodes = bernoulli_of(PI, torch.device("cpu"))
    assert nodes is not None
    library.opcheck(operator, (x, *nodes, *OPERATORS[name](x)))


def test_compilers_see_operators(kernels: pytest.MonkeyPatch) -> None:
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


@pytest.mark.slow
def test_transforms_inside_of_a_compiler_take_plain_code(kernels: pytest.MonkeyPatch) -> None:
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


def test_operators_refuse_second_derivatives() -> None:
    nodes = bernoulli_of(PI, torch.device("cpu"))
    assert nodes is not None
    x = torch.randn(3, 5, requires_grad=True)
    (first,) = torch.autograd.grad(torch.ops.catnat.walk(x, *nodes, False).sin().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(first.sum(), x)


def test_gradients_without_memory_and_tangents_of_gradients(kernels: pytest.MonkeyPatch) -> None:
    from torch.autograd import forward_ad

    x = torch.randn(3, 5, requires_grad=True)
    zeros = torch._efficientzerotensor((3, 6))
    assert (torch.autograd.grad(ct.log_catnat(x, PI), x, zeros)[0] == 0).all()
    out, upstream, tangent = ct.log_catnat(x, PI), torch.randn(3, 6), torch.randn(3, 6)
    expected = torch.autograd.grad(ct.log_catnat(x, PI), x, tangent)[0]
    with forward_ad.dual_level():
        (found,) = torch.autograd.grad(out, x, forward_ad.make_dual(upstream, tangent))
        torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, expected, rtol=1e-4, atol=1e-5)
