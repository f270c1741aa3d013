"""States that were wrong without an error: each of these laws was broken once."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import catnat
import catnat.torch as ct
from catnat import Parameterization, Tree
from catnat.core import caches
from catnat.torch import _plan
from tests.core.trees import make_tree
from tests.thinned import thinned

SIX = Parameterization(6)


# -- two activations of one name ---------------------------------------------------------------------------------


def steep(rate: float) -> catnat.Activation:
    """As a notebook's cell that is run again makes it: another class, of the same module and name."""

    @dataclass(frozen=True)
    class Steep(catnat.Activation):
        def logit(self, offset: Any, xp: Any) -> Any:
            return rate * offset

        def slope(self, offset: Any, xp: Any) -> Any:
            return rate * xp.ones_like(offset)

        def inverse(self, logit: Any, xp: Any) -> Any:
            return logit / rate

    return Steep()


def test_an_earlier_activation_keeps_its_formula_when_a_later_one_has_its_name() -> None:
    x = torch.linspace(-1, 1, 5)
    early = Parameterization(6, steep(1.0), center=0.0)
    before = ct.catnat(x, early)
    ct.catnat(x, Parameterization(6, steep(3.0), center=0.0))
    torch.testing.assert_close(ct.catnat(x, early), before, rtol=0, atol=0)
    torch.testing.assert_close(before, ct.catnat(x, Parameterization(6, "sigmoid", center=0.0)))
    compiled = torch.compile(lambda x: ct.catnat(x, early), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), before)


def test_a_class_is_held_no_longer_than_a_plan_of_it() -> None:
    catnat.clear_caches()
    gc.collect()
    held = len(_plan.FORMULAS)
    for rate in (1.0, 2.0, 3.0):
        ct.catnat(torch.zeros(5), Parameterization(6, steep(rate)))
    assert len(_plan.FORMULAS) == held + 3
    catnat.clear_caches()
    gc.collect()
    assert len(_plan.FORMULAS) == held


# -- one seed, one draw ------------------------------------------------------------------------------------------

DRAWS = """
import torch, catnat, catnat.torch as ct
def show(t): print(t.flatten().tolist())
for size, tree in ((2, None), (6, None), (33, None), (100, catnat.Tree.chain(100)), (300, None)):
    pi = catnat.Parameterization(size, tree=tree)
    for dtype in (torch.float32, torch.float64):
        for rows in (1, 7, 64):
            source = torch.Generator().manual_seed(size + rows)
            x = torch.randn(rows, size - 1, generator=source, dtype=dtype)
            mask = torch.rand(rows, size, generator=source) < 0.7
            mask[:, 0] = True
            show(ct.sample(x, pi, sample_shape=(3,), mask=mask, generator=source))
            show(ct.sample(x, pi, sample_shape=(3,), generator=source))
            show(ct.draw(x, pi, generator=source).sample)
            torch.manual_seed(1)
            show(ct.CatnatCategorical(x, pi).sample((5,)))
            show(ct.CatnatLinear(4, pi).double().sample(torch.ones(rows, 4, dtype=torch.float64)))
"""


def test_a_seed_gives_the_same_draws_with_and_without_compiled_code() -> None:
    found = []
    for compiles in ("1", "0"):
        environment = os.environ | {"CATNAT_COMPILE": compiles, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-c", DRAWS], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0] == found[1]
    assert len(found[0].splitlines()) == 5 * 2 * 3 * 5


@pytest.mark.filterwarnings("ignore")
def test_a_traced_sample_is_an_eager_one() -> None:
    x = torch.randn(3, 5)

    def draw(x: torch.Tensor) -> torch.Tensor:
        return ct.sample(x, SIX, sample_shape=(20,))

    traced = torch.jit.trace(draw, (x,), check_trace=False)
    found = []
    for function in (draw, traced):
        torch.manual_seed(7)
        found.append(function(x))
    assert torch.equal(*found)


# -- labels and scores that are none -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wrong", "kind"),
    thinned(
        product(["cross_entropy", "log_prob"], [-1, 6], ["balanced", "chain"]), quick=[("log_prob", -1, "balanced")]
    ),
)
def test_a_label_out_of_range_is_refused_by_compiled_code(name: str, wrong: int, kind: str) -> None:
    pi, x, ids = Parameterization(6, tree=make_tree(kind, 6)), torch.zeros(4, 5), torch.tensor([0, 1, wrong, 2])
    torch._dynamo.reset()
    call = getattr(ct, name)
    compiled = torch.compile(lambda x, k: call(x, k, pi), fullgraph=True)  # by Inductor, whose C++ takes seconds
    torch.testing.assert_close(compiled(x, ids.clamp(0, 5)), call(x, ids.clamp(0, 5), pi))
    with pytest.raises((RuntimeError, IndexError)):
        compiled(x, ids)


@pytest.mark.slow
def test_a_label_out_of_range_is_refused_by_a_compiled_wide_head() -> None:
    head, x = ct.CatnatLinear(3, 3000), torch.randn(4, 3)
    compiled = torch.compile(head.loss, fullgraph=True)
    with pytest.raises((RuntimeError, IndexError)):
        compiled(x, torch.tensor([0, 1, -1, 2]))


BIG = Parameterization(100)  # whose draws walk down the tree


@pytest.mark.parametrize("pi", [SIX, BIG, Parameterization(80, tree=Tree.chain(80))], ids=["race", "walk", "deep"])
def test_nothing_is_drawn_from_scores_that_are_nan(pi: Parameterization) -> None:
    x = torch.zeros(50, pi.num_nodes)
    x[3] = torch.nan
    head = ct.CatnatLinear(2, pi)
    for call in (
        lambda: ct.sample(x, pi),
        lambda: ct.sample(x, pi, mask=torch.ones(pi.num_classes, dtype=torch.bool)),
        lambda: ct.draw(x, pi),
        lambda: ct.mode(x, pi),
        lambda: ct.CatnatCategorical(x, pi, validate_args=False).sample(),
        lambda: head.sample(torch.full((1, 2), torch.nan)),
        lambda: head.mode(torch.full((1, 2), torch.nan)),
        lambda: head.mode(torch.full((1, 2), torch.nan), beam=2),
        lambda: head.topk(torch.full((1, 2), torch.nan), 2),
        lambda: ct.sample_without_replacement(x, 2, pi),
        lambda: ct.OneHotCatnat(x, pi, validate_args=False).mode,
    ):
        with pytest.raises(ValueError, match="scores must not be NaN"):
            call()
    # where no value can be looked at the answer is K, which the next use refuses
    drawn = torch.vmap(lambda row: ct.sample(row, pi), randomness="different")(x)
    assert drawn[3] == pi.num_classes and (drawn[:3] < pi.num_classes).all()
    with pytest.raises(IndexError):
        ct.log_prob(x, drawn, pi)


def test_a_layout_that_could_be_torchs_is_refused() -> None:
    x, target = torch.randn(2, 5, 5), torch.randint(6, (2, 5))
    with pytest.raises(ValueError, match="dim=-1 or dim=1"):
        ct.cross_entropy(x, target, SIX)
    with pytest.raises(ValueError, match="dim=-1 or dim=1"):
        ct.CatnatCrossEntropyLoss(SIX)(x, target)
    second = F.nll_loss(ct.log_catnat(x, SIX, dim=1), target)
    torch.testing.assert_close(ct.cross_entropy(x, target, SIX, dim=1), second)
    last = F.nll_loss(ct.log_catnat(x, SIX).movedim(-1, 1), target)
    torch.testing.assert_close(ct.cross_entropy(x, target, SIX, dim=-1), last)
    with pytest.raises(ValueError, match="say dim=1; got"):
        ct.cross_entropy(torch.randn(2, 5, 7), torch.randint(6, (2, 7)), SIX)
    with pytest.raises(ValueError, match="say dim=1; got"):
        ct.cross_entropy(torch.randn(2, 5, 5, 4), torch.randint(6, (2, 5, 4)), SIX)


def test_smoothed_labels_bear_the_largest_score() -> None:
    x = torch.zeros(1, 7)
    x[0, 0] = torch.finfo(torch.float32).max
    loss = ct.cross_entropy(x, torch.tensor([7]), Parameterization(8, "sigmoid"), label_smoothing=0.1)
    assert loss.isfinite()


# -- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ["natural", "sigmoid", "paper"])
def test_uniform_scores_give_one_over_k_to_the_last_bit(activation: str, dtype: torch.dtype) -> None:
    # sin(pi/4) squared has no last bit: in float64 the paper's two branches differ by one
    exact = activation != "paper" or dtype is not torch.float64
    for size in (1, 2, 4, 8, 64, 1024):
        pi = Parameterization(size, activation)
        x = torch.zeros(3, size - 1, dtype=dtype)
        mapped = torch.func.vmap(ct.catnat, (0, None))(x, pi)
        for p in (ct.catnat(x, pi), ct.CatnatCategorical(x, pi).probs, mapped):
            assert ((p * size - 1).abs() <= (0 if exact else 1e-14)).all(), (size, p)
        mask = torch.arange(size) % 2 == 0
        p = ct.catnat(x, pi, mask=mask)
        assert ((p[:, mask] * max(1, size // 2) - 1).abs() <= (0 if exact else 1e-14)).all()


def test_a_draw_from_a_deep_chain_takes_little_memory() -> None:
    pi = Parameterization(2000, tree=Tree.chain(2000))
    x = torch.zeros(1999)
    ct.sample(x, pi)
    with torch.profiler.profile(profile_memory=True) as profile:
        drawn = ct.sample(x, pi, sample_shape=(20_000,))
    peak = sum(max(0, event.self_cpu_memory_usage) for event in profile.events())
    assert peak < 20e6, peak
    p = ct.catnat(x, pi).numpy()
    counts = np.bincount(drawn.numpy() // 100, minlength=20)
    expected = p.reshape(20, 100).sum(1) * 20_000
    assert ((counts - expected) ** 2 / expected).sum() < 50  # chi squared with 19 degrees of freedom: 1e-4


# -- what is kept ------------------------------------------------------------------------------------------------


def test_plans_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    catnat.clear_caches()
    monkeypatch.setattr(caches, "MAX_BYTES", 1_000_000)
    generator = np.random.default_rng(0)
    for _ in range(10):
        pi = Parameterization(500, tree=Tree.huffman(generator.random(500)))
        ct.log_catnat(torch.zeros(499), pi)
    assert 0 < _plan.PLANS.total <= 1_000_000
    assert _plan.PLANS.total == sum(plan.nbytes for plan in _plan.PLANS.values())
    ct.log_catnat(torch.zeros(99_999), 100_000)  # larger than the whole cache: it stays, but alone
    assert len(_plan.PLANS) == 1
    ct.log_catnat(torch.zeros(9), 10)
    assert _plan.PLANS.total <= 1_000_000
    catnat.clear_caches()
    assert not _plan.PLANS and _plan.PLANS.total == 0


def test_a_cleared_cache_gives_its_memory_back() -> None:
    catnat.clear_caches()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for size in (20_000, 30_000):
        ct.scores_from_probs(torch.ones(size), size)
    catnat.clear_caches()
    gc.collect()
    left = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert left < 100_000, left


def test_a_plan_cannot_be_written_to() -> None:
    plan = _plan.find_plan(SIX, torch.float32, torch.device("cpu"))
    with pytest.raises(FrozenInstanceError):
        plan.depth = 3  # type: ignore[misc]


def test_a_head_lends_its_weights_names() -> None:
    head, other = ct.CatnatLinear(4, 6), torch.nn.Linear(4, 5)
    assert head.weight is head.linear.weight and head.bias is head.linear.bias
    torch.nn.init.zeros_(head.weight)
    assert not head.linear.weight.any()
    head.weight = other.weight  # tied
    assert head.linear.weight is other.weight
    assert [name for name, _ in head.named_parameters()] == ["linear.weight", "linear.bias"]
    with pytest.raises(ValueError, match=r"a row per node and not per class; got \(6, 4\)"):
        head.weight = torch.nn.Linear(4, 6).weight


def test_a_head_starts_at_its_frequencies_whoever_resets_it() -> None:
    shares = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1])
    head = ct.CatnatLinear(4, 5, class_frequencies=shares, device="meta").to_empty(device="cpu")
    for module in head.modules():  # the head first, the layer inside last
        module.reset_parameters()
    torch.testing.assert_close(head(torch.zeros(1, 4)).exp()[0], shares)


def test_an_average_of_heads_is_still_such_a_head() -> None:
    head = ct.CatnatLinear(4, catnat.Parameterization(6, catnat.Natural(tail=0.3)))
    averaged = torch.optim.swa_utils.AveragedModel(head, use_buffers=True)
    for _ in range(5):
        averaged.update_parameters(head)
    head.load_state_dict(averaged.module.state_dict())
    mixed = {name: 0.999 * value + 0.001 * value for name, value in head.state_dict().items()}
    head.load_state_dict({name: value.to(head.state_dict()[name].dtype) for name, value in mixed.items()})
    with pytest.raises(RuntimeError, match=r"tail 0\.3 there, 0\.1 here"):
        ct.CatnatLinear(4, 6).load_state_dict(averaged.module.state_dict())


def test_threads_may_make_plans_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    catnat.clear_caches()
    monkeypatch.setattr(caches, "MAX_BYTES", 40_000)
    with ThreadPoolExecutor(6) as pool:
        for found in pool.map(lambda i: ct.catnat(torch.zeros(i % 40 + 1), i % 40 + 2), range(600)):
            assert abs(float(found.sum()) - 1) < 1e-6
    assert _plan.PLANS.total == sum(plan.nbytes for plan in _plan.PLANS.values())
