"""What PyTorch's own tests ask of Categorical and OneHotCategorical, asked of ours: each law for both, in our words."""

import copy
import pickle

import pytest
import torch
from torch import distributions as D
from torch.testing import assert_close

import catnat.torch as ct

K = 5
KINDS = {"integer": (ct.CatnatCategorical, D.Categorical), "one-hot": (ct.OneHotCatnat, D.OneHotCategorical)}
BOTH = pytest.mark.parametrize("kind", KINDS)
BATCHES = pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 3)], ids=str)
SIGMAS = 5.0  # of a mean over draws


def draw_scores(*batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*batch, K - 1, dtype=torch.float64, generator=generator)


def both(kind, scores):
    ours, torchs = KINDS[kind]
    return ours(scores, K), torchs(logits=ct.log_catnat(scores, K))


@BOTH
@BATCHES
def test_shapes_are_torchs(kind, batch):
    ours, torchs = both(kind, draw_scores(*batch))
    for name in ("batch_shape", "event_shape", "param_shape", "has_rsample", "has_enumerate_support"):
        assert getattr(ours, name) == getattr(torchs, name), name
    for shape in ((), (1,), (4,), (3, 2)):
        drawn = ours.sample(shape)
        assert drawn.shape == torchs.sample(shape).shape and drawn.dtype == torchs.sample().dtype
        assert ours.log_prob(drawn).shape == torchs.log_prob(drawn).shape
        assert ours.support.check(drawn).all()
    assert ours.entropy().shape == torchs.entropy().shape
    assert (ours.mean.shape, ours.variance.shape) == (torchs.mean.shape, torchs.variance.shape)
    if batch not in ((), (1,)):
        with pytest.raises(ValueError):
            ours.log_prob(torch.zeros(7, 7, *ours.event_shape))


@BOTH
@BATCHES
def test_the_support_is_enumerated_and_its_probabilities_sum_to_one(kind, batch):
    ours, torchs = both(kind, draw_scores(*batch))
    for expand in (True, False):
        values = ours.enumerate_support(expand)
        assert_close(values, torchs.enumerate_support(expand))
        assert_close(ours.log_prob(values).logsumexp(0), torch.zeros(batch, dtype=torch.float64))


@BOTH
@BATCHES
def test_expand_as_torch_expands(kind, batch):
    ours, _ = both(kind, draw_scores(*batch))
    ours.logits  # noqa: B018 (what was computed before must be expanded as well)
    for wide in (ours.expand((4, *batch)), ours.expand((4, *batch)).expand((2, 4, *batch))):
        drawn = wide.sample((3,))
        assert type(wide) is type(ours) and drawn.shape == (3, *wide.batch_shape, *ours.event_shape)
        assert_close(wide.log_prob(drawn), ours.log_prob(drawn))
        assert_close(wide.entropy(), ours.entropy().expand(wide.batch_shape))
        assert_close(wide.enumerate_support(False).squeeze(), ours.enumerate_support(False).squeeze())
    if batch not in ((), (1,)):
        with pytest.raises(RuntimeError):
            ours.expand((7, *batch[:-1], batch[-1] + 1))


@BOTH
def test_gradients_by_differences(kind):
    scores = draw_scores(3).requires_grad_()
    ours, _ = KINDS[kind]
    values = ours(scores.detach(), K).enumerate_support()
    assert torch.autograd.gradcheck(lambda s: ours(s, K).log_prob(values), scores)
    assert torch.autograd.gradcheck(lambda s: ours(s, K).entropy(), scores)
    others = draw_scores(3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda s, t: D.kl_divergence(ours(s, K), ours(t, K)), (scores, others))
    assert torch.autograd.gradcheck(lambda s: ours(s, K).probs, scores)


def assert_mean(draws, expected):
    """Whether the mean of many draws may be what is expected of it."""
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - expected).abs() <= SIGMAS * error + 1e-12).all()


@BOTH
@BATCHES
def test_entropy_and_kl_by_monte_carlo(kind, batch):
    torch.manual_seed(0)
    p, plain_p = both(kind, draw_scores(*batch))
    q, plain_q = both(kind, draw_scores(*batch, seed=1))
    drawn = p.sample((20_000,))
    assert_mean(-p.log_prob(drawn), p.entropy())
    ratio = p.log_prob(drawn) - q.log_prob(drawn)
    for left, right in ((p, q), (p, plain_q), (plain_p, q)):
        assert_mean(ratio, D.kl_divergence(left, right))
    assert_close(D.kl_divergence(p, p), torch.zeros(batch, dtype=torch.float64))
    assert (D.kl_divergence(p, q) > 0).all()
    if kind == "one-hot":
        assert_mean(drawn.double(), p.mean)


@BOTH
def test_copies_and_pickles_are_equal(kind):
    ours, _ = both(kind, draw_scores(2))
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(other) is type(ours)
        assert_close(other.probs, ours.probs)
