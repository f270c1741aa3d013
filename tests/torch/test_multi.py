"""Several categorical variables in one vector of scores are the product of their parts."""

import pytest
import torch
from torch import distributions as D
from torch.testing import assert_close

import catnat
import catnat.torch as ct
from tests.core.trees import make_tree
from tests.torch.test_distributions import BATCHES, K, assert_same_gradient, draw_scores

NVEC = (3, 1, 2, 5)


def parts_of(scores, kinds, mask=None, **masking):
    masks = [None] * len(NVEC) if mask is None else mask.split(NVEC, -1)
    split = scores.split([n - 1 for n in NVEC], -1)
    return [ct.CatnatCategorical(s, k, mask=m, **masking) for s, k, m in zip(split, kinds, masks, strict=True)]


@pytest.mark.parametrize("per_part", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
def test_multi_is_the_product_of_its_parts(per_part, masked, batch):
    kinds = [catnat.Parameterization(n, "sigmoid", make_tree("chain", n)) for n in NVEC] if per_part else list(NVEC)
    masking = {}
    if masked:
        forbidden = torch.tensor([0, 4, 8, 10])
        masking = {"mask": torch.ones(11, dtype=torch.bool).index_fill(0, forbidden, False)}
    scores, other = draw_scores(*batch, width=7), draw_scores(*batch, seed=1, width=7)
    multi, multi_q = (ct.MultiCatnat(s, kinds, **masking) for s in (scores, other))
    parts, parts_q = parts_of(scores, kinds, **masking), parts_of(other, kinds, **masking)
    values = multi.sample((9,))
    log_prob = sum(part.log_prob(value) for part, value in zip(parts, values.unbind(-1), strict=True))
    assert log_prob.isfinite().all()
    assert_same_gradient(multi.log_prob(values), log_prob, scores)
    assert_same_gradient(multi.entropy(), sum(part.entropy() for part in parts), scores)
    kl = sum(D.kl_divergence(p, q) for p, q in zip(parts, parts_q, strict=True))
    assert_same_gradient(D.kl_divergence(multi, multi_q), kl, scores, other)
    assert_close(multi.mode, torch.stack([part.mode for part in parts], -1))
    assert (multi.batch_shape, multi.event_shape) == (batch, (4,))
    wide = multi.expand((2, *batch))
    assert wide.sample((9,)).shape == (9, 2, *batch, 4)
    assert_close(wide.entropy(), multi.entropy().expand((2, *batch)))
    assert_close(wide.log_prob(values.unsqueeze(1)), log_prob.unsqueeze(1).expand(9, 2, *batch))
    assert_close(D.kl_divergence(wide, multi_q), kl.expand((2, *batch)))


def test_multi_with_one_part_is_a_catnat_and_refuses_other_sizes():
    scores = draw_scores(3)
    values = torch.tensor([0, 3, 5])
    one = ct.MultiCatnat(scores, [K])
    assert_close(one.log_prob(values.unsqueeze(-1)), ct.CatnatCategorical(scores, K).log_prob(values))
    with pytest.raises(ValueError, match="nvec"):
        D.kl_divergence(one, ct.MultiCatnat(scores, [3, 4]))
    with pytest.raises(ValueError, match="scores"):
        ct.MultiCatnat(scores, [K + 1])
