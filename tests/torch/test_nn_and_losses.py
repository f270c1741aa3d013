"""Modules are the functions, and the loss is torch's own fed with log-probabilities."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import catnat
import catnat.torch as ct
from tests.core.trees import make_tree

K = 7
PARAMETERIZATIONS = {
    "natural": catnat.Parameterization(K),
    "sigmoid": catnat.Parameterization(K, "sigmoid"),
    "nested": catnat.Parameterization(K, "natural", make_tree("nested", K), center=0.1),
    "chain": catnat.Parameterization(K, catnat.Natural(tail=0.001), make_tree("chain", K)),
}
EACH = pytest.mark.parametrize("pi", PARAMETERIZATIONS.values(), ids=PARAMETERIZATIONS)
REDUCTIONS = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
WEIGHT = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0, 3.0, 0.1], dtype=torch.float64)
WEIGHTED = pytest.mark.parametrize("weight", [None, WEIGHT], ids=["even", "weighted"])
SMOOTHED = pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
IGNORED = -100


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw_scores(*shape, seed=0):
    return (1.5 * torch.randn(shape, dtype=torch.float64, generator=seeded(seed))).requires_grad_()


def class_targets(*shape, seed=1):
    return torch.randint(K, shape, generator=seeded(seed))


def soft_targets(*shape, seed=1):
    return torch.rand(*shape, K, dtype=torch.float64, generator=seeded(seed)).softmax(-1)


def assert_same_loss(ours, torchs, *inputs):
    """Same value, and same gradient under the same weights (a loss of one number has the weight 1)."""
    assert_close(ours, torchs)
    weights = torch.linspace(1, 2, ours.numel(), dtype=ours.dtype).reshape(ours.shape)
    assert_close(torch.autograd.grad(ours, inputs, weights), torch.autograd.grad(torchs, inputs, weights))


# -- against torch's loss ----------------------------------------------------------------------------------------


@EACH
@REDUCTIONS
@WEIGHTED
@SMOOTHED
@pytest.mark.parametrize("ignore_index", [IGNORED, 2])
def test_class_targets(pi, reduction, weight, smoothing, ignore_index):
    scores, target = draw_scores(40, K - 1), class_targets(40)
    target[::5] = ignore_index
    settings = {
        "weight": weight,
        "reduction": reduction,
        "label_smoothing": smoothing,
        "ignore_index": ignore_index,
    }
    torchs = F.cross_entropy(ct.log_catnat(scores, pi), target, **settings)
    assert_same_loss(ct.cross_entropy(scores, target, pi, **settings), torchs, scores)
    torchs = F.cross_entropy(ct.log_catnat(scores, pi), target, **settings)
    assert_same_loss(ct.CatnatCrossEntropyLoss(pi, **settings)(scores, target), torchs, scores)


@EACH
@REDUCTIONS
@WEIGHTED
@SMOOTHED
def test_probability_targets(pi, reduction, weight, smoothing):
    scores, target = draw_scores(40, K - 1), soft_targets(40).requires_grad_()
    settings = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
    torchs = F.cross_entropy(ct.log_catnat(scores, pi), target, **settings)
    assert_same_loss(ct.cross_entropy(scores, target, pi, **settings), torchs, scores, target)
    torchs = F.cross_entropy(ct.log_catnat(scores, pi), target, **settings)
    assert_same_loss(ct.CatnatCrossEntropyLoss(pi, **settings)(scores, target), torchs, scores, target)


@EACH
@REDUCTIONS
@WEIGHTED
@SMOOTHED
@pytest.mark.parametrize("soft", [False, True])
def test_images_have_their_classes_at_dim_1(pi, reduction, weight, smoothing, soft):
    scores = draw_scores(2, K - 1, 3, 4)
    target = soft_targets(2, 3, 4).movedim(-1, 1) if soft else class_targets(2, 3, 4)
    if not soft:
        target[0, 1] = IGNORED
    settings = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
    torchs = F.cross_entropy(ct.log_catnat(scores, pi, dim=1), target, **settings)
    assert_same_loss(ct.cross_entropy(scores, target, pi, dim=1, **settings), torchs, scores)


@EACH
def test_one_row_without_a_batch(pi):
    scores = draw_scores(K - 1)
    torchs = F.cross_entropy(ct.log_catnat(scores, pi), torch.tensor(3))
    assert_same_loss(ct.cross_entropy(scores, torch.tensor(3), pi), torchs, scores)


def test_any_batch_shape_when_the_classes_are_last():
    scores, target = draw_scores(2, 3, 4, K - 1), class_targets(2, 3, 4)
    flat = ct.cross_entropy(scores.flatten(0, 2), target.flatten(), K, reduction="none")
    assert_close(ct.cross_entropy(scores, target, K, reduction="none"), flat.reshape(2, 3, 4))


def test_a_batch_where_all_is_ignored_is_torchs_zero_by_zero():
    scores, target = draw_scores(3, K - 1), torch.full((3,), IGNORED)
    for reduction, empty in [("mean", torch.nan), ("sum", 0.0)]:
        ours = ct.cross_entropy(scores, target, K, reduction=reduction)
        torchs = F.cross_entropy(ct.log_catnat(scores, K), target, reduction=reduction)
        assert_close(ours, torchs, equal_nan=True)
        assert_close(ours.item(), empty, equal_nan=True)


def test_an_ignored_row_may_hold_anything():
    scores = draw_scores(3, K - 1).detach()
    scores[1] = torch.nan
    scores.requires_grad_()
    loss = ct.cross_entropy(scores, torch.tensor([2, IGNORED, 4]), K)
    assert_close(loss, ct.cross_entropy(scores[::2], torch.tensor([2, 4]), K))


def test_a_target_without_probability_costs_nothing_where_the_class_has_none():
    pi = catnat.Parameterization(4, catnat.Natural(tail=0.0, floor=0.0))
    scores = torch.tensor([[4.0, 0.2, 0.3]], requires_grad=True)  # the left half is impossible
    loss = ct.cross_entropy(scores, torch.tensor([[0.0, 0.0, 0.5, 0.5]]), pi)
    loss.backward()
    assert loss.isfinite() and scores.grad.isfinite().all()
    assert ct.cross_entropy(scores, torch.tensor([0]), pi) == torch.inf


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@REDUCTIONS
def test_the_loss_has_the_dtype_of_the_scores_and_is_summed_in_a_wider_one(dtype, reduction):
    scores, target = draw_scores(3000, K - 1).detach().to(dtype), class_targets(3000)
    ours = ct.cross_entropy(scores, target, K, reduction=reduction)
    exact = ct.cross_entropy(scores.double(), target, K, reduction=reduction)
    assert ours.dtype == dtype
    assert_close(ours.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("bad", [{"reduction": "average"}, {"label_smoothing": 1.5}, {"weight": torch.ones(3)}])
def test_unusable_settings_are_errors(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        ct.cross_entropy(torch.zeros(2, K - 1), torch.tensor([0, 1]), K, **bad)


# -- modules -----------------------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("dim", [-1, 1])
def test_modules_are_the_functions(pi, dim):
    scores = draw_scores(2, K - 1, K - 1)
    mask = torch.tensor([True, True, False, True, True, False, True])
    assert_close(ct.Catnat(pi, dim=dim)(scores), ct.catnat(scores, pi, dim=dim))
    assert_close(ct.LogCatnat(pi, dim=dim)(scores), ct.log_catnat(scores, pi, dim=dim))
    assert_close(ct.Catnat(pi, dim=dim)(scores, mask), ct.catnat(scores, pi, mask=mask, dim=dim))
    assert_close(ct.LogCatnat(pi, dim=dim)(scores, mask), ct.log_catnat(scores, pi, mask=mask, dim=dim))


def through_file(value, **options):
    saved = io.BytesIO()
    torch.save(value, saved)
    saved.seek(0)
    return torch.load(saved, **options)


@EACH
@pytest.mark.parametrize("module", [ct.Catnat, ct.LogCatnat, ct.CatnatCrossEntropyLoss])
@pytest.mark.parametrize(
    "travel",
    [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: through_file(m, weights_only=False)],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_modules_survive_copies_and_files(pi, module, travel):
    arguments = [draw_scores(3, K - 1)] + ([class_targets(3)] if module is ct.CatnatCrossEntropyLoss else [])
    original = module(pi)
    before = original(*arguments)  # with its plan made
    arrived = travel(original)
    assert arrived.parameterization == pi and type(arrived) is module
    assert_close(arrived(*arguments), before)


def test_modules_say_what_they_are():
    network = torch.nn.Sequential(torch.nn.Linear(4, 9), ct.LogCatnat(catnat.Parameterization(10, "sigmoid"), dim=1))
    assert all(word in repr(network) for word in ("Sigmoid", "dim=1", "10"))


def test_the_loss_keeps_its_weight_with_the_model():
    loss = ct.CatnatCrossEntropyLoss(K, weight=WEIGHT, dim=1, ignore_index=3, reduction="sum")
    restored = ct.CatnatCrossEntropyLoss(K, weight=torch.ones(K).double(), dim=1, ignore_index=3, reduction="sum")
    restored.load_state_dict(loss.state_dict())
    scores, target = draw_scores(2, K - 1, 3), class_targets(2, 3)
    assert_close(restored(scores, target), loss(scores, target))
    assert_close(
        loss(scores, target), ct.cross_entropy(scores, target, K, weight=WEIGHT, dim=1, ignore_index=3, reduction="sum")
    )


@pytest.mark.parametrize("activation", ["natural", "sigmoid", catnat.Natural(tail=0.001)])
def test_a_small_classifier_learns(activation):
    pi = catnat.Parameterization(K, activation)
    torch.manual_seed(0)
    centers = 3 * torch.randn(K, 4)
    labels = torch.arange(K).repeat(30)
    inputs = centers[labels] + 0.3 * torch.randn(len(labels), 4)
    network = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, K - 1))
    loss_of, optimizer = ct.CatnatCrossEntropyLoss(pi), torch.optim.Adam(network.parameters(), 0.01)
    losses = []
    for _ in range(200):
        loss = loss_of(network(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1 and losses[-1] < 0.1
    assert (ct.mode(network(inputs), pi) == labels).float().mean() > 0.95
