"""A linear head that reads one path of its tree equals the same head by all scores: values, gradients, draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import catnat.torch as ct
from catnat import Natural, Parameterization, Tree
from catnat.torch import _dispatch, _eager, _plan, nn
from tests.thinned import thinned

ROWS, WIDTH = 37, 12


def trees(classes: int) -> dict[str, Tree]:
    rng = np.random.default_rng(classes)
    return {
        "balanced": Tree.balanced(classes),
        "cluster": Tree.cluster(rng.normal(size=(classes, 3))),
        "huffman": Tree.huffman(rng.exponential(size=classes) ** 4),
        "chain": Tree.chain(min(classes, 20)),
    }


ACTIVATIONS = {
    "natural": "natural",
    "sigmoid": "sigmoid",
    "paper": "paper",
    "tail": Natural(tail=0.01, amplitude=4.0),
    "floor": Natural(tail=0.0, floor=1e-6),
}


def head_of(pi: Parameterization, *, bias: bool = True, dtype=torch.float32) -> ct.CatnatLinear:
    torch.manual_seed(pi.num_classes)
    head = ct.CatnatLinear(WIDTH, pi, bias=bias, dtype=dtype)
    with torch.no_grad():
        if bias:
            head.linear.bias.normal_()
    return head


def data(classes: int, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(classes)
    x = torch.randn(ROWS, WIDTH, generator=generator).to(dtype)
    # some classes come often, as words do
    target = (torch.rand(ROWS, generator=generator) ** 3 * classes).long()
    return x, target


@pytest.fixture
def by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are read from the first class on."""
    monkeypatch.setattr(_dispatch, "PATH_FROM", {"cpu": 2})


def gradients(head: ct.CatnatLinear, loss: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, [x, *head.parameters()]))


CASES = [
    (size, tree, activation, settings)
    for size in (2, 5, 64, 100)
    for tree in ("balanced", "cluster", "huffman", "chain")
    for activation in ACTIVATIONS
    for settings in ("mean", "sum", "none", "weighted")
]


@pytest.mark.parametrize(("size", "tree", "activation", "settings"), thinned(CASES, every=5))
def test_the_loss_and_its_gradients_are_those_of_all_scores(size, tree, activation, settings, by_path):
    tree = trees(size)[tree]
    pi = Parameterization(tree.num_classes, ACTIVATIONS[activation], tree=tree)
    head, (x, target) = head_of(pi, dtype=torch.float64), data(pi.num_classes, torch.float64)
    x.requires_grad_()
    target[::5] = -100
    given = {"reduction": settings} if settings != "weighted" else {"weight": torch.rand(pi.num_classes).double()}
    expected = ct.cross_entropy(head.linear(x), target, pi, **given)
    found = head.loss(x, target, **given)
    torch.testing.assert_close(found, expected)
    down = torch.linspace(0.5, 2, expected.numel(), dtype=torch.float64).reshape(expected.shape)
    torch.testing.assert_close(gradients(head, (found * down).sum(), x), gradients(head, (expected * down).sum(), x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_short_numbers_are_computed_in_float32(dtype, by_path):
    pi = Parameterization(100)
    head, (x, target) = head_of(pi, dtype=dtype), data(100, dtype)
    exact = head_of(pi, dtype=dtype).double()
    x.requires_grad_()
    loss = head.loss(x, target)
    assert loss.dtype == dtype
    far = x.detach().double().requires_grad_()
    expected = exact.loss(far, target)
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": torch.finfo(dtype).eps}
    torch.testing.assert_close(loss.double(), expected, **tolerance)
    for found, judge in zip(gradients(head, loss, x), gradients(exact, expected, far), strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), judge, **tolerance)


def test_second_derivatives(by_path):
    pi = Parameterization(9)
    head, (x, target) = head_of(pi, dtype=torch.float64), data(9, torch.float64)
    x, target = x[:3].requires_grad_(), target[:3]
    weight, bias = head.linear.weight, head.linear.bias
    call = lambda x, weight, bias: torch.func.functional_call(  # noqa: E731
        _Loss(head), {"head.linear.weight": weight, "head.linear.bias": bias}, (x, target)
    )
    assert torch.autograd.gradgradcheck(call, (x, weight, bias))


class _Loss(torch.nn.Module):
    def __init__(self, head: ct.CatnatLinear) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.head.loss(x, target)


def test_function_transforms_take_it(by_path):
    head, (x, target) = head_of(Parameterization(50)), data(50)
    each = torch.func.vmap(lambda x, target: head.loss(x, target))(x[:, None], target[:, None])
    torch.testing.assert_close(each, head.loss(x, target, reduction="none"))


@pytest.mark.parametrize("tree", ["balanced", "huffman"])
def test_torch_compile_gives_the_same(tree, by_path):
    pi = Parameterization(100, tree=trees(100)[tree])
    head, (x, target) = head_of(pi), data(100)
    x.requires_grad_()
    expected = head.loss(x, target)
    compiled = torch.compile(lambda x, target: head.loss(x, target), backend="aot_eager", fullgraph=True)
    found = compiled(x, target)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(head, found, x), gradients(head, expected, x))


def test_batches_of_any_shape(by_path):
    head, (x, target) = head_of(Parameterization(100)), data(100)
    flat = head.loss(x[:36], target[:36], reduction="none")
    folded = head.loss(x[:36].view(3, 12, WIDTH), target[:36].view(3, 12), reduction="none")
    torch.testing.assert_close(folded, flat.view(3, 12))
    assert head.loss(x[:0], target[:0], reduction="sum") == 0
    torch.testing.assert_close(head.loss(x[0], target[0]), flat[0])
    torch.testing.assert_close(head.log_prob(x[:36], target[:36]), -flat)
    assert head.sample(x.view(37, 1, WIDTH)).shape == (37, 1)


def test_draws_follow_the_probabilities(by_path):
    for tree in trees(12).values():
        head = head_of(Parameterization(tree.num_classes, tree=tree))
        x = data(12)[0][:1]
        count = 40_000
        drawn = head.sample(x.expand(count, -1), generator=torch.Generator().manual_seed(1))
        share = torch.bincount(drawn, minlength=tree.num_classes) / count
        p = head.log_probs(x)[0].exp()
        assert (share - p).abs().max() < 5 * (0.25 / count) ** 0.5


@pytest.mark.parametrize("tree", ["balanced", "cluster", "huffman", "chain"])
def test_a_wide_beam_finds_the_likeliest_classes(tree):
    tree = trees(64)[tree]
    head = head_of(Parameterization(tree.num_classes, tree=tree))
    x = 3 * data(64)[0]
    exact = head.topk(x, 5)
    torch.testing.assert_close(exact.log_probs, head.log_probs(x).topk(5).values)
    found = head.topk(x, 5, beam=tree.num_classes)
    torch.testing.assert_close(found.log_probs, exact.log_probs)
    narrow = head.topk(x, 2, beam=6)
    own = head.log_probs(x).gather(1, narrow.classes)
    torch.testing.assert_close(narrow.log_probs, own)  # what it finds has its right probability
    assert torch.isclose(narrow.log_probs[:, 0], exact.log_probs[:, 0]).float().mean() > 0.7
    assert (head.mode(x, beam=tree.num_classes) == head.mode(x)).all()


def test_what_is_wrong_is_named(by_path):
    head, (x, target) = head_of(Parameterization(100)), data(100)
    with pytest.raises(ValueError, match=r"x must be a tensor of shape \[..., in_features = 12\]; got \(37, 11\)"):
        head.loss(x[:, 1:], target)
    with pytest.raises((ValueError, IndexError), match="target"):
        head.loss(x, target + 100)
    with pytest.raises(ValueError, match="target must hold one class id a row"):
        head.loss(x, target[:5])
    with pytest.raises(ValueError, match="reduction"):
        head.loss(x, target, reduction="avg")
    with pytest.raises(ValueError, match="beam must be at least k = 3; got 2"):
        head.topk(x, 3, beam=2)
    with pytest.raises(ValueError, match=r"k must lie in \[1, 100\]; got 101"):
        head.topk(x, 101)


def test_autocast_answers_in_float32(by_path):
    head, (x, target) = head_of(Parameterization(100)), data(100)
    with torch.autocast("cpu", torch.bfloat16):
        loss = head.loss(x, target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, head.loss(x, target))


def test_trees_without_a_table_of_paths(monkeypatch):
    pi, index = Parameterization(100, tree=trees(100)["huffman"]), torch.arange(100)
    with_table = _eager.paths(index, _plan.Plan(pi, torch.float32, torch.device("cpu")))
    monkeypatch.setattr(_plan, "MAX_PATH_TABLE", 0)
    nodes, right, taken = _eager.paths(index, _plan.Plan(pi, torch.float32, torch.device("cpu")))
    assert (taken == with_table[2]).all()
    assert (nodes[taken] == with_table[0][taken]).all() and (right[taken] == with_table[1][taken]).all()


def test_class_weights_of_any_dtype_and_padding_ids_past_the_classes(by_path):
    head, (x, target) = head_of(Parameterization(50), dtype=torch.float16), data(50, torch.float16)
    x, target = x.repeat(200, 1), target.repeat(200)
    weight = torch.full((50,), 10.0).half()  # whose sum over the rows is no number of 16 bits
    torch.testing.assert_close(head.loss(x, target, weight=weight), head.loss(x, target))
    padded = target.clone()
    padded[3] = 50
    expected = ct.cross_entropy(head.linear(x), padded, 50, weight=weight, ignore_index=50)
    torch.testing.assert_close(head.loss(x, padded, weight=weight, ignore_index=50), expected, rtol=2e-3, atol=1e-3)


def test_what_is_attached_to_the_layer_is_called(by_path):
    x, target = data(50)
    head, seen = head_of(Parameterization(50)), []
    expected = head.loss(x, target)
    head.linear.register_forward_hook(lambda *given: seen.append(1))
    torch.testing.assert_close(head.loss(x, target), expected)
    assert seen
    adapted = head_of(Parameterization(50))
    adapted.linear = _Adapted(adapted.linear)
    torch.testing.assert_close(adapted.loss(x, target), ct.cross_entropy(adapted.linear(x), target, 50))


def test_other_ways_to_watch_the_layer(by_path, monkeypatch):
    x, target = data(50)
    head, seen = head_of(Parameterization(50)), []
    head.linear.register_full_backward_pre_hook(lambda *given: seen.append("gradient"))
    head.loss(x, target).backward()
    own = head.linear.forward
    monkeypatch.setattr(head.linear, "forward", lambda x: (seen.append("call"), own(x))[1])
    head.loss(x, target)
    assert seen == ["gradient", "call"]


def test_all_scores_call_the_layer_once(monkeypatch):
    """Whatever stands in its place, and whatever its weights are made from."""
    monkeypatch.setattr(_dispatch, "ALIGNED_FROM", 2)
    x, head, calls = torch.randn(3, WIDTH), head_of(Parameterization(20)), []

    class Counting(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return weight * 1

    torch.nn.utils.parametrize.register_parametrization(head.linear, "weight", Counting())
    calls.clear()
    expected = head(x)
    assert len(calls) == 1
    head.linear = torch.nn.Sequential(head.linear)  # which has no weight of its own
    torch.testing.assert_close(head(x), expected)


class _Adapted(torch.nn.Module):
    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.in_features = linear, linear.in_features
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 3


def test_log_prob_broadcasts_as_it_does_for_few_classes(by_path, monkeypatch):
    head, (x, target) = head_of(Parameterization(50)), data(50)
    several = torch.stack([target, target.flip(0)])
    found = head.log_prob(x, several), head.log_prob(x, torch.tensor(7))
    with pytest.raises(ValueError, match=r"index must broadcast with the batch \(37,\) of x; got shape \(5,\)"):
        head.log_prob(x, target[:5])
    with pytest.raises((ValueError, IndexError), match="index"):
        head.log_prob(x, target + 50)
    monkeypatch.setattr(_dispatch, "PATH_FROM", {"cpu": 100})
    torch.testing.assert_close(found, (head.log_prob(x, several), head.log_prob(x, torch.tensor(7))))


def test_other_devices_and_dtypes_are_named(by_path):
    head, (x, target) = head_of(Parameterization(50)), data(50)
    with pytest.raises(TypeError, match=r"x must have the dtype of the weights, torch\.float32; got torch\.float64"):
        head.loss(x.double(), target)
    with pytest.raises(ValueError, match="x must be on the device of the weights, cpu; got meta"):
        head.loss(x.to("meta"), target)
    with pytest.raises(ValueError, match="target must be on the device of x, cpu; got meta"):
        head.loss(x, target.to("meta"))
    empty = ct.CatnatLinear(WIDTH, 50, device="meta")
    assert empty.loss(x.to("meta"), target.to("meta")).shape == ()


@pytest.mark.parametrize("bias", [True, False])
def test_a_few_outputs_more_change_nothing(bias, monkeypatch):
    """On a GPU all scores of 16 bits come from K - 1 outputs that are rounded up to a multiple of eight."""
    head = ct.CatnatLinear(WIDTH, 21, bias=bias)
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    inputs = [x, *head.parameters()]
    found = []
    for misaligned in (False, True):
        monkeypatch.setattr(nn, "must_align", lambda *given, answer=misaligned: answer)
        log_p = head(x)
        found.append([log_p, *torch.autograd.grad(log_p.square().sum(), inputs)])
    torch.testing.assert_close(*found)
