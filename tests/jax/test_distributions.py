"""The distributions against PyTorch's on the same scores, and as pytrees through every transformation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from torch import distributions as D

import catnat
import catnat.jax as cj
import catnat.torch as ct
from catnat.jax._noise import gumbel
from tests.core.trees import make_tree
from tests.jax.beside_torch import assert_same, draw, of_torch
from tests.thinned import thinned

K = 6
LEAST_P = 1e-6
PARAMETERIZATIONS = {
    "natural": catnat.Parameterization(K, "natural"),
    "sigmoid": catnat.Parameterization(K, "sigmoid", make_tree("nested", K)),
    "ends": catnat.Parameterization(K, catnat.Natural(amplitude=5.0, tail=0.0), make_tree("chain", K), center=0.3),
}
SIGMOID = catnat.Parameterization(K, "sigmoid")
EACH = pytest.mark.parametrize("pi", PARAMETERIZATIONS.values(), ids=PARAMETERIZATIONS)
ALLOWED = np.array([True, False, True, True, False, True])
MASKINGS = [{}, {"mask": ALLOWED}]
MASKED = [  # `make test` has one of them a test, by turns
    pytest.mark.parametrize("masking", thinned(MASKINGS, turn), ids=["free", "masked"]) for turn in range(2)
]
KEY = jax.random.key(0)
POINTS = np.random.default_rng(0).dirichlet(np.ones(K), 4)


def in_torch(masking):
    return {name: of_torch(setting) for name, setting in masking.items()}


def possible(*shape, masking, seed=1):
    """Class ids that the mask allows."""
    ids = np.flatnonzero(ALLOWED) if masking else np.arange(K)
    return np.random.default_rng(seed).choice(ids, shape)


def fit(draws, probs):
    """p-value of the chi-square test of class ids against probabilities."""
    counts = np.bincount(np.asarray(draws).ravel(), minlength=len(probs))
    assert not counts[probs == 0].any()
    return stats.chisquare(counts[probs > 0], counts.sum() * probs[probs > 0] / probs.sum()).pvalue


# -- one distribution --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, masking",
    thinned(
        [*(("natural", m) for m in MASKINGS), ("sigmoid", MASKINGS[1]), ("ends", MASKINGS[1])],
        quick=[("ends", MASKINGS[1])],
    ),
)
def test_it_is_pytorchs(name, masking):
    pi = PARAMETERIZATIONS[name]
    scores, ids = draw(2, 3, K - 1), possible(4, 2, 3, masking=masking)

    def all_of(of, masking, scores, value):
        ours = of(scores, pi, **masking)
        return ours.log_prob(value).sum(0), ours.entropy(), ours.probs.sum(-1), (ours.probs * ours.probs).sum(-1)

    def mine(s):
        return jnp.stack(all_of(cj.CatnatCategorical, masking, s, jnp.asarray(ids)))

    def theirs(s):
        return torch.stack(all_of(ct.CatnatCategorical, in_torch(masking), s, torch.from_numpy(ids)))

    assert_same(mine, theirs, scores)
    ours, torchs = (
        cj.CatnatCategorical(scores, pi, **masking),
        ct.CatnatCategorical(torch.from_numpy(scores), pi, **in_torch(masking)),
    )
    assert_allclose(ours.logits, torchs.logits, rtol=1e-5, atol=1e-6)
    assert_array_equal(ours.mode, torchs.mode)
    assert (ours.batch_shape, ours.event_shape, ours.num_classes) == ((2, 3), (), K)


@MASKED[0]
def test_one_hot_is_pytorchs(masking):
    value = np.eye(K)[possible(4, 2, masking=masking)]
    assert_same(
        lambda s: cj.OneHotCatnat(s, K, **masking).log_prob(jnp.asarray(value)),
        lambda s: ct.OneHotCatnat(s, K, **in_torch(masking)).log_prob(torch.from_numpy(value)),
        draw(2, K - 1),
    )
    ours, plain = (kind(draw(2, K - 1), K, **masking) for kind in (cj.OneHotCatnat, cj.CatnatCategorical))
    assert_array_equal(ours.mode, np.eye(K)[plain.mode])
    assert_array_equal(ours.entropy(), plain.entropy())
    assert (ours.batch_shape, ours.event_shape, ours.num_classes) == ((2,), (K,), K)


@pytest.mark.parametrize("sample_shape, batch", thinned([((2, 4), (2, 3)), ((), ())]))
@MASKED[1]
def test_shapes_of_samples_and_of_their_log_probs(sample_shape, batch, masking):
    scores = jnp.zeros((*batch, K - 1))
    ours = cj.CatnatCategorical(scores, K, **masking)
    drawn, log_prob = ours.sample_and_log_prob(KEY, sample_shape)
    assert drawn.dtype == jnp.int32 and drawn.shape == log_prob.shape == (*sample_shape, *batch)
    assert_array_equal(drawn, ours.sample(KEY, sample_shape))
    assert_array_equal(log_prob, ours.log_prob(drawn))
    assert_array_equal(cj.OneHotCatnat(scores, K, **masking).sample(KEY, sample_shape), np.eye(K)[drawn])
    relaxed = cj.RelaxedOneHotCatnat(0.5, scores, K)
    assert relaxed.sample(KEY, sample_shape).shape == (*sample_shape, *batch, *relaxed.event_shape)


@MASKED[1]
def test_draws_follow_log_prob(masking):
    scores = jnp.asarray(draw(K - 1), jnp.float32)
    ours = cj.CatnatCategorical(scores, K, **masking)
    stated = np.exp(ours.log_prob(jnp.arange(K)), dtype=np.float64)
    assert fit(ours.sample(KEY, (50_000,)), stated) > LEAST_P
    assert fit(cj.OneHotCatnat(scores, K, **masking).sample(KEY, (50_000,)).argmax(-1), stated) > LEAST_P


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0,)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_empty_batches_and_single_classes_are_no_special_case(shape, masked):
    ours = cj.CatnatCategorical(jnp.zeros(shape), shape[-1] + 1, mask=np.ones(shape[-1] + 1, bool) if masked else None)
    drawn, log_prob = ours.sample_and_log_prob(KEY, (2,))
    assert drawn.shape == log_prob.shape == (2, *shape[:-1])
    assert_array_equal(ours.kl_divergence(ours), jnp.zeros(shape[:-1]))


@pytest.mark.slow
@MASKED[0]
def test_every_method_of_every_kind_takes_an_empty_batch(masking):
    scores = jnp.zeros((0, K - 1))
    for ours in (
        cj.CatnatCategorical(scores, K, **masking),
        cj.OneHotCatnat(scores, K, **masking),
        cj.OneHotCatnatStraightThrough(scores, K, **masking),
        cj.CatnatCategorical(probs=jnp.zeros((0, K)), **masking),
        cj.CatnatCategorical(logits=jnp.zeros((0, K)), **masking),
        cj.RelaxedOneHotCatnat(0.5, scores, K),
        cj.MultiCatnat(scores, [3, 4]),
    ):
        drawn, log_prob = ours.sample_and_log_prob(KEY, (2,))
        assert drawn.shape == (2, 0, *ours.event_shape) and log_prob.shape == (2, 0)
        if not isinstance(ours, cj.RelaxedOneHotCatnat):
            assert ours.mode.shape == (0, *ours.event_shape)
            assert ours.entropy().shape == ours.kl_divergence(ours).shape == (0,)
        assert ours.expand((5, 0)).batch_shape == (5, 0)


@pytest.mark.slow
@pytest.mark.parametrize("masking", thinned(MASKINGS, 1), ids=["free", "masked"])
def test_expand_repeats_the_distribution(masking):
    scores = jnp.asarray(draw(3, K - 1), jnp.float32)
    for ours in (
        cj.CatnatCategorical(scores, SIGMOID, **masking),
        cj.OneHotCatnatStraightThrough(scores, SIGMOID, **masking),
        cj.RelaxedOneHotCatnat(0.7, scores, SIGMOID),
    ):
        wide = ours.expand((2, 3))
        assert type(wide) is type(ours) and wide.batch_shape == (2, 3) and wide.event_shape == ours.event_shape
        drawn = wide.sample(KEY, (4,))
        assert drawn.shape == (4, 2, 3, *ours.event_shape)
        assert_allclose(wide.log_prob(drawn), ours.log_prob(drawn), rtol=1e-6)


def test_a_mask_may_have_a_larger_batch_than_the_scores():
    mask = ~np.eye(K, dtype=bool)[:2]
    ours = cj.CatnatCategorical(jnp.zeros(K - 1), K, mask=mask)
    assert ours.batch_shape == (2,) and ours.scores.shape == (2, K - 1) and ours.sample(KEY, (3,)).shape == (3, 2)
    assert_array_equal(ours.probs > 0, mask)


@pytest.mark.parametrize("dtype", thinned([jnp.float16, jnp.bfloat16]))
def test_answers_have_the_dtype_of_the_scores(dtype):
    scores = jnp.asarray(draw(5, K - 1)).astype(dtype)
    ours, exact = cj.CatnatCategorical(scores, K), ct.CatnatCategorical(torch.tensor(np.asarray(scores, np.float64)), K)
    other = cj.CatnatCategorical(scores[::-1], SIGMOID)
    for mine, theirs in [
        (ours.log_prob(jnp.arange(5)), exact.log_prob(torch.arange(5))),
        (ours.entropy(), exact.entropy()),
        (
            ours.kl_divergence(other),
            D.kl_divergence(exact, ct.CatnatCategorical(exact.scores.flip(0), SIGMOID)),
        ),
    ]:
        assert mine.dtype == dtype
        assert_allclose(mine.astype(jnp.float32), theirs, rtol=2 * float(jnp.finfo(dtype).eps), atol=1e-6)
    relaxed = cj.RelaxedOneHotCatnat(0.5, scores, K)
    drawn, log_prob = relaxed.sample_and_log_prob(KEY)
    assert drawn.dtype == log_prob.dtype == cj.OneHotCatnatStraightThrough(scores, K).rsample(KEY).dtype == dtype


# -- one of a batch, and one class ---------------------------------------------------------------------------------


@pytest.mark.parametrize("masking", thinned([None, *MASKINGS]), ids=["relaxed", "free", "masked"])
def test_an_index_is_one_of_the_batch(masking):
    scores = jnp.asarray(draw(2, 3, K - 1), jnp.float32)
    if masking is None:  # with a setting of every row
        ours = cj.RelaxedOneHotCatnat(jnp.arange(1.0, 7).reshape(2, 3), scores, K)
    else:
        ours = cj.OneHotCatnatStraightThrough(scores, K, **masking)
    value = ours.sample(KEY)
    log_prob = ours.log_prob(value)
    for index in (-1, (..., 1), (None, 0), (slice(None), [0, 2])):
        part = ours[index]
        assert type(part) is type(ours) and part.batch_shape == log_prob[index].shape
        events = (*index, ...) if isinstance(index, tuple) and ... not in index else index
        rows = np.arange(6).reshape(2, 3)[events]
        assert_array_equal(part.log_prob(value.reshape(6, *ours.event_shape)[rows]), log_prob[index])
    traced = jax.jit(lambda d, i: d[i, 1].scores)(ours, 1)
    assert_array_equal(traced, scores[1, 1])
    assert len(list(ours)) == 2
    for wrong in (2, (0, 3), (0, 0, 0)):
        with pytest.raises(IndexError):
            ours[wrong]


def test_a_class_may_be_a_plain_number():
    ours = cj.CatnatCategorical(jnp.asarray(draw(3, K - 1), jnp.float32), K)
    for k in (0, K - 1):
        assert_array_equal(ours.log_prob(k), ours.log_prob(jnp.array(k)))
    with pytest.raises(IndexError, match="got 6"):
        ours.log_prob(K)
    with pytest.raises(TypeError, match="integer array of class ids; got bool"):
        ours.log_prob(True)


# -- given by probabilities --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [cj.CatnatCategorical, cj.OneHotCatnat, cj.OneHotCatnatStraightThrough])
@EACH
def test_probabilities_or_logits_may_come_in_place_of_scores(kind, pi):
    p = np.random.default_rng(0).dirichlet(np.ones(K), 3).astype(np.float32)
    by_probs, by_logits = kind(probs=p * 7, parameterization=pi), kind(logits=np.log(p) + 3, parameterization=pi)
    for ours in (by_probs, by_logits):
        assert_allclose(ours.probs, p, rtol=1e-4, atol=1e-6)
        assert ours.scores.shape == (3, K - 1) and ours.parameterization == pi
    assert_array_equal(by_probs.scores, cj.scores_from_probs(p * 7, pi))
    again = kind(logits=by_probs.logits, parameterization=pi)
    assert_allclose(again.logits, by_probs.logits, rtol=1e-4, atol=1e-5)
    half = kind(logits=jnp.zeros(K, jnp.bfloat16))
    assert half.scores.dtype == jnp.bfloat16 and half.num_classes == K


def test_exactly_one_of_scores_logits_and_probs():
    x, p = jnp.zeros(3), jnp.ones(4) / 4
    for given, came in [
        ({}, "none"),
        ({"scores": x, "probs": p}, "scores and probs"),
        ({"logits": p, "probs": p}, "probs and"),
    ]:
        with pytest.raises(ValueError, match=f"exactly one of scores, probs and logits must be given; got {came}"):
            cj.CatnatCategorical(**given)
    with pytest.raises(TypeError, match="logits"):
        cj.CatnatCategorical(logits=[0.0, 1.0])


FAR = np.array([[0.0, -200.0, -300.0, -1.0, -3e4, 5.0], [700.0, 0.0, -np.inf, 701.0, -np.inf, 0.0]], np.float32)


@pytest.mark.parametrize("name", thinned(["natural", "sigmoid"]))
def test_logits_come_back_up_to_a_constant_however_far_apart(name):
    pi = PARAMETERIZATIONS[name]
    ours = cj.CatnatCategorical(logits=FAR, parameterization=pi)
    assert_allclose(ours.logits, jax.nn.log_softmax(FAR), rtol=1e-5, atol=1e-4)
    assert_allclose(
        cj.CatnatCategorical(logits=np.full(K, -1e9, np.float32), parameterization=pi).probs, 1 / K, rtol=1e-5
    )
    weights = jnp.asarray(draw(2, K), jnp.float32)
    near = jnp.asarray(draw(2, K, seed=1), jnp.float32)
    found = jax.grad(lambda v: (cj.CatnatCategorical(logits=v, parameterization=pi).logits * weights).sum())(near)
    assert_allclose(found, jax.grad(lambda v: (jax.nn.log_softmax(v) * weights).sum())(near), rtol=1e-4, atol=1e-5)


MASSLESS = {
    "probs": [[0.0, 0.0, 0.0], [1.0, np.inf, 0.0], [np.nan, 1.0, 1.0], [2.0, -1.0, 1.0]],
    "logits": [[-np.inf, -np.inf, -np.inf], [0.0, np.inf, 0.0], [np.nan, 0.0, 0.0]],
}


@pytest.mark.parametrize("name, row", [(name, row) for name, rows in MASSLESS.items() for row in rows], ids=str)
def test_what_is_no_distribution_is_refused_or_made_nan_where_it_cannot_be_seen(name, row):
    rows = jnp.array([[1.0, 2.0, 0.5], row])
    for kind in (cj.CatnatCategorical, cj.OneHotCatnat, lambda **given: cj.RelaxedOneHotCatnat(1.0, **given)):
        with pytest.raises(ValueError, match=f"{name} must .*row \\(1,\\)"):
            kind(**{name: rows})
    scores = jax.jit(lambda v: cj.CatnatCategorical(**{name: v}).scores)(rows)
    assert jnp.isfinite(scores[0]).all() and jnp.isnan(scores[1]).all()


@pytest.mark.parametrize("size", thinned([4, 2, 32]))
def test_uniform_scores_have_one_over_k_exactly(size):
    uniform = np.full((1, size), 1 / size, np.float32)
    assert_array_equal(cj.CatnatCategorical(jnp.zeros((1, size - 1)), size).probs, uniform)
    for ours in (cj.CatnatCategorical(probs=uniform), cj.CatnatCategorical(logits=jnp.zeros((1, size)))):
        assert_array_equal(ours.probs, uniform)


def test_probabilities_may_be_counts():
    counts = np.array([[3, 0, 1], [1, 1, 2]])
    for given in (counts, jnp.asarray(counts), counts.astype(np.uint8)):
        assert_allclose(cj.CatnatCategorical(probs=given).probs, counts / counts.sum(-1, keepdims=True), atol=1e-6)
    assert_allclose(cj.CatnatCategorical(logits=np.array([0, 1])).probs, jax.nn.softmax(jnp.arange(2.0)), rtol=1e-6)


def test_the_relaxed_takes_probabilities_too():
    p = np.random.default_rng(0).dirichlet(np.ones(K), 3).astype(np.float32)
    for given in ({"probs": p}, {"logits": np.log(p)}):
        ours = cj.RelaxedOneHotCatnat(0.5, **given)
        assert_allclose(ours.probs, p, rtol=1e-4, atol=1e-6)
        again = cj.RelaxedOneHotCatnat(0.5, ours.scores, K)
        assert_array_equal(again.log_prob(POINTS[:3]), ours.log_prob(POINTS[:3]))
    with pytest.raises(ValueError, match="exactly one of scores, probs and logits"):
        cj.RelaxedOneHotCatnat(0.5)


def test_a_masked_class_may_have_the_logit_minus_infinity():
    logits = jnp.array([0.0, -jnp.inf, 1.0, -jnp.inf])
    assert_allclose(cj.CatnatCategorical(logits=logits).probs, jax.nn.softmax(logits), atol=1e-6)


# -- KL ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left, right, masking",
    [
        ("sigmoid", "ends", MASKINGS[1]),
        *thinned([("natural", name, m) for name in ("sigmoid", "natural") for m in MASKINGS], quick=[]),
    ],
)
def test_kl_is_pytorchs(left, right, masking):
    given, (a, b) = in_torch(masking), (PARAMETERIZATIONS[left], PARAMETERIZATIONS[right])
    p_scores, q_scores = draw(4, K - 1), draw(4, K - 1, seed=1)
    assert_same(
        lambda p, q: cj.CatnatCategorical(p, a, **masking).kl_divergence(cj.CatnatCategorical(q, b, **masking)),
        lambda p, q: D.kl_divergence(ct.CatnatCategorical(p, a, **given), ct.CatnatCategorical(q, b, **given)),
        p_scores,
        q_scores,
    )
    ids, one_hots = (
        kind(p_scores, a, **masking).kl_divergence(kind(q_scores, b, **masking))
        for kind in (cj.CatnatCategorical, cj.OneHotCatnat)
    )
    assert_array_equal(ids, one_hots)


def test_kl_is_infinite_where_q_forbids_what_p_may_do_and_finite_the_other_way():
    scores = jnp.asarray(draw(K - 1), jnp.float32)
    free, bound = cj.CatnatCategorical(scores, K), cj.CatnatCategorical(scores, K, mask=ALLOWED)
    assert free.kl_divergence(bound) == jnp.inf
    # q is p given the mask, so KL(q, p) = -log P(mask)
    assert_allclose(bound.kl_divergence(free), -jnp.log(free.probs[ALLOWED].sum()), rtol=1e-5)


def test_kl_broadcasts_over_batches():
    one, many = cj.CatnatCategorical(draw(K - 1), K), cj.CatnatCategorical(draw(2, 3, K - 1, seed=1), K)
    assert_allclose(one.kl_divergence(many), one.expand((2, 3)).kl_divergence(many), rtol=1e-6)
    assert_allclose(many.kl_divergence(one), many.kl_divergence(one.expand((2, 3))), rtol=1e-6)


def test_kl_refuses_what_has_no_kl():
    six = cj.CatnatCategorical(jnp.zeros(5), 6)
    for pi in (4, catnat.Parameterization(4, "sigmoid")):
        four = cj.CatnatCategorical(jnp.zeros(3), pi)
        with pytest.raises(ValueError, match="6 and 4"):
            six.kl_divergence(four)
    with pytest.raises(TypeError, match="RelaxedOneHotCatnat"):
        six.kl_divergence(cj.RelaxedOneHotCatnat(1.0, jnp.zeros(5), 6))


def test_values_and_gradients_stay_finite_where_a_probability_is_zero():
    pi = catnat.Parameterization(4, catnat.Natural(tail=0.0, floor=0.0))
    p, q = (cj.CatnatCategorical(jnp.array(s), pi) for s in ([0.3, 4.0, 0.1], [0.2, 4.0, 0.3]))
    assert p.probs[0] == q.probs[0] == 0
    for function in (lambda p, q: p.entropy(), lambda p, q: p.kl_divergence(q)):
        value, gradients = jax.value_and_grad(function, (0, 1))(p, q)
        assert jnp.isfinite(value) and all(jnp.isfinite(g).all() for g in jax.tree.leaves(gradients))


# -- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [cj.CatnatCategorical, cj.OneHotCatnat, cj.OneHotCatnatStraightThrough])
def test_wrong_arguments_are_named(kind):
    with pytest.raises(ValueError, match="scores"):
        kind(jnp.zeros(3), catnat.Parameterization(6))
    with pytest.raises(TypeError, match="scores"):
        kind([0.0, 0.0], 3)
    with pytest.raises(TypeError, match="mask_mode"):
        kind(jnp.zeros(3), 4, mask_mode="prune")
    with pytest.raises(ValueError, match="mask"):
        kind(jnp.zeros(3), 4, mask=np.ones(3, bool))
    with pytest.raises(ValueError, match="at least one class"):
        kind(jnp.zeros(3), 4, mask=np.zeros(4, bool))


def test_values_of_the_wrong_kind_are_refused():
    with pytest.raises(IndexError, match="index"):
        cj.CatnatCategorical(jnp.zeros(3), 4).log_prob(jnp.array(4))
    for ours in (cj.OneHotCatnat(jnp.zeros(3), 4), cj.RelaxedOneHotCatnat(1.0, jnp.zeros(3), 4)):
        with pytest.raises(ValueError, match="value"):
            ours.log_prob(jnp.ones(3))


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, np.inf, np.array([1.0, 0.0]), jnp.float32(-1.0)])
def test_a_temperature_must_be_above_zero(temperature):
    with pytest.raises(ValueError, match="temperature"):
        cj.RelaxedOneHotCatnat(temperature, jnp.zeros((2, 3)), 4)


# -- straight through --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masking", thinned(MASKINGS, 1), ids=["free", "masked"])
def test_straight_through_is_one_hot_with_the_gradient_of_the_probabilities(masking):
    scores, weights = jnp.asarray(draw(3, K - 1), jnp.float32), jnp.asarray(draw(2, 3, K, seed=2), jnp.float32)

    def cost(s):
        drawn = cj.OneHotCatnatStraightThrough(s, K, **masking).rsample(KEY, (2,))
        return (drawn * weights).sum(), drawn

    (_, drawn), gradient = jax.jit(jax.value_and_grad(cost, has_aux=True))(scores)
    assert_array_equal(drawn, np.eye(K)[drawn.argmax(-1)])
    expected = jax.jit(jax.grad(lambda s: (cj.catnat(s, K, **masking) * weights).sum()))(scores)
    assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


# -- relaxed -----------------------------------------------------------------------------------------------------


@EACH
def test_the_relaxed_density_is_torchs(pi):
    points, temperature = np.random.default_rng(0).dirichlet(np.ones(K), (4, 3)), np.array(0.6)

    def torchs(t, s, v):
        return D.RelaxedOneHotCategorical(t, logits=ct.log_catnat(s, pi), validate_args=False).log_prob(v)

    assert_same(
        lambda t, s, v: cj.RelaxedOneHotCatnat(t, s, pi).log_prob(v),
        torchs,
        temperature,
        draw(3, K - 1),
        points,
        rtol=1e-8,
    )


def test_relaxed_samples_follow_torchs():
    scores = draw(K - 1)
    torch.manual_seed(0)
    theirs = ct.RelaxedOneHotCatnat(0.7, torch.from_numpy(scores), K).sample((20_000,))
    mine = cj.RelaxedOneHotCatnat(0.7, jnp.asarray(scores, jnp.float32), K).rsample(KEY, (20_000,))
    assert_allclose(mine.sum(-1), 1, rtol=1e-5)
    for k in range(K):
        assert stats.ks_2samp(np.asarray(mine[:, k]), theirs[:, k].numpy()).pvalue > LEAST_P


def test_every_row_may_have_its_own_temperature():
    scores = jnp.asarray(draw(2, K - 1), jnp.float32)
    both = cj.RelaxedOneHotCatnat(jnp.array([0.3, 2.0]), scores, K)
    points = POINTS[:2]
    for row, temperature in enumerate([0.3, 2.0]):
        alone = cj.RelaxedOneHotCatnat(temperature, scores[row], K)
        assert_allclose(both.log_prob(points)[row], alone.log_prob(points[row]), rtol=1e-5)
    for wrong in (jnp.ones((4, 1)), jnp.ones((2, 1)), jnp.ones(3)):  # never a batch that nobody asked for
        with pytest.raises(ValueError, match=r"temperature must be one number or one a row, shape \(2,\); got shape"):
            cj.RelaxedOneHotCatnat(wrong, scores, K)
        with pytest.raises(ValueError, match="tau must be one number or one a row"):
            cj.gumbel_softmax(KEY, scores, K, tau=wrong, hard=True)
    cold, hot = both.rsample(KEY, (1000,)).max(-1).mean(0)
    assert cold > hot + 0.1


def test_rsample_has_a_gradient_in_scores_and_temperature_and_sample_has_none():
    scores = jnp.asarray(draw(K - 1), jnp.float32)
    for method, moves in [("rsample", True), ("sample", False)]:
        gradients = jax.jit(
            jax.grad(lambda t, s, m=method: getattr(cj.RelaxedOneHotCatnat(t, s, K), m)(KEY)[0], argnums=(0, 1))
        )(0.5, scores)
        assert all(bool((g != 0).any()) == moves for g in gradients)


def test_a_sample_that_has_rounded_to_zero_keeps_a_finite_density():
    ours = cj.RelaxedOneHotCatnat(0.01, jnp.asarray(draw(K - 1), jnp.float32), K)
    drawn = ours.sample(KEY, (100,))
    assert (drawn == 0).any() and jnp.isfinite(ours.log_prob(drawn)).all()


def test_the_relaxed_takes_its_own_samples_of_ten_thousand_classes():
    scores = 2 * jax.random.normal(KEY, (20, 9999))
    for activation in ("natural", "sigmoid"):
        pi = catnat.Parameterization(10_000, activation)
        ours = cj.RelaxedOneHotCatnat(0.5, scores, pi)
        drawn, log_prob = ours.sample_and_log_prob(KEY)
        assert jnp.isfinite(log_prob).all() and jnp.isfinite(ours.log_prob(ours.probs)).all()
        assert_allclose(drawn.sum(-1), 1, rtol=1e-4)


def test_the_noise_is_gumbels_and_fine_where_it_is_large():
    noise = np.asarray(jax.jit(lambda key: gumbel(key, (1_000_000,), jnp.float32))(KEY))
    assert np.isfinite(noise).all()
    assert stats.kstest(noise[:100_000], stats.gumbel_r.cdf).pvalue > LEAST_P
    assert len(np.unique(np.sort(noise)[-2000:])) > 1990  # jax.random.gumbel's have hundreds of ties there
