"""The GPU kernels' logic without a GPU: Triton's interpreter on small shapes, against the oracle."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch

from catnat import Natural, Parameterization, Tree
from catnat.core import reference
from catnat.torch._gpu.coin import coin_of
from tests.contract.cases import scores_for
from tests.contract.judge import assert_close, expected_gradient

pytest.importorskip("triton")
launch = pytest.importorskip("catnat.torch._gpu.launch")
blocks = pytest.importorskip("catnat.torch._gpu.blocks")

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested there")

CPU = torch.device("cpu")
ROWS = 5
ACTIVATIONS = {
    "sigmoid": "sigmoid",
    "natural": "natural",
    "amplitude": Natural(amplitude=3.0, floor=1e-5),
    "reflect": Natural(saturation="reflect", amplitude=5.0),
}


def centers(classes: int, name: str) -> object:
    return {"uniform": "uniform", "one": 0.4, "by node": tuple(np.linspace(-0.5, 0.6, classes - 1))}[name]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def both_ways(pi: Parameterization, scores: np.ndarray, exp: bool = False) -> None:
    """Values and gradients of log p, or of p, are the oracle's."""
    coin = coin_of(pi, CPU)
    assert coin is not None
    x, upstream = torch.from_numpy(scores), numbers(len(scores), pi.num_classes)
    exact, log_p = scores.astype(np.float64), reference.log_catnat(scores.astype(np.float64), pi)
    found = launch.walk(x, coin, exp).numpy()
    assert_close(found, np.exp(log_p) if exp else log_p, 2e-6, "values")
    gradient = launch.pull(x, torch.from_numpy(upstream), coin, launch.P if exp else launch.LOG_P).numpy()
    weights = upstream.astype(np.float64) * (np.exp(log_p) if exp else 1)
    expected, scale = expected_gradient(exact, weights, pi)
    assert_close(gradient, expected, 2e-6, "gradient", scale)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three levels, so that small trees have several, and a tree above that has several too."""
    for name in ("walk", "pull"):
        monkeypatch.setattr(launch, f"{name}_block", lambda classes, small: blocks.Block.of(classes, 3, 16, 1))
        launcher = getattr(launch, f"_{name}_launcher")
        monkeypatch.setattr(launch, f"_{name}_launcher", lru_cache(launcher.__wrapped__))


@pytest.mark.parametrize("classes", [2, 3, 8, 18, 33])
@pytest.mark.parametrize("name", ["sigmoid", "natural"])
def test_one_block(classes: int, name: str) -> None:
    pi = Parameterization(classes, name)
    for score_set in ("scale 1", "near the ends"):
        both_ways(pi, scores_for(pi, score_set, ROWS, np.float32))
    both_ways(pi, scores_for(pi, "scale 1", ROWS, np.float32), exp=True)


@pytest.mark.parametrize("classes", [9, 16, 29, 70])
@pytest.mark.parametrize("name", ["sigmoid", "natural"])
def test_several_blocks(classes: int, name: str, small_blocks: None) -> None:
    pi = Parameterization(classes, name)
    both_ways(pi, scores_for(pi, "scale 1", 3, np.float32))
    if classes < 50:
        both_ways(pi, scores_for(pi, "scale 1", 3, np.float32), exp=True)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("center", ["uniform", "one", "by node"])
def test_activations_and_centres(name: str, center: str, small_blocks: None) -> None:
    for classes in (5, 13):
        pi = Parameterization(classes, ACTIVATIONS[name], center=centers(classes, center))
        both_ways(pi, scores_for(pi, "scale 1", 3, np.float32) * np.float32(2.0))


@pytest.mark.parametrize(("classes", "odd"), [(13, (1, 2, 4)), (11, (1, 3)), (13, (1, 3, 6)), (13, (5,)), (16, (1, 2))])
def test_centres_along_a_path_that_is_not_the_ragged_one(
    classes: int, odd: tuple[int, ...], small_blocks: None
) -> None:
    for name in ("sigmoid", "natural"):
        center = tuple(0.5 / node if node in odd else 0.0 for node in range(1, classes))
        pi = Parameterization(classes, name, center=center)
        both_ways(pi, scores_for(pi, "scale 1", 3, np.float32))


def test_the_default_dtype_changes_nothing() -> None:
    coin = coin_of(Parameterization(18, "natural"), CPU)
    assert coin is not None
    x, index = torch.from_numpy(numbers(3, 17)), torch.tensor([[1], [2], [17]])
    expected = [launch.log_path(x, index, coin), launch.head(x, None, None, coin)[1]]
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        found = [launch.log_path(x, index, coin), launch.head(x, None, None, coin)[1]]
    finally:
        torch.set_default_dtype(before)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32 and torch.equal(a, b)


def test_numbers_that_are_negated_when_read() -> None:
    coin = coin_of(Parameterization(6, "natural"), CPU)
    assert coin is not None
    x, upstream = (torch.from_numpy(numbers(3, n)) for n in (5, 6))
    assert torch.equal(launch.walk(torch._neg_view(x), coin, False), launch.walk(-x, coin, False))
    ours = launch.pull(torch._neg_view(x), torch._neg_view(upstream), coin, launch.LOG_P)
    assert torch.equal(ours, launch.pull(-x, -upstream, coin, launch.LOG_P))


def test_the_kinds_of_ends() -> None:
    kinds = {
        (16, "uniform", "clip"): 0,
        (18, "uniform", "clip"): 1,
        (18, 0.4, "clip"): 3,
        (16, "uniform", "reflect"): 3,
        (18, "by node", "clip"): 2,
    }
    for (classes, center, saturation), kind in kinds.items():
        center = centers(classes, center) if isinstance(center, str) else center
        coin = coin_of(Parameterization(classes, Natural(saturation=saturation), center=center), CPU)
        assert coin is not None and coin.kind == kind
    assert coin_of(Parameterization(9, "sigmoid", Tree.chain(9)), CPU) is None


def test_sixteen_bits() -> None:
    for dtype, tolerance in ((torch.bfloat16, 8e-3), (torch.float16, 1e-3)):
        for name in ("sigmoid", "natural"):
            pi = Parameterization(18, name)
            coin = coin_of(pi, CPU)
            assert coin is not None
            x, upstream = (torch.from_numpy(numbers(3, n, seed=n)).to(dtype) for n in (17, 18))
            exact, weights = x.double().numpy(), upstream.double().numpy()
            found = launch.walk(x, coin, False)
            assert found.dtype == dtype
            assert_close(found.double().numpy(), reference.log_catnat(exact, pi), tolerance, str(dtype))
            expected, scale = expected_gradient(exact, weights, pi)
            below = np.abs(weights).sum(-1, keepdims=True)  # see `kernels.coins`
            gradient = launch.pull(x, upstream, coin, launch.LOG_P).double().numpy()
            assert_close(gradient, expected, tolerance, str(dtype), scale + below)


@pytest.mark.parametrize("classes", [2, 3, 18, 64])
@pytest.mark.parametrize("name", ["sigmoid", "natural"])
def test_paths_and_heads(classes: int, name: str) -> None:
    pi = Parameterization(classes, name)
    coin = coin_of(pi, CPU)
    assert coin is not None
    scores = numbers(ROWS, classes - 1)
    x, exact = torch.from_numpy(scores), scores.astype(np.float64)
    log_p = reference.log_catnat(exact, pi)
    entropy = -(np.exp(log_p) * log_p).sum(-1)
    index = torch.from_numpy(np.random.default_rng(1).integers(classes, size=(ROWS, 3)))
    picked = np.take_along_axis(log_p, index.numpy(), 1)
    assert_close(launch.log_path(x, index, coin).numpy(), picked, 2e-6, "path")
    for samples in (1, 3):
        weights = numbers(ROWS, samples, seed=2)
        upstream = np.zeros((ROWS, classes))
        np.add.at(upstream, (np.arange(ROWS)[:, None], index[:, :samples].numpy()), weights.astype(np.float64))
        expected, _ = expected_gradient(exact, upstream, pi)
        sizes = np.zeros((ROWS, classes))
        np.add.at(sizes, (np.arange(ROWS)[:, None], index[:, :samples].numpy()), np.abs(weights))
        found = launch.pull_path(x, index[:, :samples], torch.from_numpy(weights), coin).numpy()
        assert_close(found, expected, 2e-6, "path's gradient", expected_gradient(exact, sizes, pi)[1])

    targets = index[:, :1].clone()
    targets[2] = -100
    weights = numbers(ROWS, 1, seed=4)
    counts = (targets.numpy() != -100).astype(np.float64)
    assert_close(launch.log_path(x, targets, coin, -100).numpy(), -picked[:, :1] * counts, 2e-6, "loss")
    upstream = np.eye(classes)[index[:, 0].numpy()] * (-weights * counts)
    expected, scale = expected_gradient(exact, upstream, pi)
    found = launch.pull_path(x, targets, torch.from_numpy(weights), coin, -100).numpy()
    assert_close(found, expected, 2e-6, "loss's gradient", scale)

    one = index[:, 0].contiguous()
    log_prob, found_entropy, same = launch.head(x, one, None, coin)
    assert same is one
    assert_close(log_prob.numpy(), picked[:, 0], 2e-6, "head's log p")
    assert_close(found_entropy.numpy(), entropy, 2e-6, "entropy")
    weights = numbers(2, ROWS, seed=3)
    upstream = np.eye(classes)[one.numpy()] * weights[0][:, None] - np.exp(log_p) * (log_p + 1) * weights[1][:, None]
    expected, scale = expected_gradient(exact, upstream, pi)
    a, b = (torch.from_numpy(w) for w in weights)
    assert_close(launch.pull(x, a, coin, launch.HEAD, one, b).numpy(), expected, 2e-6, "head's gradient", scale + 1)

    drawn_log_p, _, drawn = launch.head(x, None, torch.tensor([7]), coin)
    assert_close(drawn_log_p.numpy(), np.take_along_axis(log_p, drawn.numpy()[:, None], 1)[:, 0], 2e-6, "drawn")


@pytest.mark.parametrize("name", ["sigmoid", "natural", "reflect"])
def test_draws_follow_their_probabilities(name: str) -> None:
    pi = Parameterization(6, ACTIVATIONS[name])
    coin = coin_of(pi, CPU)
    assert coin is not None
    scores = numbers(2, 5)
    n = 1500
    drawn = launch.sample(torch.from_numpy(scores), torch.tensor([11]), n, coin).numpy()
    for row in range(2):
        p = np.exp(reference.log_catnat(scores[row].astype(np.float64), pi))
        counts = np.bincount(drawn[:, row], minlength=6)
        assert (np.abs(counts - n * p) < 5 * np.sqrt(n * p * (1 - p)) + 1).all()
    again = launch.sample(torch.from_numpy(scores), torch.tensor([11]), n, coin).numpy()
    other = launch.sample(torch.from_numpy(scores), torch.tensor([12]), n, coin).numpy()
    assert (drawn == again).all() and not (drawn == other).all()
    assert not (drawn[:, 0] == drawn[:, 1]).all()


def test_rows_of_any_strides() -> None:
    pi = Parameterization(18, "natural")
    coin = coin_of(pi, CPU)
    assert coin is not None
    wide = torch.from_numpy(numbers(12, 40))
    for view in (
        wide[:, 3:20],
        wide[::2, :17],
        wide.view(3, 4, 40).transpose(0, 1)[:, :, :17],
        wide.view(3, 2, 2, 40).permute(2, 0, 1, 3)[..., :17],
        wide[:1, :17].expand(4, -1),
        torch.from_numpy(numbers(17, 6)).t(),
        wide[0, :17],
    ):
        expected = launch.walk(view.contiguous(), coin, False)
        assert torch.equal(launch.walk(view, coin, False), expected)
        upstream = torch.ones_like(expected)
        ours, theirs = (launch.pull(x, upstream, coin, launch.LOG_P) for x in (view, view.contiguous()))
        assert torch.equal(ours, theirs)
        index = torch.zeros((*view.shape[:-1], 1), dtype=torch.int64)
        assert torch.equal(launch.log_path(view, index, coin), launch.log_path(view.contiguous(), index, coin))


@pytest.mark.parametrize("classes", [2, 18, 33])
def test_all_of_the_result_is_written_and_nothing_around_it(classes: int) -> None:
    coin = coin_of(Parameterization(classes, "sigmoid"), CPU)
    assert coin is not None
    x, upstream = (torch.from_numpy(numbers(ROWS, n)) for n in (classes - 1, classes))
    rows = launch.Rows.of(x)
    settings = (coin.ends, ROWS, *rows.strides, *launch._numbers(0.0, 0.0))
    switches = launch.Switches.of(coin, rows)
    walk, block = launch._walk_launcher(switches, False, False)
    pull, pull_block = launch._pull_launcher(switches, False, launch.LOG_P, classes)
    for width, start in (
        (classes, lambda out: walk(CPU, launch._programs(ROWS, block.height), x, out, *settings)),
        (
            classes - 1,
            lambda out: pull(
                CPU, launch._programs(ROWS, pull_block.height), x, upstream, None, None, out, None, *settings
            ),
        ),
    ):
        room = torch.full((ROWS * width + 200,), torch.nan)
        start(room[100:-100].view(ROWS, width))
        assert torch.isfinite(room[100:-100]).all()
        assert room[:100].isnan().all() and room[-100:].isnan().all()


def test_empty_batches() -> None:
    coin = coin_of(Parameterization(18, "sigmoid"), CPU)
    assert coin is not None
    x = torch.zeros(0, 17)
    assert launch.walk(x, coin, False).shape == (0, 18)
    assert launch.pull(x, torch.zeros(0, 18), coin, launch.LOG_P).shape == (0, 17)
    assert launch.sample(x, torch.tensor([1]), 3, coin).shape == (3, 0)
    assert launch.log_path(x, torch.zeros(0, 1, dtype=torch.int64), coin).shape == (0, 1)
    assert launch.head(x, None, torch.tensor([1]), coin)[1].shape == (0,)
