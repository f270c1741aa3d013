"""Several categorical variables in one vector of scores are the product of their parts, as in PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import distributions as D

import catnat
import catnat.jax as cj
import catnat.torch as ct
from tests.core.trees import make_tree
from tests.jax.beside_torch import assert_same, draw, of_torch
from tests.thinned import thinned

NVEC = (3, 1, 2, 5)
ALLOWED = np.array([0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 0], bool)
KINDS = {"numbers": NVEC, "kinds": [catnat.Parameterization(n, "sigmoid", make_tree("chain", n)) for n in NVEC]}
KEY = jax.random.key(0)


@pytest.mark.parametrize("kind, masked", thinned([("numbers", False), ("numbers", True), ("kinds", True)], 1))
def test_it_is_pytorchs(kind, masked):
    kinds = KINDS[kind]
    masking = {"mask": ALLOWED} if masked else {}
    given = {name: of_torch(setting) for name, setting in masking.items()}
    value = np.array([[1, 0, 1, 0], [2, 0, 1, 3], [2, 0, 1, 1]])  # which the mask allows
    assert_same(
        lambda s: cj.MultiCatnat(s, kinds, **masking).log_prob(jnp.asarray(value)),
        lambda s: ct.MultiCatnat(s, kinds, **given).log_prob(torch.from_numpy(value)),
        draw(3, 7),
    )
    assert_same(
        lambda p, q: (
            cj.MultiCatnat(p, kinds, **masking).kl_divergence(cj.MultiCatnat(q, kinds, **masking))
            + cj.MultiCatnat(p, kinds, **masking).entropy()
        ),
        lambda p, q: (
            D.kl_divergence(ct.MultiCatnat(p, kinds, **given), ct.MultiCatnat(q, kinds, **given))
            + ct.MultiCatnat(p, kinds, **given).entropy()
        ),
        draw(3, 7),
        draw(3, 7, seed=1),
    )
    ours = cj.MultiCatnat(draw(3, 7), kinds, **masking)
    theirs = ct.MultiCatnat(torch.from_numpy(draw(3, 7)), kinds, **given)
    assert_array_equal(ours.mode, theirs.mode)
    assert (ours.batch_shape, ours.event_shape) == ((3,), (4,))


@pytest.mark.parametrize("kind, masked", thinned([("numbers", False), ("kinds", True)], 1))
def test_draws_are_those_of_the_parts(kind, masked):
    masking = {"mask": ALLOWED} if masked else {}
    ours = cj.MultiCatnat(draw(2, 7), KINDS[kind], **masking)
    drawn, log_prob = jax.jit(lambda d: d.sample_and_log_prob(KEY, (2000,)))(ours)
    assert drawn.shape == (2000, 2, 4) and drawn.dtype == jnp.int32 and np.isfinite(log_prob).all()
    drawn = np.asarray(drawn)
    for i, part in enumerate(ours.parts):
        shares = (drawn[:, :, i, None] == np.arange(NVEC[i])).mean(0)
        assert_allclose(shares, part.probs, atol=0.06)
    # parts are drawn from different keys: the last part does not follow the first
    assert abs(np.corrcoef(drawn[:, 0, 0], drawn[:, 0, 3])[0, 1]) < 0.12


@pytest.mark.slow
def test_expand_repeats_the_distribution():
    ours = cj.MultiCatnat(draw(3, 7), NVEC, mask=ALLOWED)
    wide = ours.expand((2, 3))
    assert wide.batch_shape == (2, 3) and wide.event_shape == (4,)
    assert_allclose(wide.entropy(), np.broadcast_to(ours.entropy(), (2, 3)), rtol=1e-6)


def test_a_mask_may_have_a_larger_batch_than_the_scores():
    ours = cj.MultiCatnat(draw(7), NVEC, mask=np.stack((ALLOWED, ~np.eye(11, dtype=bool)[0])))
    assert ours.batch_shape == (2,) and ours.scores.shape == (2, 7) and ours.entropy().shape == (2,)


def test_an_index_is_one_of_the_batch():
    ours = cj.MultiCatnat(draw(2, 3, 7), NVEC, mask=ALLOWED)
    assert_array_equal(ours[..., 0].mode, ours.mode[:, 0])


def test_one_part_is_a_catnat():
    scores, values = draw(3, 5), jnp.array([0, 3, 5])
    one = cj.MultiCatnat(scores, [6])
    assert_allclose(one.log_prob(values[:, None]), cj.CatnatCategorical(scores, 6).log_prob(values))


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ({"nvec": [7]}, ValueError, "scores"),
        ({"nvec": 6}, TypeError, "nvec"),
        ({"nvec": []}, ValueError, "nvec"),
        ({"nvec": "natural"}, TypeError, "nvec"),
        ({"nvec": [3, "sigmoid"]}, TypeError, r"write catnat.Parameterization\(num_classes, 'sigmoid'\)"),
        ({"nvec": [3, 4], "mask": np.ones(6, bool)}, ValueError, r"sum\(nvec\) = 7"),
        ({"nvec": [3, 4], "mask": np.arange(7) > 2}, ValueError, "at least one class"),
        ({"nvec": [3, 4], "mask_mode": "prune"}, TypeError, "mask_mode"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, word):
    with pytest.raises(error, match=word):
        cj.MultiCatnat(jnp.zeros((3, 5)), **arguments)


def test_it_refuses_values_and_partners_of_other_sizes():
    one = cj.MultiCatnat(jnp.zeros(5), [6])
    with pytest.raises(ValueError, match="value"):
        one.log_prob(jnp.zeros(2, int))
    with pytest.raises(ValueError, match="nvec"):
        one.kl_divergence(cj.MultiCatnat(jnp.zeros(5), [3, 4]))
    with pytest.raises(TypeError, match="CatnatCategorical"):
        one.kl_divergence(cj.CatnatCategorical(jnp.zeros(5), 6))
