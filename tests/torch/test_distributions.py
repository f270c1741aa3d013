"""The distributions against torch's own on the same probabilities: values, gradients, shapes and errors."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import distributions as D
from torch.testing import assert_close

import catnat
import catnat.torch as ct
from tests.core.trees import make_tree

K = 6
PARAMETERIZATIONS = {
    "natural": catnat.Parameterization(K, "natural"),
    "sigmoid": catnat.Parameterization(K, "sigmoid", make_tree("nested", K)),
    "clip": catnat.Parameterization(K, catnat.Natural(tail=0.0), make_tree("chain", K)),
    "shifted": catnat.Parameterization(K, catnat.Natural(amplitude=5.0, tail=0.0), make_tree("huffman", K), center=0.3),
}
EACH = pytest.mark.parametrize("pi", PARAMETERIZATIONS.values(), ids=PARAMETERIZATIONS)
PAIRS = list(itertools.product(PARAMETERIZATIONS, repeat=2))
BATCHES, SAMPLES = [(), (5,), (2, 3)], [(), (3,), (2, 4)]
ALLOWED = torch.tensor([True, False, True, True, False, True])
MASKED = pytest.mark.parametrize("masking", [{}, {"mask": ALLOWED}], ids=["free", "masked"])


def draw_scores(*batch, seed=0, width=K - 1):
    generator = torch.Generator().manual_seed(seed)
    return (1.3 * torch.randn(*batch, width, dtype=torch.float64, generator=generator)).requires_grad_()


def plain(scores, pi, **masking):
    return D.Categorical(logits=ct.log_catnat(scores, pi, **masking))


def assert_same_gradient(ours, flat, *inputs):
    weights = torch.linspace(1, 2, ours.numel(), dtype=ours.dtype).reshape(ours.shape)
    gradients = [torch.autograd.grad(value, inputs, weights, retain_graph=True) for value in (ours, flat)]
    assert_close(ours, flat)
    assert_close(*gradients)


# -- one distribution --------------------------------------------------------------------------------------------


@EACH
@MASKED
@pytest.mark.parametrize("batch", BATCHES)
def test_it_is_the_categorical_of_its_probabilities(pi, masking, batch):
    scores = draw_scores(*batch)
    ours, torchs = ct.CatnatCategorical(scores, pi, **masking), plain(scores, pi, **masking)
    values = torchs.sample((7,))
    assert_close(ours.log_prob(values), torchs.log_prob(values))  # by paths
    assert_close(ours.logits, torchs.logits)
    assert_close(ours.log_prob(values), torchs.log_prob(values))  # from the row that is there by now
    for name in ("probs", "mode", "mean", "variance", "stddev"):
        assert_close(getattr(ours, name), getattr(torchs, name), equal_nan=True)
    assert_close(ours.deterministic_sample, ours.mode)
    for method in ("entropy", "perplexity"):
        assert_close(getattr(ours, method)(), getattr(torchs, method)())
    for name in ("batch_shape", "event_shape", "param_shape", "has_rsample", "has_enumerate_support"):
        assert getattr(ours, name) == getattr(torchs, name)
    assert (ours.support.lower_bound, ours.support.upper_bound) == (0, K - 1)
    for expand in (True, False):
        assert_close(ours.enumerate_support(expand), torchs.enumerate_support(expand))


@EACH
@MASKED
def test_gradients_are_those_through_the_flat_log_probabilities(pi, masking):
    scores = draw_scores(4)
    log_p = ct.log_catnat(scores, pi, **masking)
    values = plain(scores, pi, **masking).sample((3,))
    flat = torch.gather(log_p.expand(3, 4, K), -1, values.unsqueeze(-1)).squeeze(-1)
    assert_same_gradient(ct.CatnatCategorical(scores, pi, **masking).log_prob(values), flat, scores)
    possible = log_p[:, ALLOWED] if masking else log_p
    flat = -(possible.exp() * possible).sum(-1)
    assert_same_gradient(ct.CatnatCategorical(scores, pi, **masking).entropy(), flat, scores)


@pytest.mark.parametrize("sample_shape", SAMPLES)
@pytest.mark.parametrize("batch", BATCHES)
@MASKED
def test_shapes_of_samples_and_of_their_log_probs(sample_shape, batch, masking):
    ours = ct.CatnatCategorical(draw_scores(*batch), K, **masking)
    drawn = ours.sample(sample_shape)
    assert drawn.dtype == torch.int64 and not drawn.requires_grad
    assert drawn.shape == ours.log_prob(drawn).shape == sample_shape + batch
    assert ct.OneHotCatnat(draw_scores(*batch), K, **masking).sample(sample_shape).shape == (*sample_shape, *batch, K)
    assert ct.RelaxedOneHotCatnat(0.5, draw_scores(*batch), K).rsample(sample_shape).shape == (*sample_shape, *batch, K)
    multi = ct.MultiCatnat(draw_scores(*batch), [2, 3, 3])
    assert multi.sample(sample_shape).shape == (*sample_shape, *batch, 3)
    assert multi.log_prob(multi.sample(sample_shape)).shape == sample_shape + batch


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5), (0,), (3, 0), (2, 3, 0)], ids=str)
@MASKED
def test_empty_batches_and_single_classes_are_no_special_case(shape, masking):
    masking = masking and {**masking, "mask": torch.ones(shape[-1] + 1, dtype=torch.bool)}
    scores = torch.zeros(shape)
    # torch's own validation of a real vector fails on an empty batch
    ours = ct.CatnatCategorical(scores, shape[-1] + 1, **masking, validate_args=False)
    torchs = D.Categorical(logits=ct.log_catnat(scores, shape[-1] + 1, **masking), validate_args=False)
    for values in (ours.sample(), ours.sample((2,))):
        assert_close(ours.log_prob(values), torchs.log_prob(values))
    assert_close(ours.entropy(), torchs.entropy())
    assert_close(D.kl_divergence(ours, ours), torch.zeros(shape[:-1]))


@MASKED
@pytest.mark.parametrize("read_first", [False, True], ids=["fresh", "with its logits read"])
def test_expand_repeats_the_distribution(masking, read_first):
    scores = draw_scores(3)
    ours = ct.CatnatCategorical(scores, PARAMETERIZATIONS["sigmoid"], **masking)
    if read_first:
        assert ours.logits.shape == ours.probs.shape == (3, K)
    wide, torchs = ours.expand((2, 3)), plain(scores, PARAMETERIZATIONS["sigmoid"], **masking).expand((2, 3))
    values = wide.sample((4,))
    assert isinstance(wide, ct.CatnatCategorical) and values.shape == (4, 2, 3)
    assert_close(wide.log_prob(values), torchs.log_prob(values))
    assert_close(wide.entropy(), torchs.entropy())
    assert_close(wide.probs, torchs.probs)
    assert wide.batch_shape == (2, 3) and wide.param_shape == (2, 3, K)


def test_a_mask_may_have_a_larger_batch_than_the_scores():
    mask = torch.tensor([[True, True, False, True, True, True], [False, True, True, True, True, True]])
    ours = ct.CatnatCategorical(draw_scores(), K, mask=mask)
    assert ours.batch_shape == (2,) and ours.sample((3,)).shape == (3, 2)
    assert_close(ours.probs, plain(draw_scores(), K, mask=mask).probs)
    assert (ours.probs > 0).equal(mask)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_answers_have_the_dtype_of_the_scores(dtype):
    scores = draw_scores(5).detach().to(dtype)
    ours, exact = ct.CatnatCategorical(scores, K), ct.CatnatCategorical(scores.double(), K)
    values, tolerance = torch.arange(5), {"rtol": 2 * torch.finfo(dtype).eps, "atol": 1e-6, "check_dtype": False}
    for mine, theirs in [(ours.log_prob(values), exact.log_prob(values)), (ours.entropy(), exact.entropy())]:
        assert mine.dtype == dtype
        assert_close(mine, theirs, **tolerance)
    assert ct.OneHotCatnatStraightThrough(scores, K).rsample().dtype == dtype


# -- KL ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left, right", PAIRS, ids=map("-".join, PAIRS))
@MASKED
def test_kl_is_that_of_the_class_probabilities(left, right, masking):
    p_scores, q_scores = draw_scores(4), draw_scores(4, seed=1)
    p = ct.CatnatCategorical(p_scores, PARAMETERIZATIONS[left], **masking)
    q = ct.CatnatCategorical(q_scores, PARAMETERIZATIONS[right], **masking)
    keep = ALLOWED if masking else torch.ones_like(ALLOWED)
    log_p = ct.log_catnat(p_scores, PARAMETERIZATIONS[left], **masking)[:, keep]
    log_q = ct.log_catnat(q_scores, PARAMETERIZATIONS[right], **masking)[:, keep]
    flat = (log_p.exp() * (log_p - log_q)).sum(-1)
    plain_p = plain(p_scores, PARAMETERIZATIONS[left], **masking)
    plain_q = plain(q_scores, PARAMETERIZATIONS[right], **masking)
    for pair in [(p, q), (p, plain_q), (plain_p, q)]:
        assert_same_gradient(D.kl_divergence(*pair), flat, p_scores, q_scores)
    one_hots = [ct.OneHotCatnat(s, PARAMETERIZATIONS[n], **masking) for s, n in [(p_scores, left), (q_scores, right)]]
    plain_q = D.OneHotCategorical(logits=plain_q.logits)
    for pair in [one_hots, (one_hots[0], plain_q)]:
        assert_same_gradient(D.kl_divergence(*pair), flat, p_scores, q_scores)


def test_kl_is_infinite_where_q_forbids_what_p_may_do_and_finite_the_other_way():
    free, bound = ct.CatnatCategorical(draw_scores(), K), ct.CatnatCategorical(draw_scores(), K, mask=ALLOWED)
    assert D.kl_divergence(free, bound) == torch.inf
    mass = free.probs[ALLOWED].sum()  # q is p given the mask, so KL(q, p) = -log P(mask)
    assert_close(D.kl_divergence(bound, free), -mass.log())


def test_kl_broadcasts_over_batches():
    one, many = ct.CatnatCategorical(draw_scores(), K), ct.CatnatCategorical(draw_scores(2, 3, seed=1), K)
    assert_close(D.kl_divergence(one, many), D.kl_divergence(one.expand((2, 3)), many))
    assert_close(D.kl_divergence(many, one), D.kl_divergence(many, one.expand((2, 3))))


def test_kl_between_different_numbers_of_classes_is_an_error():
    with pytest.raises(ValueError, match="6 and 4"):
        D.kl_divergence(ct.CatnatCategorical(torch.zeros(5), 6), ct.CatnatCategorical(torch.zeros(3), 4))


@pytest.mark.parametrize("kind", [ct.CatnatCategorical, ct.OneHotCatnat])
def test_values_and_gradients_stay_finite_where_a_probability_is_zero(kind):
    pi = catnat.Parameterization(4, catnat.Natural(tail=0.0, floor=0.0))
    p_scores, q_scores = (torch.tensor(s, requires_grad=True) for s in ([0.3, 4.0, 0.1], [0.2, 4.0, 0.3]))
    p, q = kind(p_scores, pi), kind(q_scores, pi)
    assert p.probs[0] == q.probs[0] == 0
    for value in (p.entropy(), D.kl_divergence(p, q)):
        gradients = torch.autograd.grad(value, (p_scores, q_scores), allow_unused=True)
        assert value.isfinite() and all(g is None or g.isfinite().all() for g in gradients)


# -- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ct.CatnatCategorical, ct.OneHotCatnat, lambda s, _: ct.MultiCatnat(s, [3, 4])])
def test_nan_scores_raise_under_validation(kind):
    with pytest.raises(ValueError, match="scores"):
        kind(torch.full((5,), torch.nan), K)


def test_validation_can_be_turned_off():
    ours = ct.CatnatCategorical(torch.tensor([[torch.nan, 0.0], [0.0, 0.0]]), 3, validate_args=False)
    assert ours.probs.isnan().any(-1).tolist() == [True, False]
    assert ct.CatnatCategorical(torch.zeros(2), 3, validate_args=False).log_prob(torch.tensor(1.0)).isfinite()


@pytest.mark.parametrize("value", [-1, K, 1.5])
def test_values_outside_the_support_raise_as_in_torch(value):
    scores, value = draw_scores(), torch.tensor(value)
    for categorical in (ct.CatnatCategorical(scores, K), plain(scores, K)):
        with pytest.raises(ValueError, match="within the support"):
            categorical.log_prob(value)
    with pytest.raises(ValueError, match="within the support"):
        ct.MultiCatnat(scores, [6]).log_prob(value.reshape(1))
    with pytest.raises(ValueError, match="within the support"):
        ct.OneHotCatnat(scores, K).log_prob(torch.ones(K))


@pytest.mark.parametrize("temperature", [0.0, -1.0, torch.nan])
def test_a_temperature_must_be_above_zero(temperature):
    with pytest.raises(ValueError, match="temperature"):
        ct.RelaxedOneHotCatnat(temperature, torch.zeros(3), 4)


# -- inside torch's own ------------------------------------------------------------------------------------------


def test_independent_sums_over_the_batch():
    scores = draw_scores(2, 3)
    ours = D.Independent(ct.CatnatCategorical(scores, K), 1)
    torchs = D.Independent(plain(scores, K), 1)
    values = ours.sample((4,))
    assert values.shape == (4, 2, 3)
    assert_close(ours.log_prob(values), torchs.log_prob(values))
    assert_close(ours.entropy(), torchs.entropy())
    other = D.Independent(ct.CatnatCategorical(draw_scores(2, 3, seed=1), K), 1)
    assert_close(D.kl_divergence(ours, other), D.kl_divergence(torchs, other))


@MASKED
def test_a_catnat_mixes_components(masking):
    torch.manual_seed(0)
    scores, components = draw_scores(3), D.Normal(torch.arange(K) * torch.ones(3, 1, dtype=torch.float64), 0.5)
    ours = D.MixtureSameFamily(ct.CatnatCategorical(scores, K, **masking), components)
    torchs = D.MixtureSameFamily(plain(scores, K, **masking), components)
    drawn = ours.sample((20000,))
    assert_close(ours.mean, torchs.mean)
    assert_close(ours.variance, torchs.variance)
    assert_close(ours.log_prob(drawn), torchs.log_prob(drawn))
    assert_close(ours.expand((2, 3)).mean, torchs.expand((2, 3)).mean)
    z = (drawn.mean(0) - ours.mean) / (ours.variance / 20000).sqrt()
    assert 2 * stats.norm.sf(z.abs().max().item()) > 1e-6


# -- one-hot -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ct.OneHotCatnat, ct.OneHotCatnatStraightThrough])
@MASKED
def test_one_hot_is_torchs_one_hot(kind, masking):
    scores = draw_scores(3)
    ours = kind(scores, K, **masking)
    torchs = D.OneHotCategorical(logits=ct.log_catnat(scores, K, **masking))
    for a, b in [(ours, torchs), (ours.expand((2, 3)), torchs.expand((2, 3)))]:
        assert type(a) is kind
        values = a.sample((4,))
        assert_close(a.log_prob(values), b.log_prob(values))
        for name in ("mean", "variance", "stddev", "mode", "probs", "logits"):
            assert_close(getattr(a, name), getattr(b, name))
        for name in ("batch_shape", "event_shape", "param_shape", "support"):
            assert getattr(a, name) == getattr(b, name)
        for expand in (True, False):
            assert_close(a.enumerate_support(expand), b.enumerate_support(expand))
    assert_close(ours.entropy(), torchs.entropy())
    assert_close(ours.scores, scores)


@MASKED
@pytest.mark.parametrize("sample_shape", SAMPLES)
def test_straight_through_is_one_hot_with_the_gradient_of_the_probabilities(masking, sample_shape):
    scores = draw_scores(3)
    drawn = ct.OneHotCatnatStraightThrough(scores, K, **masking).rsample(sample_shape)
    assert drawn.equal(F.one_hot(drawn.argmax(-1), K).double())
    probs = ct.catnat(scores, K, **masking).expand(drawn.shape)
    weights = torch.randn(drawn.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(torch.autograd.grad(drawn, scores, weights), torch.autograd.grad(probs, scores, weights))


# -- relaxed -----------------------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_relaxed_is_torchs_relaxed(pi, temperature):
    scores = draw_scores(3)
    ours = ct.RelaxedOneHotCatnat(temperature, scores, pi)
    torchs = D.RelaxedOneHotCategorical(
        torch.tensor(temperature, dtype=torch.float64), logits=ct.log_catnat(scores, pi)
    )
    for a, b in [(ours, torchs), (ours.expand((2, 3)), torchs.expand((2, 3)))]:
        torch.manual_seed(1)
        mine = a.rsample((4,))
        torch.manual_seed(1)
        theirs = b.rsample((4,))
        assert_same_gradient(mine, theirs, scores)
        value = theirs.detach()
        assert_same_gradient(a.log_prob(value), b.log_prob(value), scores)
        assert (a.batch_shape, a.event_shape, a.support.event_dim) == (b.batch_shape, b.event_shape, 1)
    assert isinstance(ours.expand((2, 3)), ct.RelaxedOneHotCatnat) and ours.expand((2, 3)).scores.shape == (2, 3, K - 1)
