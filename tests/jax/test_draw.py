"""A draw with its log-probability and entropy is what the single functions say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat.jax as cj
from catnat import Parameterization
from tests.thinned import thinned

KEY = jax.random.key(0)


MASKED = {"mask": jnp.arange(18) % 3 != 0}


@pytest.mark.parametrize("masking", thinned([{}, MASKED], quick=[MASKED]), ids=["free", "masked"])
def test_a_draw_is_its_parts(masking):
    pi = Parameterization(18, "natural")
    scores = jax.random.normal(KEY, (3, 40, 17))
    drawn = jax.jit(lambda key, s: cj.draw(key, s, pi, **masking))(KEY, scores)

    @jax.jit
    def one_by_one(s, k):
        single = cj.sample(KEY, s, pi, **masking), cj.log_prob(s, k, pi, **masking), cj.entropy(s, pi, **masking)
        return cj.draw(None, s, pi, index=k, **masking), single

    given, (sample, log_prob, entropy) = one_by_one(scores, drawn.sample)
    np.testing.assert_array_equal(drawn.sample, sample)
    for found in (drawn, given):
        np.testing.assert_allclose(found.log_prob, log_prob, rtol=1e-6)
        np.testing.assert_allclose(found.entropy, entropy, rtol=1e-6)

    def loss(s):
        found = cj.draw(KEY, s, pi, **masking)
        return (found.log_prob + 2 * found.entropy).sum()

    def parts(s):
        return (cj.log_prob(s, drawn.sample, pi, **masking) + 2 * cj.entropy(s, pi, **masking)).sum()

    whole, sum_of_parts = jax.jit(lambda s: (jax.grad(loss)(s), jax.grad(parts)(s)))(scores)
    np.testing.assert_allclose(whole, sum_of_parts, rtol=1e-5, atol=1e-5)


def test_bad_input():
    scores = jnp.zeros((5, 17))
    with pytest.raises(ValueError, match=r"index must have the scores' batch shape \(5,\); got \(4,\)"):
        cj.draw(None, scores, 18, index=jnp.zeros(4, jnp.int32))
    with pytest.raises(TypeError, match="key"):
        cj.draw(None, scores, 18)
    with pytest.raises(TypeError, match="key"):
        cj.draw(scores, KEY, 18)
