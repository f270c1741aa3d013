"""The GPU kernels' logic without a GPU: Triton's interpreter on small shapes, against the oracle."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
import torch

from catnat import Natural, Parameterization, Sigmoid, Tree
from catnat.torch import _bernoulli
from catnat.torch._bernoulli import Bernoulli, bernoulli_of
from catnat_lab import reference
from tests.contract.judge import assert_close, expected_gradient
from tests.thinned import thinned

pytest.importorskip("triton")
launch = pytest.importorskip("catnat.torch._gpu.launch")
blocks = pytest.importorskip("catnat.torch._gpu.blocks")

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested there"),
    pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning"),  # the interpreter's logarithm of 0
]

CPU = torch.device("cpu")
ROWS = 5
FAMILY = {
    "sigmoid": Sigmoid(),
    **{f"tail {tail:g}": Natural(tail=tail) for tail in (0.5, 0.1, 0.05, 0.01, 1e-3)},
    "paper": Natural(tail=0.0, floor=0.0),
    "floor": Natural(tail=0.0, floor=1e-8),
    "amplitude": Natural(amplitude=3.0),
    "scaled sigmoid": Natural(amplitude=3.0, tail=0.5),
}


def nodes_of(pi: Parameterization) -> Bernoulli:
    found = bernoulli_of(pi, CPU)
    assert found is not None
    return found


def centers(classes: int, name: str) -> object:
    return {"uniform": "uniform", "one": 0.4, "by node": tuple(np.linspace(-0.5, 0.6, classes - 1))}[name]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def scores_of(pi: Parameterization, where: str, rows: int) -> np.ndarray:
    """Scores around the centre, far from it, and close to where the natural range or its straight line ends."""
    rng = np.random.default_rng([rows, pi.num_classes])
    if where != "ends":
        return (rng.normal(size=(rows, pi.num_nodes)) * float(where)).astype(np.float32)
    shape = rows, pi.num_nodes
    natural = pi.activation
    end = rng.choice([9.0, 17.0, 37.0, 88.0], shape)
    if isinstance(natural, Natural):
        inward = rng.choice([-1, 1], shape) * rng.choice(10.0 ** -np.arange(1, 7), shape)
        end = rng.choice([math.pi, natural.joint], shape) / natural.gain - inward
    return (pi.centers + end * rng.choice([-1, 1], shape)).astype(np.float32)


def both_ways(pi: Parameterization, scores: np.ndarray, exp: bool = False) -> None:
    """Values and gradients of log p, or of p, are the oracle's."""
    nodes = nodes_of(pi)
    x, upstream = torch.from_numpy(scores), numbers(len(scores), pi.num_classes)
    exact, log_p = scores.astype(np.float64), reference.log_catnat(scores.astype(np.float64), pi)
    found = launch.walk(x, nodes, exp).numpy()
    assert_close(found, np.exp(log_p) if exp else log_p, 2e-6, "values")
    gradient = launch.pull(x, nodes, torch.from_numpy(upstream), exp).numpy()
    weights = upstream.astype(np.float64) * (np.exp(log_p) if exp else 1)
    expected, scale = expected_gradient(exact, weights, pi)
    assert_close(gradient, expected, 2e-6, "gradient", scale)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three levels, so that small trees have several, and a tree above that has several too.

    Two programs a turn, so that a batch has several turns and a last one that is shorter.
    """
    monkeypatch.setattr(blocks, "TOP_BLOCK", blocks.Block(3, 16, 1))
    for name in ("walk", "pull"):
        monkeypatch.setattr(blocks, f"{name}_block", lambda classes, exact: blocks.Block(3, 16, 1, turn=2))
        launcher = getattr(launch, f"_{name}_launcher")
        monkeypatch.setattr(launch, f"_{name}_launcher", lru_cache(launcher.__wrapped__))


@pytest.mark.parametrize("name", thinned(FAMILY, quick=["tail 0.1", "floor"]))
def test_the_family(name: str) -> None:
    for classes in (2, 3, 8, 18):
        pi = Parameterization(classes, FAMILY[name])
        for where in ("1", "10", "ends"):
            both_ways(pi, scores_of(pi, where, ROWS))
        both_ways(pi, scores_of(pi, "1", ROWS), exp=True)


@pytest.mark.parametrize(
    ("classes", "name"),
    thinned(
        product([9, 16, 29, 33, 70], ["sigmoid", "tail 0.05", "paper"]),
        quick=[(9, "tail 0.05"), (16, "paper")],  # two kernels, one of them full
    ),
)
def test_several_blocks(classes: int, name: str, small_blocks: None) -> None:
    pi = Parameterization(classes, FAMILY[name])
    both_ways(pi, scores_of(pi, "1", 9 if classes < 30 else 5))  # three turns of two, two and one, or two of them
    if classes < 30:
        both_ways(pi, scores_of(pi, "1", 9), exp=True)


@pytest.mark.parametrize(
    ("name", "center"),
    thinned(
        product(["sigmoid", "tail 0.05", "tail 0.001", "paper", "floor", "amplitude"], ["uniform", "one", "by node"]),
        quick=[("sigmoid", "one"), ("tail 0.05", "uniform"), ("paper", "by node")],
    ),
)
def test_activations_and_centres(name: str, center: str, small_blocks: None) -> None:
    for classes, where in ((5, "2"), (13, "ends")):
        pi = Parameterization(classes, FAMILY[name], center=centers(classes, center))
        both_ways(pi, scores_of(pi, where, 3))


@pytest.mark.parametrize(
    ("classes", "odd"),
    thinned([(13, (1, 2, 4)), (11, (1, 3)), (13, (1, 3, 6)), (13, (5,)), (16, (1, 2))], quick=[(11, (1, 3))]),
)
def test_centres_along_a_path_that_is_not_the_ragged_one(
    classes: int, odd: tuple[int, ...], small_blocks: None
) -> None:
    for name in ("sigmoid", "natural"):
        center = tuple(0.5 / node if node in odd else 0.0 for node in range(1, classes))
        pi = Parameterization(classes, name, center=center)
        both_ways(pi, scores_of(pi, "1", 3))


def test_the_kinds_of_centres() -> None:
    kinds = {
        (16, "uniform"): _bernoulli.NONE,
        (18, "uniform"): _bernoulli.UNEVEN,
        (18, 0.4): _bernoulli.BY_NODE,
        (18, 0.0): _bernoulli.NONE,
    }
    for (classes, center), kind in kinds.items():
        nodes = nodes_of(Parameterization(classes, "natural", center=center))
        assert nodes.kind == kind and (nodes.centers is None) == (kind == _bernoulli.NONE)
    assert bernoulli_of(Parameterization(9, "sigmoid", Tree.chain(9)), CPU) is None
    clustered = Parameterization(4, "natural", Tree.cluster([[0.0], [5.0], [0.1], [5.1]]))
    assert bernoulli_of(clustered, CPU) == bernoulli_of(
        Parameterization(4, "natural"), CPU
    )  # the heap's, in another order

    class Own(Sigmoid):
        """Whose formula may be another."""

    assert bernoulli_of(Parameterization(9, Own()), CPU) is None


def test_infinite_scores_are_certain_and_nan_stays_in_its_row() -> None:
    for name in ("sigmoid", "natural", "paper"):
        nodes = nodes_of(Parameterization(4, name))
        x = torch.tensor([[math.inf, -math.inf, math.inf], [math.nan, 0.0, 0.0], [1.0, 2.0, -1.0]])
        found = launch.walk(x, nodes, False)
        assert torch.equal(found[0], torch.tensor([-math.inf, -math.inf, -math.inf, 0.0]))
        assert found[1].isnan().all() and torch.isfinite(found[2]).all()
        gradient = launch.pull(x, nodes, torch.ones(3, 4), False)
        assert torch.isfinite(gradient[0]).all() and gradient[1, 0].isnan() and torch.isfinite(gradient[2]).all()


def test_the_default_dtype_changes_nothing() -> None:
    nodes = nodes_of(Parameterization(18, "natural"))
    x, index = torch.from_numpy(numbers(3, 17)), torch.tensor([[1], [2], [17]])
    expected = [launch.log_path(x, nodes, index), launch.head(x, nodes, None, None)[1]]
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        found = [launch.log_path(x, nodes, index), launch.head(x, nodes, None, None)[1]]
    finally:
        torch.set_default_dtype(before)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32 and torch.equal(a, b)


def test_numbers_that_are_negated_when_read() -> None:
    nodes = nodes_of(Parameterization(6, "natural"))
    x, upstream = (torch.from_numpy(numbers(3, n)) for n in (5, 6))
    assert torch.equal(launch.walk(torch._neg_view(x), nodes, False), launch.walk(-x, nodes, False))
    ours = launch.pull(torch._neg_view(x), nodes, torch._neg_view(upstream), False)
    assert torch.equal(ours, launch.pull(-x, nodes, -upstream, False))


@pytest.mark.parametrize("name", thinned(["sigmoid", "tail 0.05", "tail 0.001", "floor"], 2, every=4))
def test_sixteen_bits(name: str) -> None:
    for dtype, tolerance in ((torch.bfloat16, 8e-3), (torch.float16, 1e-3)):
        pi = Parameterization(18, FAMILY[name])
        nodes = nodes_of(pi)
        x, upstream = (torch.from_numpy(numbers(3, n, seed=n)).to(dtype) for n in (17, 18))
        exact, weights = x.double().numpy(), upstream.double().numpy()
        found = launch.walk(x, nodes, False)
        assert found.dtype == dtype
        assert_close(found.double().numpy(), reference.log_catnat(exact, pi), tolerance, str(dtype))
        expected, scale = expected_gradient(exact, weights, pi)
        below = np.abs(weights).sum(-1, keepdims=True)  # see `_gpu.node`
        gradient = launch.pull(x, nodes, upstream, False).double().numpy()
        assert_close(gradient, expected, tolerance, str(dtype), scale + below)


@pytest.mark.parametrize(
    "name",
    thinned(["sigmoid", "tail 0.1", "tail 0.05", "tail 0.01", "tail 0.001", "floor", "amplitude"], quick=["tail 0.1"]),
)
def test_what_is_short_for_sixteen_bits_is_close_to_what_is_not(name: str) -> None:
    """Closer than 16 bits show: the kernels' own short formulas on float32 numbers."""
    nodes = nodes_of(Parameterization(8, FAMILY[name]))
    x, upstream = torch.linspace(-8, 8, 7 * 40).view(40, 7), torch.from_numpy(numbers(40, 8))
    call = blocks.Call(nodes._replace(centers=None), False, True)
    launcher = launch._walk_launcher(call, False)
    short = torch.empty(40, 8)
    launcher(launcher.programs(40), (x, short, None), (40, 7))
    torch.testing.assert_close(short, launch.walk(x, nodes, False), rtol=2e-5, atol=1e-4)
    launcher = launch._pull_launcher(call, False, 8)
    slopes = torch.empty(40, 7)
    launcher(launcher.programs(40), (x, upstream, None, None, slopes, None, None), (40, 7))
    torch.testing.assert_close(slopes, launch.pull(x, nodes, upstream, False), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("amplitude", thinned([1e-30, 1e-4, 1.0, 1e4, 1e30], every=4))
def test_sixteen_bits_of_any_amplitude(amplitude: float) -> None:
    """Whose powers leave float32 where it is far from 1."""
    pi = Parameterization(4, Natural(amplitude=amplitude))
    nodes = nodes_of(pi)
    x = torch.from_numpy(numbers(6, 3) * amplitude / 4).bfloat16()
    upstream = torch.from_numpy(numbers(6, 4, seed=1)).bfloat16()
    expected, _ = expected_gradient(x.double().numpy(), upstream.double().numpy(), pi)
    gradient = launch.pull(x, nodes, upstream, False).double().numpy()
    assert_close(gradient * amplitude, expected * amplitude, 0.05, "gradient")


@pytest.mark.parametrize("name", thinned(["sigmoid", "tail 0.05"], quick=["tail 0.05"]))
def test_large_gradients_of_far_scores_are_numbers(name: str) -> None:
    pi = Parameterization(4, FAMILY[name])
    nodes = nodes_of(pi)
    x = torch.tensor([[40.0, -90.0, 1000.0], [-40.0, 90.0, -1000.0]])
    expected = reference.log_catnat_gradient(x.double().numpy(), np.full((2, 4), 1e25), pi)
    gradient = launch.pull(x, nodes, torch.full((2, 4), 1e25), False).numpy()
    assert_close(gradient / 1e25, expected / 1e25, 2e-6, "gradient")


def test_short_polynomials_are_there_for_the_default_and_not_for_the_papers_end() -> None:
    for name, is_short in {"sigmoid": True, "tail 0.5": True, "tail 0.05": True, "tail 0.01": False}.items():
        nodes = nodes_of(Parameterization(8, FAMILY[name]))
        assert (blocks.short_of(*nodes[3:]) is not None) == is_short
    assert all(blocks.short_of(*nodes_of(Parameterization(8, FAMILY[n]))[3:]) is None for n in ("paper", "floor"))


@pytest.mark.parametrize(
    ("classes", "name"),
    thinned(product([2, 3, 18, 64], ["sigmoid", "tail 0.05", "floor"]), quick=[(2, "floor"), (18, "tail 0.05")]),
)
def test_paths_and_heads(classes: int, name: str) -> None:
    pi = Parameterization(classes, FAMILY[name])
    nodes = nodes_of(pi)
    scores = numbers(ROWS, classes - 1)
    x, exact = torch.from_numpy(scores), scores.astype(np.float64)
    log_p = reference.log_catnat(exact, pi)
    entropy = -(np.exp(log_p) * log_p).sum(-1)
    index = torch.from_numpy(np.random.default_rng(1).integers(classes, size=(ROWS, 3)))
    picked = np.take_along_axis(log_p, index.numpy(), 1)
    assert_close(launch.log_path(x, nodes, index).numpy(), picked, 2e-6, "path")
    for samples in (1, 3):
        weights = numbers(ROWS, samples, seed=2)
        upstream = np.zeros((ROWS, classes))
        np.add.at(upstream, (np.arange(ROWS)[:, None], index[:, :samples].numpy()), weights.astype(np.float64))
        expected, _ = expected_gradient(exact, upstream, pi)
        sizes = np.zeros((ROWS, classes))
        np.add.at(sizes, (np.arange(ROWS)[:, None], index[:, :samples].numpy()), np.abs(weights))
        found = launch.pull_path(x, nodes, index[:, :samples], torch.from_numpy(weights)).numpy()
        assert_close(found, expected, 2e-6, "path's gradient", expected_gradient(exact, sizes, pi)[1])

    one = index[:, 0].contiguous()
    log_prob, found_entropy, same = launch.head(x, nodes, one, None)
    assert same is one
    assert_close(log_prob.numpy(), picked[:, 0], 2e-6, "head's log p")
    assert_close(found_entropy.numpy(), entropy, 2e-6, "entropy")
    weights = numbers(2, ROWS, seed=3)
    upstream = np.eye(classes)[one.numpy()] * weights[0][:, None] - np.exp(log_p) * (log_p + 1) * weights[1][:, None]
    expected, scale = expected_gradient(exact, upstream, pi)
    a, b = (torch.from_numpy(w) for w in weights)
    assert_close(launch.pull(x, nodes, a, False, one, b).numpy(), expected, 2e-6, "head's gradient", scale + 1)

    drawn_log_p, _, drawn = launch.head(x, nodes, None, torch.tensor([7]))
    assert_close(drawn_log_p.numpy(), np.take_along_axis(log_p, drawn.numpy()[:, None], 1)[:, 0], 2e-6, "drawn")


@pytest.mark.parametrize(
    ("weighted", "reduction", "shape", "programs"),
    thinned(
        product(
            [False, True],
            ["none", "sum", "mean"],
            [(7, 5), (70, 3), (3, 4200)],  # many rows a program, and many programs a row
            ["one", "one in turns", "many"],
        ),
        every=36,
    ),
)
def test_losses(
    weighted: bool, reduction: str, shape: tuple[int, int], programs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, classes = shape
    if programs != "one":
        monkeypatch.setattr(
            blocks, "loss_shape", lambda classes, rows: (2, 4, -(-rows // 2) if programs == "many" else 1)
        )
    pi = Parameterization(classes, "natural")
    nodes = nodes_of(pi)
    scores, rng = numbers(rows, classes - 1), np.random.default_rng(1)
    target = rng.integers(classes, size=rows)
    weights = np.abs(numbers(classes, seed=3)) if weighted else np.ones(classes, np.float32)
    ids, counts = torch.from_numpy(target.copy()), np.ones(rows)
    ids[1::3], counts[1::3] = -100, 0
    share = counts * weights[target]
    exact = scores.astype(np.float64)
    loss = -np.take_along_axis(reference.log_catnat(exact, pi), target[:, None], 1)[:, 0] * share
    expected = {"none": loss, "sum": loss.sum(), "mean": loss.sum() / share.sum()}[reduction]
    x, weight = torch.from_numpy(scores), torch.from_numpy(weights) if weighted else None
    found, kept = launch.loss(x, nodes, ids, -100, weight, reduction)
    assert_close(found.numpy(), np.asarray(expected), 2e-6, "loss")
    upstream = np.float32(0.7) if reduction != "none" else numbers(rows, seed=4)
    shares = upstream * share / (share.sum() if reduction == "mean" else 1)
    expected, scale = expected_gradient(exact, -np.eye(classes)[target] * shares[:, None], pi)
    share = None if reduction == "none" else kept
    room = torch.full((4, rows, classes - 1), torch.nan)  # what the allocator hands out next
    del room
    gradient = launch.pull_path(x, nodes, ids, torch.from_numpy(np.asarray(upstream)), True, -100, weight, share)
    assert_close(gradient.numpy(), expected, 2e-6, "gradient", scale)


def test_a_loss_over_nothing() -> None:
    nodes = nodes_of(Parameterization(4, "natural"))
    for x, target in (
        (torch.zeros(2, 3), torch.full((2,), -1)),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)),
    ):
        found, share = launch.loss(x, nodes, target, -1, None, "mean")
        assert found.isnan()
        assert (launch.pull_path(x, nodes, target, torch.ones(()), True, -1, None, share) == 0).all()
        assert launch.loss(x, nodes, target, -1, None, "sum")[0] == 0


@pytest.mark.parametrize("name", thinned(["sigmoid", "tail 0.05", "floor"], 2))
def test_draws_follow_their_probabilities(name: str) -> None:
    pi = Parameterization(6, FAMILY[name])
    nodes = nodes_of(pi)
    scores = numbers(2, 5)
    n = 600
    drawn = launch.sample(torch.from_numpy(scores), nodes, torch.tensor([11]), n).numpy()
    for row in range(2):
        p = np.exp(reference.log_catnat(scores[row].astype(np.float64), pi))
        counts = np.bincount(drawn[:, row], minlength=6)
        assert (np.abs(counts - n * p) < 5 * np.sqrt(n * p * (1 - p)) + 1).all()
    few, again, other = (
        launch.sample(torch.from_numpy(scores), nodes, torch.tensor([seed]), 50).numpy() for seed in (11, 11, 12)
    )
    assert (few == again).all() and not (few == other).all()
    assert not (drawn[:, 0] == drawn[:, 1]).all()


def test_rows_of_any_strides() -> None:
    pi = Parameterization(5, "natural")
    nodes = nodes_of(pi)
    wide = torch.from_numpy(numbers(6, 12))
    for view, is_copied in (
        (wide[:, 3:7], False),
        (wide[::2, :4], False),
        (wide.view(2, 3, 12)[:, :, :4], False),
        (wide.view(2, 3, 12).transpose(0, 1)[:, :, :4], True),
        (wide[:1, :4].expand(4, -1), False),
        (torch.from_numpy(numbers(4, 6)).t(), True),
        (wide[0, :4], False),
    ):
        assert (launch.rows_of(view, nodes)[0].data_ptr() != view.data_ptr()) == is_copied
        expected = launch.walk(view.contiguous(), nodes, False)
        assert torch.equal(launch.walk(view, nodes, False), expected)
        upstream = torch.ones_like(expected)
        ours, theirs = (launch.pull(x, nodes, upstream, False) for x in (view, view.contiguous()))
        assert torch.equal(ours, theirs)
        index = torch.zeros((*view.shape[:-1], 1), dtype=torch.int64)
        assert torch.equal(launch.log_path(view, nodes, index), launch.log_path(view.contiguous(), nodes, index))
        ones = torch.ones(index.shape)
        ours, theirs = (launch.pull_path(x, nodes, index, ones) for x in (view, view.contiguous()))
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("classes", thinned([2, 18, 21, 33], 2, every=4))
def test_all_of_the_result_is_written_and_nothing_around_it(classes: int) -> None:
    nodes = nodes_of(Parameterization(classes, "sigmoid"))
    x, upstream = (torch.from_numpy(numbers(ROWS, n)) for n in (classes - 1, classes))
    _, _, stride, call = launch.rows_of(x, nodes)
    walk = launch._walk_launcher(call, False)
    pull = launch._pull_launcher(call, False, classes)
    span, height = blocks.path_span(classes)
    path = launch._path_launcher(call, "pull_path", height, ONE=True, LOSS=False, SPAN=span)
    index, ones = torch.zeros(ROWS, dtype=torch.int64), torch.ones(ROWS)
    for width, kernel, programs, before, after, integers in (
        (classes, walk, walk.programs(ROWS), (x,), (), ()),
        (classes - 1, pull, pull.programs(ROWS), (x, upstream, None, None), (None,), ()),
        (classes - 1, path, 1, (x, index, None, ones, None), (), (1, 0)),
    ):
        integers = (ROWS, *integers, stride)
        room = torch.full((ROWS * width + 200,), torch.nan)
        inside = room[100:-100].view(ROWS, width)
        kernel(programs, (*before, inside, *after, nodes.centers), integers)
        assert torch.isfinite(room[100:-100]).all()
        assert room[:100].isnan().all() and room[-100:].isnan().all()


def test_spans_never_touch_more_rows_than_a_program_has() -> None:
    for classes in (*range(2, 5000), 8192, 50257, 131072):
        span, height = blocks.path_span(classes)
        assert 0 < span <= blocks.SPAN and span % 16 == 0 and span <= (height - 1) * (classes - 1)


def test_empty_batches() -> None:
    nodes = nodes_of(Parameterization(18, "sigmoid"))
    x = torch.zeros(0, 17)
    assert launch.walk(x, nodes, False).shape == (0, 18)
    assert launch.pull(x, nodes, torch.zeros(0, 18), False).shape == (0, 17)
    assert launch.sample(x, nodes, torch.tensor([1]), 3).shape == (3, 0)
    assert launch.log_path(x, nodes, torch.zeros(0, 1, dtype=torch.int64)).shape == (0, 1)
    assert launch.head(x, nodes, None, torch.tensor([1]))[1].shape == (0,)
