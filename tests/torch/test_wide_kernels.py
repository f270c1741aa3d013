"""The GPU kernels of a wide head without a GPU: Triton's interpreter on small shapes, against plain tensor code."""

from __future__ import annotations

import pytest
import torch
from torch import library

from catnat import Parameterization
from catnat.torch._plan import find_plan
from catnat.torch._wide import LinearWalk
from tests.thinned import thinned
from tests.torch.test_wide import ACTIVATIONS, WIDTH, head_of, trees

pytest.importorskip("triton")
wide = pytest.importorskip("catnat.torch._gpu.wide_launch")
autograd = pytest.importorskip("catnat.torch._gpu.autograd")

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested there"),
    pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning"),
]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few rows, which the interpreter takes long for, have several."""
    monkeypatch.setattr(wide, "CHUNK", 16)


def walks_of(head):
    """By the kernels, and the judge's."""
    plan = find_plan(head.parameterization, torch.float32, CPU)
    own = head.linear.weight, head.linear.bias
    return autograd.KernelLinearWalk(plan, *own, wide.wide_of(head.parameterization, CPU)), LinearWalk(plan, *own)


def losses(head, x, target, reduction="none"):
    """By the kernels, and the judge's."""
    if reduction == "none":
        return [walk.losses(x, target, -100) for walk in walks_of(head)]
    return [walk.loss(x, target, -100, reduction, x.dtype) for walk in walks_of(head)]


def compare(head, x, target, tolerance=None, reduction="none"):
    x.requires_grad_()
    found, expected = losses(head, x, target, reduction)
    tolerance = tolerance or {"rtol": 2e-5, "atol": 2e-5}
    torch.testing.assert_close(found, expected, **tolerance)
    assert found.dtype == expected.dtype
    down = torch.linspace(-1, 2, len(x)) if reduction == "none" else torch.tensor(1.5, dtype=x.dtype)
    inputs = [x, *head.parameters()]
    ours, theirs = (torch.autograd.grad(loss, inputs, down) for loss in (found, expected))
    assert [g.dtype for g in ours] == [g.dtype for g in theirs]
    torch.testing.assert_close(ours, theirs, **tolerance)


def targets(rows: int, classes: int, kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    if kind == "one":
        return torch.full((rows,), classes - 1)
    spread = torch.rand(rows, generator=generator)
    target = ((spread**4 if kind == "often" else spread) * classes).long()
    if kind == "often":  # some rows are ignored
        target[::7] = -100
    return target


CASES = [
    (rows, tree, activation, kind)
    for rows in (3, 40)
    for tree in ("balanced", "cluster", "huffman", "chain")
    for activation in ("natural", "sigmoid", "paper", "tail")
    for kind in ("spread", "often", "one")
]


@pytest.mark.parametrize(
    ("rows", "tree", "activation", "kind"),
    thinned(CASES, quick=[(40, "huffman", "tail", "often"), (3, "cluster", "paper", "one")]),
)
def test_losses_and_gradients(rows, tree, activation, kind):
    tree = trees(21)[tree]
    head = head_of(Parameterization(tree.num_classes, ACTIVATIONS[activation], tree=tree))
    x = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1))
    compare(head, x, targets(rows, tree.num_classes, kind))


@pytest.mark.parametrize(("kind", "bias"), thinned([("often", True), ("one", False)], quick=[("often", True)]))
def test_several_chunks_with_and_without_a_bias(kind, bias):
    head = head_of(Parameterization(21, tree=trees(21)["huffman"]), bias=bias)
    x = torch.randn(34, WIDTH, generator=torch.Generator().manual_seed(1))
    compare(head, x, targets(34, 21, kind))


@pytest.mark.parametrize(
    ("dtype", "reduction", "kind"),
    thinned(
        [(d, *r) for d in (torch.float32, torch.bfloat16) for r in (("mean", "often"), ("sum", "spread"))],
        quick=[(torch.bfloat16, "mean", "often")],
    ),
)
def test_one_loss_for_all_rows(reduction, kind, dtype):
    head = head_of(Parameterization(21, tree=trees(21)["huffman"])).to(dtype)
    x = torch.randn(30, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    eps = max(5e-6, torch.finfo(dtype).eps)
    tolerance = {"rtol": 4 * eps, "atol": 16 * eps}  # the sums of all rows are not small
    compare(head, x, targets(30, 21, kind), tolerance, reduction)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_nothing_but_ignored_rows_has_no_gradient(reduction):
    head = head_of(Parameterization(9))
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loss = losses(head, x, torch.full((3,), -100), reduction)[0]
    loss = loss.sum() / 0 if reduction == "none" else loss  # as class weights and compiled code take a mean
    assert loss.isnan()
    for gradient in torch.autograd.grad(loss, [x, *head.parameters()]):
        assert not gradient.any()


def test_a_loss_scale_saves_small_gradients_of_float16():
    head = head_of(Parameterization(9, "sigmoid")).half()
    with torch.no_grad():
        head.linear.bias.fill_(-9)
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)).half().requires_grad_()
    target = torch.zeros(4, dtype=torch.int64)
    scale = torch.tensor(32768.0, dtype=torch.float16)
    found, judge = (torch.autograd.grad(loss, x, scale)[0].float() for loss in losses(head, x, target, "mean"))
    torch.testing.assert_close(found, judge, rtol=2e-3, atol=1e-7)


def test_rows_in_the_order_of_their_keys():
    keys = torch.randint(40, (600,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    torch.testing.assert_close(wide._sorted(keys).long(), torch.sort(keys, stable=True)[1])


@pytest.mark.slow
def test_centres_and_wide_rows():
    pi = Parameterization(20, center=tuple(torch.linspace(-1, 1, 19).tolist()))
    head = head_of(pi)
    head.linear = torch.nn.Linear(300, 19)
    compare(head, torch.randn(9, 300, generator=torch.Generator().manual_seed(1)), targets(9, 20, "spread"))


def test_a_row_in_several_blocks(monkeypatch):
    monkeypatch.setattr(wide, "MAX_BLOCK", 64)
    head = head_of(Parameterization(20))
    head.linear = torch.nn.Linear(150, 19)
    compare(head, torch.randn(6, 150, generator=torch.Generator().manual_seed(1)), targets(6, 20, "spread"))


@pytest.mark.parametrize("wanted", thinned([((0, 0, 1),), ((1, 0, 1),), ((0, 1, 0),), ((1, 0, 0),)], 1, every=2))
def test_gradients_of_some_inputs_alone(wanted):
    head = head_of(Parameterization(9))
    x, target = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 4, 8, 8])
    inputs = [x, head.linear.weight, head.linear.bias]
    for tensor, asked in zip(inputs, wanted, strict=True):
        tensor.requires_grad_(bool(asked))
    chosen = [t for t in inputs if t.requires_grad]
    found, expected = (torch.autograd.grad(each.sum(), chosen) for each in losses(head, x, target))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", thinned([torch.bfloat16, torch.float16]))
@pytest.mark.slow  # one loss for all rows has it in bfloat16, the loss scale in float16
def test_short_numbers(dtype):
    head = head_of(Parameterization(45)).to(dtype)
    x = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    eps = torch.finfo(dtype).eps
    compare(head, x, targets(40, 45, "spread"), tolerance={"rtol": 4 * eps, "atol": 4 * eps})


def test_second_derivatives_go_by_plain_code():
    head = head_of(Parameterization(9))
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    target = torch.tensor([0, 4, 8])
    twice = []
    for loss in losses(head, x, target, "sum"):
        (dx,) = torch.autograd.grad(loss, x, create_graph=True)
        twice.append(torch.autograd.grad(dx.square().sum(), [x, head.linear.weight]))
    torch.testing.assert_close(*twice)


@pytest.mark.parametrize("tree", thinned(["balanced", "huffman", "chain"], 2))
def test_certain_draws(tree):
    """How often a class is drawn is seen on a GPU; the interpreter is too slow for many draws."""
    tree = trees(7)[tree]
    head = head_of(Parameterization(tree.num_classes, tree=tree))
    x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        head.linear.weight.mul_(1000)
    drawn = walks_of(head)[0].sample(x, torch.Generator().manual_seed(7))
    assert head.log_prob(x, drawn).exp().min() > 0.99
    assert (drawn == head.mode(x)).all() and len(drawn.unique()) > 1


def test_scores_that_are_nan_draw_no_class():
    head = head_of(Parameterization(7))
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))
    x[2] = torch.nan
    drawn = walks_of(head)[0].sample(x, torch.Generator().manual_seed(1))
    assert ((drawn == 7) == (torch.arange(4) == 2)).all()


def test_operators_keep_pytorchs_contract():
    head = head_of(Parameterization(5))
    of = wide.wide_of(head.parameterization, CPU)
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    target = torch.tensor([0, -100, 4])
    own = (head.linear.weight, head.linear.bias)
    for reduction in ("none", "mean"):
        given = (x, *of, *own, target, -100, reduction, torch.float32, True, True)
        library.opcheck(torch.ops.catnat.wide_loss.default, given)
    library.opcheck(torch.ops.catnat.wide_sample.default, (x, *of, *own, torch.tensor([3])))
    (dx,) = torch.autograd.grad(torch.ops.catnat.wide_loss(*given)[0], x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.autograd.grad(dx.sum(), x)
