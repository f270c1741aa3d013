"""The kernels of a wide head on a GPU: against all scores in float64, twice the same, in graphs and under compilers."""

from __future__ import annotations

import pytest
import torch

import catnat.torch as ct
from catnat import Parameterization, Tree
from catnat.torch import _dispatch
from tests.torch.test_wide import ACTIVATIONS, trees

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.fixture
def by_kernels(monkeypatch):
    """One path is read from the first class on."""
    monkeypatch.setattr(_dispatch, "PATH_FROM", {"cuda": 2})


def case(pi, rows, width, dtype, kind="often"):
    torch.manual_seed(rows)
    head = ct.CatnatLinear(width, pi, device=CUDA, dtype=dtype)
    with torch.no_grad():
        if head.linear.bias is not None:
            head.linear.bias.normal_()
    x = torch.randn(rows, width, device=CUDA).to(dtype).requires_grad_()
    spread = torch.rand(rows, device=CUDA)
    target = ((spread**4 if kind == "often" else spread) * pi.num_classes).long()
    return head, x, target


def gradients(head, loss, x):
    return list(torch.autograd.grad(loss, [x, *head.parameters()]))


def judged(head, x, target, **settings):
    """By all scores in float64."""
    own = [p.detach().double().requires_grad_() for p in (x, *head.parameters())]
    scores = torch.nn.functional.linear(*own)
    loss = ct.cross_entropy(scores, target, head.parameterization, **settings)
    return loss, torch.autograd.grad(loss, own)


CASES = [
    (rows, width, tree, activation, kind)
    for rows in (1, 63, 500)
    for width in (16, 100, 384)
    for tree in ("balanced", "cluster", "huffman")
    for activation in ("natural", "sigmoid", "paper", "tail")
    for kind in ("often", "spread")
]


@pytest.mark.parametrize(("rows", "width", "tree", "activation", "kind"), CASES[::7])
def test_losses_and_gradients(rows, width, tree, activation, kind, by_kernels):
    pi = Parameterization(3000, ACTIVATIONS[activation], tree=trees(3000)[tree])
    head, x, target = case(pi, rows, width, torch.float32, kind)
    target[::9] = -100
    if (target == -100).all():
        target[0] = 5
    expected, slopes = judged(head, x, target)
    found = head.loss(x, target)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    for got, judge in zip(gradients(head, found, x), slopes, strict=True):
        scale = judge.abs().max().item()
        torch.testing.assert_close(got.double(), judge, rtol=2e-4, atol=2e-5 * scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_numbers(dtype, by_kernels):
    head, x, target = case(Parameterization(5000), 700, 256, dtype)
    expected, slopes = judged(head, x, target)
    found = head.loss(x, target)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=2 * eps, atol=eps)
    for got, judge in zip(gradients(head, found, x), slopes, strict=True):
        torch.testing.assert_close(got.double(), judge, rtol=4 * eps, atol=2 * eps * judge.abs().max().item())


def test_one_class_alone_and_many_rows(by_kernels):
    head, x, _ = case(Parameterization(4096), 5000, 64, torch.float32)
    target = torch.full((5000,), 77, device=CUDA)
    expected, slopes = judged(head, x, target)
    found = head.loss(x, target)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    for got, judge in zip(gradients(head, found, x), slopes, strict=True):
        torch.testing.assert_close(got.double(), judge, rtol=1e-4, atol=1e-5 * judge.abs().max().item())


def test_the_same_bits_twice():
    head, x, target = case(Parameterization(50_000), 4096, 128, torch.bfloat16)
    first, second = (gradients(head, head.loss(x, target), x) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_captured_graph_follows_its_inputs(by_kernels):
    head, x, target = case(Parameterization(5000), 300, 64, torch.float32)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            gradients(head, head.loss(x, target), x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = head.loss(x, target)
        found = gradients(head, loss, x)
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
        target.copy_(torch.randint(5000, target.shape, device=CUDA))
    graph.replay()
    again = head.loss(x, target)
    assert torch.equal(loss, again)
    assert all(torch.equal(a, b) for a, b in zip(found, gradients(head, again, x), strict=True))


@pytest.mark.skipif(torch.__version__ < "2.13", reason="seen to fail under PyTorch 2.11's compiler")
def test_torch_compile(by_kernels):
    head, x, target = case(Parameterization(5000), 300, 64, torch.float32)
    expected = head.loss(x, target)
    found = torch.compile(lambda x, target: head.loss(x, target), fullgraph=True)(x, target)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(head, found, x), gradients(head, expected, x))


def test_autocast(by_kernels):
    head, x, target = case(Parameterization(5000), 300, 64, torch.float32)
    expected = head.loss(x, target)
    with torch.autocast("cuda", torch.bfloat16):
        mixed = head.loss(x.bfloat16(), target)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("tree", ["balanced", "huffman"])
def test_draws_follow_the_probabilities(tree, by_kernels):
    tree = Tree.huffman([2.0**-k for k in range(20)]) if tree == "huffman" else Tree.balanced(20)
    torch.manual_seed(0)
    head = ct.CatnatLinear(300, Parameterization(20, tree=tree), device=CUDA)
    x = torch.randn(1, 300, device=CUDA)
    count = 200_000
    drawn = head.sample(x.expand(count, -1), generator=torch.Generator(CUDA).manual_seed(1))
    share = torch.bincount(drawn, minlength=20) / count
    assert (share - head.log_probs(x)[0].exp()).abs().max() < 5 * (0.25 / count) ** 0.5


def test_second_derivatives_go_by_plain_code(by_kernels):
    head, x, target = case(Parameterization(3000), 5, 16, torch.float32)
    twice = []
    for loss in (head.loss(x, target), ct.cross_entropy(head.linear(x), target, head.parameterization)):
        (dx,) = torch.autograd.grad(loss, x, create_graph=True)
        twice.append(torch.autograd.grad(dx.square().sum(), x)[0])
    torch.testing.assert_close(*twice, rtol=1e-3, atol=1e-6)
