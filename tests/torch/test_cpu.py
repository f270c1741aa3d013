"""The compiled walk on a CPU: right everywhere, and differentiable twice."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, library
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import catnat.torch as ct
from catnat import Natural, Parameterization, Sigmoid
from catnat.torch import _cpu, _eager, _masks
from catnat.torch._cpu import build
from catnat.torch._plan import Plan
from catnat.torch._walk import Walk
from catnat_lab import reference
from tests.core.trees import KINDS, make_tree
from tests.thinned import thinned

DTYPES = [torch.float32, torch.float64]
NATURALS = [*(Natural(tail=tail) for tail in (0.5, 0.1, 0.05, 0.02)), Natural(amplitude=3.0, tail=0.07)]
FAMILY = [*product([Sigmoid(), *NATURALS], DTYPES), (Natural(tail=1e-3), torch.float64)]

needs_compiler = pytest.mark.usefixtures("compiled")


@pytest.fixture(scope="module")
def compiled() -> None:
    if build.load() is None:
        pytest.skip("there is no C++ compiler")


def judge_of(pi: Parameterization, dtype: torch.dtype = torch.float64) -> Walk:
    return Walk(Plan(pi, dtype, torch.device("cpu")))


def walk_of(pi: Parameterization, dtype: torch.dtype) -> _cpu.CompiledWalk:
    walk = _cpu.walk_of(Plan(pi, dtype, torch.device("cpu")))
    assert walk is not None
    return walk


def log_classes(x: Tensor, walk: Walk, *masking: Any) -> Tensor:
    return walk.log_probs(x, *masking)


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def some_mask(*shape: int, seed: int = 0) -> Tensor:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[..., seed % shape[-1]] = True
    return mask


def plain(x: Tensor, walk: Walk, mask: Tensor | None = None) -> Tensor:
    log_p = _eager.descend(*_masks.branches(x, walk.plan, mask), walk.plan)[0]
    return log_p if mask is None else torch.where(mask, log_p, -torch.inf)


def gradient_of(function: Callable[..., Tensor], upstream: Tensor, x: Tensor, *rest: Any) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x, *rest), x, upstream)[0]


# -- values and gradients ----------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(("activation", "dtype"), FAMILY, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_the_references(kind: str, activation: Natural, dtype: torch.dtype) -> None:
    close = 2e-6 if dtype == torch.float32 else 1e-12
    for size in (2, 3, 6, 18, 33, 500 if kind == "chain" else 1100):
        pi = Parameterization(size, activation, make_tree(kind, size))
        walk, x = walk_of(pi, dtype), 2 * numbers(5, size - 1, dtype=dtype)
        upstream = numbers(5, size, dtype=dtype, seed=1)
        there = x.double().numpy()
        found = log_classes(x, walk)
        np.testing.assert_allclose(found.double(), reference.log_catnat(there, pi), rtol=close, atol=close)
        slope = gradient_of(log_classes, upstream, x, walk)
        expected = reference.log_catnat_gradient(there, upstream.double().numpy(), pi)
        np.testing.assert_allclose(slope.double(), expected, rtol=20 * close, atol=20 * close)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", [Sigmoid(), Natural()], ids=str)
def test_far_scores_keep_their_digits_and_infinite_ones_are_certain(activation: Natural, dtype: torch.dtype) -> None:
    pi = Parameterization(4, activation)
    x = torch.tensor([[-300.0, 40.0, 7.0], [torch.inf, -torch.inf, 0.0], [0.0, 90.0, -torch.inf]], dtype=dtype)
    found = log_classes(x, walk_of(pi, dtype))
    np.testing.assert_allclose(found.double(), reference.log_catnat(x.double().numpy(), pi), rtol=1e-5, atol=1e-30)
    slope = gradient_of(log_classes, torch.ones(3, 4, dtype=dtype), x, walk_of(pi, dtype))
    assert slope.isfinite().all()


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [6, 40])
def test_nan_comes_out_below_its_node_alone(size: int, dtype: torch.dtype) -> None:
    pi = Parameterization(size, "natural")
    for node in (0, 1, size - 2):
        x = numbers(3, size - 1, dtype=dtype)
        x[1, node] = torch.nan
        found = log_classes(x, walk_of(pi, dtype))
        below = torch.tensor([any(step - 1 == node for step, _ in pi.tree.path(k)) for k in range(size)])
        assert (found.isnan() == (torch.arange(3) == 1)[:, None] & below).all()
        slope = gradient_of(log_classes, torch.ones(3, size, dtype=dtype), x, walk_of(pi, dtype))
        assert (slope.isnan() == x.isnan()).all()


@needs_compiler
def test_shapes_of_every_kind() -> None:
    pi = Parameterization(6, "natural")
    walk = walk_of(pi, torch.float32)
    x = numbers(4, 5, 3, dtype=torch.float32).transpose(1, 2)  # [4, 3, 5], not contiguous
    expected = log_classes(x.contiguous(), walk)
    torch.testing.assert_close(log_classes(x, walk), expected, rtol=0, atol=0)
    assert log_classes(x[0, 0], walk).shape == (6,)
    assert log_classes(torch.empty(0, 5), walk).shape == (0, 6)
    theirs = gradient_of(plain, expected, x, walk)
    torch.testing.assert_close(gradient_of(log_classes, expected, x, walk), theirs)
    wide = numbers(3000, 5, dtype=torch.float32)  # more than one thread's share
    torch.testing.assert_close(log_classes(wide, walk)[-7:], log_classes(wide[-7:], walk), rtol=0, atol=0)


# -- masks -------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_masked_values_and_gradients(kind: str, dtype: torch.dtype) -> None:
    for size in (2, 3, 18, 65):
        pi = Parameterization(size, "natural", make_tree(kind, size))
        walk, judge = walk_of(pi, dtype), judge_of(pi)
        x, upstream = 2 * numbers(6, size - 1, dtype=dtype), numbers(6, size, dtype=dtype, seed=1)
        for mask in (some_mask(6, size), some_mask(size)):
            found = log_classes(x, walk, mask)
            expected = reference.log_catnat(x.double().numpy(), pi, mask.numpy())
            close = 1e-5 if dtype == torch.float32 else 1e-12
            np.testing.assert_allclose(found.double(), expected, rtol=close, atol=close)
            slope = gradient_of(log_classes, upstream, x, walk, mask)
            theirs = gradient_of(plain, upstream.double(), x.double(), judge, mask)
            np.testing.assert_allclose(slope.double(), theirs, rtol=10 * close, atol=10 * close)


@needs_compiler
def test_a_masks_batch_broadcasts_both_ways() -> None:
    walk = walk_of(Parameterization(6, "sigmoid"), torch.float64)
    x, mask = numbers(3, 5).requires_grad_(), some_mask(4, 3, 6)
    found = log_classes(x, walk, mask)
    torch.testing.assert_close(found, plain(x, walk, mask))
    assert torch.autograd.grad(found.exp().sum(), x)[0].shape == x.shape
    x, mask = numbers(4, 3, 5), mask[0]
    torch.testing.assert_close(log_classes(x, walk, mask), plain(x, walk, mask))


@needs_compiler
def test_a_mask_may_lie_in_memory_as_it_likes() -> None:
    walk, x = walk_of(Parameterization(8), torch.float32), numbers(3, 7, dtype=torch.float32)
    column, alike = (torch.arange(24) % 7 < 3).view(8, 3)[:, 1], torch.tensor([True]).expand(8)
    for mask in (some_mask(3, 8).T.contiguous().T, column, alike):
        expected = log_classes(x, walk, mask.clone(memory_format=torch.contiguous_format))
        torch.testing.assert_close(log_classes(x, walk, mask), expected, rtol=0, atol=0)
        torch.testing.assert_close(expected, plain(x, walk, mask))
    drawn = ct.CatnatCategorical(x[0], 8, mask=column).sample((500,))
    assert column[drawn].all()


@needs_compiler
def test_the_gradient_of_very_many_masked_classes_keeps_its_digits() -> None:
    size = 1 << 17
    pi = Parameterization(size, "sigmoid")
    x = 0.5 * numbers(1, size - 1, dtype=torch.float32)
    mask = torch.rand(1, size, generator=torch.Generator().manual_seed(0)) < 0.05
    mask[:, size // 2 :] = True  # one side of the root has much, the other little
    upstream = torch.full((1, size), 0.1)
    found = gradient_of(log_classes, upstream, x, walk_of(pi, torch.float32), mask)
    judge = walk_of(pi, torch.float64)
    exact = gradient_of(log_classes, upstream.double(), x.double(), judge, mask)
    assert (found - exact).abs().max() < 1e-5 * exact.abs().max()


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_allowed_classes_may_be_as_improbable_as_can_be(dtype: torch.dtype) -> None:
    pi = Parameterization(16, "sigmoid", make_tree("chain", 16))
    x, mask = 300 * numbers(8, 15, dtype=dtype), some_mask(8, 16)
    found = log_classes(x, walk_of(pi, dtype), mask)
    judge = plain(x.double(), judge_of(pi), mask)
    torch.testing.assert_close(found.double(), judge, rtol=1e-4, atol=1e-4)
    # a certain turn leaves them no mass at all: they share it evenly
    x, mask = torch.tensor([[torch.inf, 0.0, 0.0]], dtype=dtype), torch.tensor([[True, True, False, False]])
    shared = log_classes(x, walk_of(Parameterization(4, "sigmoid"), dtype), mask).exp()
    torch.testing.assert_close(shared, torch.tensor([[0.5, 0.5, 0.0, 0.0]], dtype=dtype))
    # nor any branch below, where a class on each side is left
    x, mask = torch.tensor([[0.0, torch.inf, torch.inf]], dtype=dtype), torch.tensor([[True, False, True, False]])
    shared = log_classes(x, walk_of(Parameterization(4, "sigmoid"), dtype), mask).exp()
    torch.testing.assert_close(shared, torch.tensor([[0.5, 0.0, 0.5, 0.0]], dtype=dtype))
    # and two on one side count twice
    x = torch.tensor([[0.0, torch.inf, torch.inf, 0.0, 0.0, 0.0, 0.0]], dtype=dtype)
    mask = torch.tensor([[True, True, False, False, True, False, False, False]])
    shared = log_classes(x, walk_of(Parameterization(8, "sigmoid"), dtype), mask).exp()
    torch.testing.assert_close(shared, mask.to(dtype) / 3)


@needs_compiler
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("size", "rows", "threads"), [(64, 100, 1), (6, 6000, 2)])
def test_a_row_does_not_know_its_neighbours(size: int, rows: int, threads: int, masked: bool) -> None:
    """Some are walked at once, and threads have their shares: every row is what it is alone."""
    walk, x = walk_of(Parameterization(size), torch.float32), numbers(rows, size - 1, dtype=torch.float32)
    upstream, mask = numbers(rows, size, dtype=torch.float32, seed=1), some_mask(rows, size)

    def found(chosen: slice) -> list[Tensor]:
        rest = (mask[chosen],) if masked else ()
        own = x[chosen].clone().requires_grad_()
        log_p = log_classes(own, walk, *rest)
        return [log_p.detach(), *torch.autograd.grad(log_p, own, torch.where(log_p.isfinite(), upstream[chosen], 0))]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = found(slice(None))
        for row in range(0, rows, 1 + rows // 200):
            for all_of_them, alone in zip(together, found(slice(row, row + 1)), strict=True):
                assert torch.equal(all_of_them[row : row + 1], alone)
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_little_mass_is_divided_by_as_well_as_much_of_it(dtype: torch.dtype) -> None:
    """From 1% on by one subtraction, below it along the tree: no seam shows, nor in the gradient."""
    pi, tolerance = Parameterization(40, "sigmoid"), 1e-6 if dtype == torch.float32 else 2e-14
    mask = torch.arange(40) >= 33
    masses = [30.0, 3.0, 1.0, 0.3, 0.1, 1e-3, 1e-6, 1e-30]  # about, in per cent
    weights = numbers(len(masses), 40).exp() * torch.where(mask, 0.05 * torch.tensor(masses)[:, None], 1.0)
    x = torch.from_numpy(reference.scores_from_probs((weights / weights.sum(-1, keepdim=True)).numpy(), pi)).to(dtype)
    expected = reference.log_catnat(x.double().numpy(), pi, mask.numpy())[:, 33:]
    found = log_classes(x, walk_of(pi, dtype), mask).double().numpy()[:, 33:]
    assert (np.abs(found - expected) / np.maximum(1, np.abs(expected))).max() < tolerance
    upstream = numbers(len(masses), 40, dtype=dtype, seed=1)
    gradient = gradient_of(log_classes, upstream, x, walk_of(pi, dtype), mask)
    judge = gradient_of(plain, upstream.double(), x.double(), judge_of(pi), mask)
    torch.testing.assert_close(gradient.double(), judge, rtol=10 * tolerance, atol=10 * tolerance)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_rows_keep_the_laws_of_nan_and_certainty(dtype: torch.dtype) -> None:
    walk, nan = walk_of(Parameterization(4, "sigmoid"), dtype), torch.nan
    x = torch.tensor([[0.0, nan, 0.0]], dtype=dtype)
    assert log_classes(x, walk, torch.ones(4, dtype=torch.bool)).isnan().all()  # one NaN makes the row NaN
    right = log_classes(x, walk, torch.tensor([False, False, True, True]))  # but not from below the forbidden
    assert right[0, :2].tolist() == [-torch.inf] * 2 and not right[0, 2:].isnan().any()
    walk = walk_of(Parameterization(18, "natural"), dtype)
    rows = 20_000  # a rounding error shows in few of them
    x, forced = numbers(rows, 17, dtype=dtype), torch.eye(18, dtype=torch.bool)[torch.arange(rows) % 18]
    assert torch.equal(log_classes(x, walk, forced)[forced], torch.zeros(rows, dtype=dtype))
    some = some_mask(rows, 18)
    assert (log_classes(4 * x, walk, some) <= 0).all()  # where one class has nearly all, too


@needs_compiler
def test_any_byte_but_0_is_true() -> None:
    bytes_ = torch.tensor([255, 2, 0, 7], dtype=torch.uint8)
    x, pi = torch.tensor([[0.3, -0.4, 0.7]], requires_grad=True), Parameterization(4, "sigmoid")
    found = [ct.catnat(x, pi, mask=mask) for mask in (bytes_.view(torch.bool), bytes_ != 0)]
    torch.testing.assert_close(*found, rtol=0, atol=0)
    first, second = (torch.autograd.grad(each[0, 0], x)[0] for each in found)
    assert torch.equal(first, second)


@needs_compiler
def test_a_row_without_allowed_classes_is_refused() -> None:
    mask = torch.tensor([[True, False], [False, False]])
    with pytest.raises(ValueError, match="at least one class in every row"):
        log_classes(torch.zeros(2, 1), walk_of(Parameterization(2), torch.float32), mask)


# -- derivatives of higher order ---------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("masked", [False, True])
def test_derivatives_of_first_and_second_order(masked: bool) -> None:
    pi = Parameterization(7, Natural(), make_tree("nested", 7))
    walk, mask = walk_of(pi, torch.float64), some_mask(2, 7)
    x = numbers(2, 6).requires_grad_()

    def p(x: Tensor) -> Tensor:
        return log_classes(x, walk, *((mask,) if masked else ())).exp()

    assert gradcheck(p, x)
    assert gradgradcheck(p, x)
    rows = torch.eye(7, dtype=torch.float64).unsqueeze(1).expand(7, 2, 7)
    many = torch.autograd.grad(p(x), x, rows, is_grads_batched=True)[0]
    one_by_one = torch.stack([torch.autograd.grad(p(x), x, row)[0] for row in rows])
    torch.testing.assert_close(many, one_by_one)


@needs_compiler
@pytest.mark.parametrize("masked", [False, True])
def test_a_gradient_that_is_watched_takes_the_plain_way(masked: bool) -> None:
    walk, x = walk_of(Parameterization(6), torch.float64), numbers(3, 5).requires_grad_()
    masking = (some_mask(3, 6),) if masked else ()
    out = log_classes(x, walk, *masking)
    if masked:
        out = torch.where(masking[0], out, 0.0)
    given, tangent, many = numbers(3, 6, seed=1), numbers(3, 6, seed=2), numbers(4, 3, 6, seed=3)

    def pull(given: Tensor) -> Tensor:
        return torch.autograd.grad(out, x, given, retain_graph=True)[0]

    with forward_ad.dual_level():  # a tangent must not be lost
        found = forward_ad.unpack_dual(pull(forward_ad.make_dual(given, tangent)))
        torch.testing.assert_close(found.primal, pull(given))
        assert found.tangent is not None
        torch.testing.assert_close(found.tangent, pull(tangent))
    torch.testing.assert_close(torch.func.vmap(pull)(many), torch.stack([pull(each) for each in many]))
    assert not pull(torch._efficientzerotensor((3, 6), dtype=torch.float64)).any()


@needs_compiler
@pytest.mark.parametrize("masked", [False, True])
def test_any_other_gradient_takes_the_fast_way(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: Any) -> Tensor:
        raise AssertionError("the plain way was taken")

    monkeypatch.setattr(_cpu, "_plain_gradient", slow)
    walk, x = walk_of(Parameterization(6), torch.float32), numbers(3, 5, dtype=torch.float32).requires_grad_()
    masking = (torch.ones(3, 6, dtype=torch.bool),) if masked else ()
    given = numbers(6, 3, dtype=torch.float32, seed=1).T  # in any layout
    torch.autograd.grad(log_classes(x, walk, *masking), x, given)
    log_classes(x, walk, *masking).sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        (log_classes(x, walk, *masking) ** 2).mean().backward()


@needs_compiler
def test_saved_tensors_may_come_back_in_another_layout() -> None:
    walk, x = walk_of(Parameterization(6), torch.float32), numbers(4, 5, dtype=torch.float32)
    mask, upstream = some_mask(4, 6), numbers(4, 6, dtype=torch.float32, seed=1)
    expected = gradient_of(log_classes, upstream, x, walk, mask)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.t().contiguous().t()):
        found = gradient_of(log_classes, upstream, x, walk, mask)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@needs_compiler
def test_a_graph_outlives_its_walk_and_may_run_in_any_thread() -> None:
    x = numbers(8, 5, dtype=torch.float32).requires_grad_()
    walk = walk_of(Parameterization(6), torch.float32)
    out = log_classes(x, walk)
    expected = torch.autograd.grad(out.sum(), x, retain_graph=True)[0]
    del walk
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: torch.autograd.grad(out.sum(), x, retain_graph=True)[0], range(20)))
    for gradient in found:
        torch.testing.assert_close(gradient, expected)


# -- what is made of it ------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_is_torchs_on_the_references_logs(weighted: bool, reduction: str) -> None:
    pi = Parameterization(6, "natural")
    x, target = numbers(4, 3, 5), torch.arange(12).view(4, 3) % 6
    target[0, 0] = -100
    weight = torch.arange(1.0, 7, dtype=torch.float64) if weighted else None
    found = walk_of(pi, torch.float64).loss(x, target, -100, weight, reduction)
    logs = torch.from_numpy(reference.log_catnat(x.numpy(), pi)).movedim(-1, 1)
    torch.testing.assert_close(found, F.nll_loss(logs, target, weight, reduction=reduction))


@needs_compiler
def test_a_class_per_row_its_log_p_and_the_entropy() -> None:
    pi = Parameterization(6, "sigmoid")
    walk, x, mask = walk_of(pi, torch.float64), numbers(4, 5), some_mask(4, 6)
    index = torch.tensor([0, 5, 2, 3])
    logs = torch.from_numpy(reference.log_catnat(x.numpy(), pi))
    torch.testing.assert_close(walk.log_path(x, index), logs.gather(1, index[:, None])[:, 0])
    several = torch.stack((index, index.flip(0)), 1)
    torch.testing.assert_close(walk.log_path(x, several), logs.gather(1, several))
    torch.testing.assert_close(walk.entropy(x), torch.from_numpy(reference.entropy(x.numpy(), pi)))
    drawn, log_p, entropy = walk.draw(x, None, None, mask)
    assert mask.gather(1, drawn[:, None]).all()
    again = walk.draw(x, drawn, None, mask)
    torch.testing.assert_close((drawn, log_p, entropy), again, rtol=0, atol=0)
    expected = reference.entropy(x.numpy(), pi, mask.numpy())
    torch.testing.assert_close(entropy, torch.from_numpy(expected))


@needs_compiler
@pytest.mark.parametrize("size", [5, 300])  # all classes at once, and a path
@pytest.mark.parametrize("masked", [False, True])
def test_draws_come_as_often_as_they_should(masked: bool, size: int) -> None:
    pi = Parameterization(size, "natural")
    walk, x, mask = walk_of(pi, torch.float64), numbers(2, size - 1), some_mask(2, size)
    given = (mask,) if masked else ()
    count = 20_000
    source = torch.Generator().manual_seed(3)
    drawn = walk.sample(x, count, source, *given)
    assert drawn.shape == (count, 2)
    p = log_classes(x, walk, *given).exp()
    for row in range(2):
        seen = torch.bincount(drawn[:, row], minlength=size).double()
        assert (seen[p[row] == 0] == 0).all()
        off = (seen - count * p[row])[p[row] > 0] / (count * p[row]).sqrt()[p[row] > 0]
        assert float((off**2).sum()) < size + 6 * (2 * size) ** 0.5  # chi-square
    again = walk.sample(x, count, torch.Generator().manual_seed(3), *given)
    assert (again == drawn).all()


# -- what it does not do -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 6])
def test_what_is_left_to_the_plain_walk(size: int) -> None:
    for activation in (Natural(tail=0.0), Natural(tail=0.001)) if size > 1 else (Natural(),):  # no polynomial for it
        assert _cpu.walk_of(Plan(Parameterization(size, activation), torch.float32, torch.device("cpu"))) is None


@needs_compiler
def test_it_works_in_a_child_of_a_process_that_has_used_it() -> None:
    code = """
        import os, torch, catnat
        from tests.torch.test_cpu import walk_of
        torch.set_num_threads(1)
        walk = walk_of(catnat.Parameterization(6), torch.float32)
        x = torch.zeros(4, 5, requires_grad=True)
        walk.log_probs(x).sum().backward()
        child = os.fork()
        if child == 0:
            walk.log_probs(x).sum().backward()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


# -- torch.compile -----------------------------------------------------------------------------------------------


def calls_of(graph: torch.fx.Graph) -> set[str]:
    return {str(node.target) for node in graph.nodes if "catnat_cpu" in str(node.target)}


@needs_compiler
@pytest.mark.parametrize("masked", thinned([True, False]))
def test_a_compiler_calls_the_same_loops_and_an_exporter_none(masked: bool) -> None:
    pi = Parameterization(11, "natural", make_tree("chain", 11))
    options: dict[str, Any] = {"mask": some_mask(4, 11)} if masked else {}
    seen: set[str] = set()

    def look(module: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.update(calls_of(module.graph))
        return module

    def run(x: Tensor) -> Tensor:
        return ct.log_catnat(x, pi, **options)

    x, upstream = numbers(3, 4, 10), numbers(3, 4, 11, seed=1)
    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend=look)
    torch.testing.assert_close(compiled(x), run(x), rtol=0, atol=0)
    finite = run(x).isfinite()
    upstream = torch.where(finite, upstream, 0.0)
    assert torch.equal(gradient_of(compiled, upstream, x), gradient_of(run, upstream, x))
    assert seen == {"catnat_cpu.log_p"}

    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return run(x)

    for strict in (False, True):
        assert not calls_of(torch.export.export(Module(), (x,), strict=strict).graph)


@needs_compiler
def test_the_operators_are_as_pytorch_wants_them() -> None:
    pi = Parameterization(9, "sigmoid")
    x = numbers(4, 8).requires_grad_()
    name = walk_of(pi, x.dtype).traced_plan().traced
    for mask in (None, some_mask(9), some_mask(4, 9)):
        library.opcheck(torch.ops.catnat_cpu.log_p.default, (x, mask, name))
    with pytest.raises(RuntimeError, match="a saved program needs its parameterization"):
        torch.ops.catnat_cpu.log_p(x, None, "another")


@needs_compiler
def test_several_in_one_program_are_differentiable_twice() -> None:
    several = Parameterization(11, "natural"), Parameterization(11, "paper"), Parameterization(11)

    def run(x: Tensor) -> Tensor:
        return torch.stack([ct.log_catnat(x, pi) for pi in several])  # the one in the middle has no operator

    torch.compiler.reset()
    compiled = torch.compile(run, backend="eager")
    x, upstream = numbers(4, 10).requires_grad_(), numbers(3, 4, 11, seed=1)
    found = []
    for function in (run, compiled):
        (slope,) = torch.autograd.grad(function(x), x, upstream, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum() + x.sum(), x)[0])
    torch.testing.assert_close(*found)
    names = [walk_of(pi, x.dtype).traced_plan().traced for pi in (*several[::2], Parameterization(11, "sigmoid"))]
    assert names[0] == names[1] != names[2]
