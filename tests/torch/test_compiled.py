"""log_catnat in compiled loops, where Numba is installed: the oracle judges it, and the plain walk."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import torch

import catnat.torch as ct
from catnat import Natural, Parameterization, Sigmoid, Tree
from catnat.core import reference
from catnat.torch import compiled, dispatch, eager
from catnat.torch.inputs import prepare
from catnat.torch.plan import Plan, plan_for
from tests.contract.cases import SCORE_SETS, scores_for
from tests.contract.judge import assert_close, expected_gradient

pytest.importorskip("numba")
from catnat.torch import compiled_loops

TOLERANCE = 2e-6  # of float32, as in the contract
SIZES = (2, 3, 4, 5, 7, 18, 32, 33, 64, 100, 1000, 1024, 1025, 1026, 4096)
ACTIVATIONS = {
    "sigmoid": Sigmoid(),
    "clip": Natural(),
    "revive": Natural(saturation="revive", floor=1e-6),
    "narrow": Natural(amplitude=0.5, floor=1e-3),
    "tiny floor": Natural(floor=2e-38),
}
both = pytest.mark.parametrize("activation", ["sigmoid", "natural"])


def rows_for(size: int) -> tuple[int, ...]:
    """Batches of one row, of less than a chunk, of many chunks with a ragged end, and large enough for threads."""
    return (1, 7, 2500) if size <= 5 else (1, 7, 601) if size <= 33 else (1, 130) if size <= 100 else (1, 3, 11)


def judge(pi: Parameterization, scores: np.ndarray, what: str) -> None:
    """Values and gradients of float32 scores against the oracle, with threads where there are enough of them."""
    upstream = np.random.default_rng(len(scores)).normal(size=(len(scores), pi.num_classes)).astype(np.float32)
    x = torch.from_numpy(scores).requires_grad_()
    assert compiled.applies(*prepare(x, pi)[:2]), what
    value = ct.log_catnat(x, pi)
    (slope,) = torch.autograd.grad(value, x, torch.from_numpy(upstream))
    assert_close(value.detach().numpy(), reference.log_catnat(scores.astype(np.float64), pi), TOLERANCE, what)
    expected, scale = expected_gradient(scores.astype(np.float64), upstream.astype(np.float64), pi)
    assert_close(slope.numpy(), expected, TOLERANCE, f"gradient, {what}", scale)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def plan(pi: Parameterization, dtype: torch.dtype = torch.float32) -> Plan:
    return plan_for(pi, pi.num_classes, dtype, torch.device("cpu"))


# -- right -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients(size: int, name: str) -> None:
    pi = Parameterization(size, ACTIVATIONS[name])
    for score_set in SCORE_SETS:
        for rows in rows_for(size):
            judge(pi, scores_for(pi, score_set, rows, np.float32), f"{size}, {name}, {score_set}, {rows} rows")


@pytest.mark.parametrize("name", ["sigmoid", "clip"])
@pytest.mark.parametrize("size", [2, 18, 32, 1500])
def test_centres(size: int, name: str) -> None:
    each = np.random.default_rng(size).normal(size=size - 1)
    for center in (0.3, tuple(each), 0.0):
        pi = Parameterization(size, ACTIVATIONS[name], center=center)
        for score_set in ("scale 1", "near the ends"):
            judge(pi, scores_for(pi, score_set, 130 if size < 100 else 11, np.float32), f"{size}, {name}, C = {center}")


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize(("size", "rows"), [(18, 1100), (2000, 23)])
def test_any_number_of_threads(size: int, rows: int, number: int) -> None:
    pi = Parameterization(size)
    scores = scores_for(pi, "scale 1", rows, np.float32)
    with threads(number):
        assert rows * (size - 1) > compiled.GRAIN
        judge(pi, scores, f"{size} classes, {number} threads")
        with patch.object(compiled, "_parallel", lambda: 0):
            assert compiled.applies(torch.from_numpy(scores), plan(pi)) == (number <= 3)
            assert compiled.applies(torch.from_numpy(scores[:1]), plan(pi))


@both
@pytest.mark.parametrize("size", [2, 5, 18, 100, 2000])
def test_infinite_scores_are_as_in_the_plain_walk(size: int, activation: str) -> None:
    pi = Parameterization(size, activation)
    x = torch.from_numpy(scores_for(pi, "scale 1", 9, np.float32))
    ends = torch.tensor([math.inf, -math.inf, 3e38, -3e38])
    x[1::2] = ends[torch.randint(4, x[1::2].shape, generator=torch.Generator().manual_seed(0))]
    x[0, 0] = math.inf
    x.requires_grad_()
    upstream = torch.ones(9, size)
    value, plain = compiled.log_classes(x, plan(pi)), eager.log_classes(x, plan(pi))
    torch.testing.assert_close(value, plain, rtol=2e-6, atol=2e-6)
    slopes = [torch.autograd.grad(v, x, upstream)[0] for v in (value, plain)]
    torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-5 * size)


@both
@pytest.mark.parametrize("size", [2, 18, 33, 1500])
def test_nan_stays_below_its_node(size: int, activation: str) -> None:
    pi = Parameterization(size, activation)
    scores = scores_for(pi, "scale 1", 70, np.float32)
    node = pi.num_nodes // 2
    below = [k for k in range(size) if node + 1 in dict(pi.tree.path(k))]
    upstream = torch.randn(70, size)
    found = []
    for dirt in (scores[3, node], np.nan):
        scores[3, node] = dirt
        x = torch.tensor(scores, requires_grad=True)
        value = compiled.log_classes(x, plan(pi))
        found.append((value.detach(), torch.autograd.grad(value, x, upstream)[0]))
    (clean_value, clean_slope), (value, slope) = found
    assert value[3, below].isnan().all() and slope[3, node].isnan()
    value[3, below], slope[3, node] = clean_value[3, below], clean_slope[3, node]
    assert value.equal(clean_value) and slope.equal(clean_slope)


# -- taken, and left to others -----------------------------------------------------------------------------------


def test_what_it_is_for() -> None:
    def applies(pi: Parameterization, dtype: torch.dtype = torch.float32, rows: int = 3) -> bool:
        return compiled.applies(torch.zeros(rows, pi.num_nodes, dtype=dtype), plan(pi, dtype))

    assert applies(Parameterization(2)) and applies(Parameterization(33, "sigmoid"))
    assert applies(Parameterization(4, tree=Tree.from_nested([[0, 1], [2, 3]])))  # the heap by another name
    assert not applies(Parameterization(18), torch.float64)
    assert not applies(Parameterization(1)) and not applies(Parameterization(18), rows=0)
    assert not applies(Parameterization(18, tree=Tree.chain(18)))
    assert not applies(Parameterization(18, Natural(floor=0.0)))
    assert not applies(Parameterization(18, Natural(floor=1e-40)))  # none in float32
    assert not applies(Parameterization(18, Natural(saturation="reflect")))


def test_the_door_takes_it_first() -> None:
    x, pi = torch.randn(5, 17), Parameterization(18)
    with patch.object(compiled, "log_classes", side_effect=RuntimeError("compiled")):
        with pytest.raises(RuntimeError, match="compiled"):
            dispatch._log_classes(x, plan(pi))
        dispatch._log_classes(x.double(), plan(pi, torch.float64))
        torch.func.vmap(lambda row: ct.log_catnat(row, pi))(x)
        torch.func.jvp(lambda s: ct.log_catnat(s, pi), (x,), (x,))


@both
def test_derivatives_of_derivatives_and_batches_of_gradients(activation: str) -> None:
    pi = Parameterization(6, activation)
    x = torch.randn(4, 5, requires_grad=True)
    weights = torch.randn(4, 6)

    def second(function: object, s: torch.Tensor) -> torch.Tensor:
        value = (function(s, plan(pi, s.dtype)).exp() * weights.to(s.dtype)).sum()  # type: ignore[operator]
        (first,) = torch.autograd.grad(value, s, create_graph=True)
        return torch.autograd.grad((first**2).sum(), s)[0]

    exact = second(eager.log_classes, x.detach().double().requires_grad_())
    torch.testing.assert_close(second(compiled.log_classes, x).double(), exact, rtol=1e-4, atol=1e-5)

    value = compiled.log_classes(x, plan(pi)).sum(0)
    (rows,) = torch.autograd.grad(value, x, torch.eye(6), is_grads_batched=True)
    (total,) = torch.autograd.grad(compiled.log_classes(x, plan(pi)).sum(), x)
    torch.testing.assert_close(rows.sum(0), total)


@both
def test_any_layout_of_scores_and_gradients(activation: str) -> None:
    pi = Parameterization(18, activation)
    numbers = torch.randn(17, 40)
    straight, turned = numbers.t().contiguous().requires_grad_(), numbers.requires_grad_()
    upstream = torch.randn(18, 40).t()
    outcomes = []
    for leaf, x in ((straight, straight), (turned, turned.t())):
        for g in (upstream, upstream.contiguous()):
            value = compiled.log_classes(x, plan(pi))
            (slope,) = torch.autograd.grad(value, leaf, g)
            outcomes.append((value, slope if leaf is straight else slope.t()))
    assert all(v.equal(outcomes[0][0]) and s.equal(outcomes[0][1]) for v, s in outcomes)
    value, slope = outcomes[0]

    shaped = straight.detach().reshape(2, 4, 5, 17)
    assert compiled.log_classes(shaped, plan(pi)).equal(value.reshape(2, 4, 5, 18))
    assert compiled.log_classes(straight[0], plan(pi)).equal(value[0])
    negated = torch._neg_view(-straight.detach()).requires_grad_()  # to be negated by whoever reads it
    assert compiled.log_classes(negated, plan(pi)).equal(value)
    found = torch.autograd.grad(compiled.log_classes(straight, plan(pi)), straight, torch._neg_view(-upstream))[0]
    assert found.equal(slope)
    zeros = torch._efficientzerotensor(40, 18)  # a tensor without memory
    found = torch.autograd.grad(compiled.log_classes(straight, plan(pi)), straight, zeros)[0]
    assert found.equal(torch.zeros(40, 17))
    expanded = torch.ones(1).expand(40, 18)
    found = torch.autograd.grad(compiled.log_classes(straight, plan(pi)), straight, expanded)[0]
    assert found.equal(torch.autograd.grad(compiled.log_classes(straight, plan(pi)), straight, torch.ones(40, 18))[0])


def test_no_graph_where_none_is_asked_for() -> None:
    x, pi = torch.randn(5, 17, requires_grad=True), Parameterization(18)
    value = compiled.log_classes(x, plan(pi))
    with torch.no_grad():
        bare = compiled.log_classes(x, plan(pi))
    with torch.inference_mode():
        inferred = compiled.log_classes(x, plan(pi))
    assert value.requires_grad and not bare.requires_grad and bare.equal(value) and inferred.equal(value)


def test_hooks_on_saved_tensors_may_hand_back_another_kind() -> None:
    x, pi = torch.randn(5, 17, requires_grad=True), Parameterization(18)
    upstream = torch.randn(5, 18)
    (expected,) = torch.autograd.grad(compiled.log_classes(x, plan(pi)), x, upstream)
    for unpack in (torch.Tensor.double, lambda t: t.t().contiguous().t()):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            value = compiled.log_classes(x, plan(pi))
        (found,) = torch.autograd.grad(value, x, upstream)
        torch.testing.assert_close(found, expected)


def test_a_tensor_that_outlived_its_transform() -> None:
    leaked: list[torch.Tensor] = []
    x, pi = torch.randn(17), Parameterization(18)
    torch.func.grad(lambda s: (leaked.append(s), s.sum())[1])(x)
    assert ct.log_catnat(leaked[0], pi).equal(ct.log_catnat(x, pi))


# -- processes ---------------------------------------------------------------------------------------------------


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert outcome.returncode == 0, outcome.stderr
    assert "Warning" not in outcome.stderr
    return outcome.stdout.strip()


def test_a_forked_child_works_alone() -> None:
    # a second thread in the child would wait for ever for those that the fork did not copy
    code = """
import os, signal, torch, catnat.torch as ct
torch.set_num_threads(2)
x = torch.linspace(-3, 3, 17 * 1000).reshape(1000, 17).requires_grad_()
upstream = torch.ones(1000, 18)
expected = torch.autograd.grad(ct.log_catnat(x), x, upstream)[0].numpy().tobytes()
child = os.fork()
if child == 0:
    signal.alarm(20)
    found = torch.autograd.grad(ct.log_catnat(x), x, upstream)[0].numpy().tobytes()
    os._exit(0 if found == expected else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(code) == "0"


def test_numba_is_loaded_when_first_needed_and_its_work_is_kept() -> None:
    ct.log_catnat(torch.zeros(3), "sigmoid")  # compiles, unless somebody has before us
    code = """
import sys, torch, catnat.torch as ct
ct.log_catnat(torch.zeros(3, dtype=torch.float64))
assert "numba" not in sys.modules
from numba.core import event
with event.install_recorder("numba:compile") as seen:
    ct.log_catnat(torch.zeros(3), "sigmoid")
print("catnat.torch.compiled_loops" in sys.modules, len(seen.buffer))
"""
    assert run(code) == "True 0"


def test_without_numba_all_is_as_before() -> None:
    code = """
import sys, torch
sys.modules["numba"] = None
import catnat.torch as ct
from catnat.torch import compiled
from catnat.torch.plan import plan_for
x = torch.zeros(5, 3, requires_grad=True)
assert not compiled.applies(x, plan_for("natural", 4, x.dtype, x.device))
value = ct.log_catnat(x)
value.sum().backward()
print((value.exp() - 0.25).abs().max().item() < 1e-6)
"""
    assert run(code) == "True"


def test_a_broken_numba_is_none() -> None:
    pi, x = Parameterization(5, center=0.125), torch.randn(3, 4, requires_grad=True)
    with patch.object(compiled, "_loops", lambda: None):
        assert not compiled.applies(x, Plan(pi, x.dtype, x.device))
    compiled._work.cache_clear()
    try:
        with patch.object(compiled._loops(), "cfunc", side_effect=TypeError("broken")):
            assert not compiled.applies(x, Plan(pi, x.dtype, x.device))
        compiled._work.cache_clear()
        fresh, upstream = Plan(pi, x.dtype, x.device), torch.randn(3, 5)
        value = compiled.log_classes(x, fresh)
        with patch.object(compiled._loops(), "cfunc", side_effect=TypeError("broken")):  # only for backward
            (found,) = torch.autograd.grad(value, x, upstream)
        torch.testing.assert_close(found, torch.autograd.grad(eager.log_classes(x, fresh), x, upstream)[0])
    finally:
        compiled._work.cache_clear()


def test_numba_without_its_compiler_is_none() -> None:
    import numba

    with patch.object(numba.config, "DISABLE_JIT", 1), pytest.raises(ImportError):
        importlib.reload(compiled_loops)
    importlib.reload(compiled_loops)


def test_where_nothing_can_be_kept_it_is_compiled_anew() -> None:
    def refuse(signature: object, cache: bool = False, **options: object) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    assert compiled_loops._compile(refuse, None, len) is len
