"""Draws without replacement follow sequential sampling, class after class, and never leave the mask."""

import itertools
import math

import pytest
import torch
from scipy import stats

import catnat
import catnat.torch as ct
from tests.core.trees import make_tree

LEAST_P = 1e-6
ALLOWED = torch.tensor([True, False, True, True, True])
MASKED = pytest.mark.parametrize("masking", [{}, {"mask": ALLOWED}], ids=["free", "masked"])
PARAMETERIZATIONS = {
    "natural": catnat.Parameterization(5),
    "sigmoid": catnat.Parameterization(5, "sigmoid", make_tree("chain", 5)),
}
EACH = pytest.mark.parametrize("pi", PARAMETERIZATIONS.values(), ids=PARAMETERIZATIONS)
SCORES = torch.tensor([0.4, -0.8, 1.1, 0.2], dtype=torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def sequential(probs, length):
    """P of every sequence of different classes: each is drawn among those that are left."""
    table = {}
    for order in itertools.permutations([k for k, p in enumerate(probs) if p > 0], length):
        left, table[order] = 1.0, 1.0
        for k in order:
            table[order] *= probs[k] / left
            left -= probs[k]
    return table


@EACH
@MASKED
@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_order_is_that_of_sequential_sampling(pi, masking, length):
    expected = sequential(ct.catnat(SCORES, pi, **masking).tolist(), length)
    assert math.isclose(sum(expected.values()), 1)
    draws = 50_000
    drawn = ct.sample_without_replacement(SCORES.expand(draws, -1), length, pi, generator=seeded(), **masking)
    assert drawn.shape == (draws, length) and drawn.dtype == torch.int64
    places = 5 ** torch.arange(length)
    counts = torch.bincount(drawn @ places, minlength=5**length)
    cells = [(int(counts[int(torch.tensor(order) @ places)]), draws * p) for order, p in expected.items()]
    assert sum(count for count, _ in cells) == draws
    assert stats.chi2.sf(sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1) > LEAST_P


@MASKED
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_drawing_all_is_a_permutation_of_what_is_allowed(masking, dtype):
    allowed = masking.get("mask", torch.ones(5, dtype=torch.bool)).nonzero().squeeze(-1)
    scores = (2 * torch.randn(300, 2, 4, generator=seeded())).to(dtype)
    drawn = ct.sample_without_replacement(scores, len(allowed), 5, generator=seeded(), **masking)
    assert drawn.sort().values.equal(allowed.expand(300, 2, -1))


def test_classes_without_mass_come_last_and_forbidden_ones_never():
    pi = catnat.Parameterization(4, catnat.Natural(tail=0.0, floor=0.0))
    scores = torch.tensor([100.0, 0.0, 0.0]).expand(500, -1)  # all mass on the right half
    drawn = ct.sample_without_replacement(scores, 4, pi, generator=seeded())
    assert (drawn[:, :2] >= 2).all() and drawn.sort().values.equal(torch.arange(4).expand(500, -1))
    assert 150 < int(drawn[:, 3].sum()) < 350  # and the two that have none, in any order
    mask = torch.tensor([False, True, True, True])
    drawn = ct.sample_without_replacement(scores, 3, pi, mask=mask, generator=seeded())
    assert (drawn[:, 2] == 1).all() and (drawn[:, :2] >= 2).all()


def test_every_row_has_its_own_mask_and_the_batch_may_be_empty():
    mask = ~torch.eye(5, dtype=torch.bool)
    drawn = ct.sample_without_replacement(SCORES, 4, 5, mask=mask, generator=seeded())
    assert (drawn.unsqueeze(-1) != torch.arange(5).reshape(5, 1, 1)).all() and drawn.shape == (5, 4)
    assert ct.sample_without_replacement(torch.zeros(0, 4), 2, 5, mask=torch.ones(0, 5, dtype=torch.bool)).shape == (
        0,
        2,
    )
    assert ct.sample_without_replacement(torch.zeros(3, 0), 1, 1).equal(torch.zeros(3, 1, dtype=torch.int64))


def test_a_generator_alone_decides_the_draws():
    scores = SCORES.expand(50, -1)
    before = torch.get_rng_state()
    first, again, other = (ct.sample_without_replacement(scores, 3, 5, generator=seeded(s)) for s in (0, 0, 1))
    assert torch.get_rng_state().equal(before)
    assert first.equal(again) and not first.equal(other)


@pytest.mark.parametrize("num_samples", [0, -1, 6])
def test_more_than_there_are_is_an_error(num_samples):
    with pytest.raises(ValueError, match=rf"num_samples must lie in \[1, 5\].*got {num_samples}"):
        ct.sample_without_replacement(SCORES, num_samples, 5)


def test_more_than_a_row_allows_is_an_error():
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    with pytest.raises(ValueError, match="num_samples must not exceed the classes that a row allows, 2; got 3"):
        ct.sample_without_replacement(SCORES.expand(2, -1), 3, 5, mask=mask)


def test_a_number_of_samples_must_be_whole():
    with pytest.raises(TypeError, match="num_samples"):
        ct.sample_without_replacement(SCORES, 2.0, 5)


@MASKED
def test_it_compiles_and_draws_the_same(masking):
    compiled = torch.compile(ct.sample_without_replacement, fullgraph=True, backend="eager")
    torch.manual_seed(0)
    plain = ct.sample_without_replacement(SCORES.expand(7, -1), 3, 5, **masking)
    torch.manual_seed(0)
    assert compiled(SCORES.expand(7, -1), 3, 5, **masking).equal(plain)
