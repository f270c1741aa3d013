"""Draws follow the probabilities that `log_prob` states, never leave the mask, and come from the given generator."""

from itertools import product

import pytest
import torch
from scipy import stats
from torch import distributions as D

import catnat
import catnat.torch as ct
from tests.core.trees import KINDS, make_tree
from tests.thinned import thinned

ACTIVATIONS = {
    "sigmoid": catnat.Sigmoid(),
    "natural": catnat.Natural(),
    "paper": catnat.Natural(amplitude=5.0, tail=0.0),
}
LEAST_P = 1e-6


def make_scores(num_classes, *batch, spread=1.5, seed=0, dtype=torch.float32):
    """Wide enough that some natural nodes are outside their range."""
    return spread * torch.randn(*batch, num_classes - 1, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_masking(num_classes, masked=True, seed=1):
    if not masked:
        return {}
    mask = torch.rand(num_classes, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[seed % num_classes] = True
    return {"mask": mask}


def fit(counts, probs):
    """p-value of the chi-square test of counts [..., K] against probabilities, rare classes taken together."""
    expected = (probs.double() * counts.sum(-1, keepdim=True)).flatten().numpy()
    observed, rare = counts.flatten().numpy(), expected < 5
    assert not observed[expected == 0].any()
    cells = [*zip(observed[~rare], expected[~rare], strict=True), (observed[rare].sum(), expected[rare].sum())]
    cells = [cell for cell in cells if cell[1] > 1]
    degrees = len(cells) - probs[..., 0].numel()
    return stats.chi2.sf(sum((o - e) ** 2 / e for o, e in cells), degrees) if degrees > 0 else 1.0


def count(draws, num_classes):
    """[N, B] class ids to [B, K] counts."""
    return torch.stack([torch.bincount(column, minlength=num_classes) for column in draws.flatten(1).unbind(1)])


def stated_probs(scores, pi, **masking):
    classes = torch.arange(pi.num_classes).reshape(-1, *[1] * (scores.dim() - 1))
    return ct.log_prob(scores.double(), classes.expand(-1, *scores.shape[:-1]), pi, **masking).exp().movedim(0, -1)


def check_fit(pi, num_draws, masked, **options):
    scores, masking = make_scores(pi.num_classes, 2, **options), make_masking(pi.num_classes, masked)
    torch.manual_seed(0)
    drawn = ct.sample(scores, pi, sample_shape=(num_draws,), **masking)
    assert fit(count(drawn, pi.num_classes), stated_probs(scores, pi, **masking)) > LEAST_P


@pytest.mark.parametrize(
    ("num_classes", "kind", "activation", "masked"),
    thinned(product([2, 3, 6, 18, 100], KINDS, ACTIVATIONS.values(), [False, True]), every=7),
)
def test_draws_fit_log_prob(num_classes, kind, activation, masked):
    check_fit(catnat.Parameterization(num_classes, activation, make_tree(kind, num_classes)), 20000, masked)


@pytest.mark.parametrize(("activation", "masked"), thinned(product(ACTIVATIONS.values(), [False, True]), every=4))
def test_draws_fit_log_prob_on_a_chain_too_deep_to_walk(activation, masked):
    # classes near the root would take all the mass unless the scores start from the uniform distribution
    check_fit(catnat.Parameterization(200, activation, make_tree("chain", 200)), 8000, masked, spread=0.3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("center", [0.0, 0.7, "uniform"])
def test_draws_fit_log_prob_in_every_dtype_and_for_every_centre(dtype, center):
    check_fit(catnat.Parameterization(18, center=center), 20000, False, dtype=dtype)


def test_every_sample_and_every_row_is_drawn_on_its_own():
    torch.manual_seed(0)
    drawn = ct.sample(torch.zeros(2, 3), 4, sample_shape=(5000, 2))  # [5000, 2, 2] over four equally likely classes
    joint = drawn.flatten(1) @ torch.tensor([64, 16, 4, 1])
    assert stats.chisquare(torch.bincount(joint, minlength=256).numpy()).pvalue > LEAST_P


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0, 1e6])
@pytest.mark.parametrize("masked", [False, True])
def test_gumbel_straight_through_is_an_exact_sample_at_every_temperature(temperature, masked):
    scores, masking = make_scores(6), make_masking(6, masked)
    torch.manual_seed(0)
    drawn = ct.gumbel_softmax(scores.expand(100_000, -1), 6, tau=temperature, hard=True, **masking)
    assert fit(drawn.sum(0).long(), ct.catnat(scores.double(), 6, **masking)) > LEAST_P


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gumbel_straight_through_is_an_exact_sample_in_half_precision(dtype):
    torch.manual_seed(0)
    drawn = ct.gumbel_softmax(torch.zeros(1_000_000, 3, dtype=dtype), 4, tau=4.0, hard=True)
    assert fit(drawn.sum(0, dtype=torch.int64), torch.full((4,), 0.25)) > LEAST_P


def test_straight_through_and_one_hot_are_exact_samples():
    scores = make_scores(6)
    torch.manual_seed(0)
    for drawn in (ct.straight_through(scores.expand(20000, -1), 6), ct.OneHotCatnat(scores, 6).sample((20000,))):
        assert fit(drawn.sum(0).long(), ct.catnat(scores.double(), 6)) > LEAST_P


# -- masks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "allowed_are_rare", "kind"),
    thinned(product(ACTIVATIONS.values(), [False, True], ["balanced", "chain"]), every=3),
)
def test_a_forbidden_class_is_never_drawn(activation, allowed_are_rare, kind):
    pi = catnat.Parameterization(18, activation, make_tree(kind, 18))
    masking = make_masking(18)
    scores = make_scores(18)
    if allowed_are_rare:  # a forbidden class has all but the last bit of the mass
        almost = torch.full((18,), 1e-9, dtype=torch.float64)
        almost[(~masking["mask"]).nonzero()[0]] = 1.0
        scores = ct.scores_from_probs(almost, pi).float()
    torch.manual_seed(0)
    drawn = torch.bincount(ct.sample(scores, pi, sample_shape=(1_000_000,), **masking), minlength=18)
    assert drawn.sum() == 1_000_000 and not drawn[~masking["mask"]].any()


def test_a_forbidden_class_is_never_drawn_on_a_chain_too_deep_to_walk():
    masking = make_masking(200)
    torch.manual_seed(0)
    pi = catnat.Parameterization(200, tree=make_tree("chain", 200))
    drawn = ct.sample(make_scores(200), pi, sample_shape=(5000,), **masking)
    assert masking["mask"][drawn].all()


def test_allowed_classes_without_any_mass_are_drawn_all_the_same():
    pi = catnat.Parameterization(4, catnat.Natural(tail=0.0, floor=0.0))
    scores = torch.tensor([100.0, 0.0, 0.0])  # all mass on the right half
    masking = {"mask": torch.tensor([True, True, False, False])}
    torch.manual_seed(0)
    drawn = ct.sample(scores, pi, sample_shape=(20000,), **masking)
    assert fit(torch.bincount(drawn, minlength=4), torch.tensor([0.5, 0.5, 0, 0])) > LEAST_P


def test_every_row_has_its_own_mask():
    mask = torch.eye(6, dtype=torch.bool)
    drawn = ct.sample(make_scores(6), 6, sample_shape=(50,), mask=mask)
    assert drawn.equal(torch.arange(6).expand(50, 6))


# -- the ends of the range ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_a_saturated_node_keeps_its_floor(side, masked):
    pi = catnat.Parameterization(2, catnat.Natural(tail=0.0, floor=0.05))
    masking = {"mask": torch.ones(2, dtype=torch.bool)} if masked else {}
    torch.manual_seed(0)
    drawn = ct.sample(torch.tensor([side * 100.0]), pi, sample_shape=(100_000,), **masking)
    unlikely = int((drawn == (0 if side > 0 else 1)).sum())
    assert stats.binomtest(unlikely, 100_000, 0.05).pvalue > LEAST_P


@pytest.mark.parametrize("side", [-1, 1])
def test_without_a_floor_a_saturated_node_is_certain(side):
    pi = catnat.Parameterization(2, "paper")
    torch.manual_seed(0)
    drawn = ct.sample(torch.tensor([side * 4.0]), pi, sample_shape=(1_000_000,))
    assert (drawn == (1 if side > 0 else 0)).all()


def test_infinite_sigmoid_scores_are_certain():
    pi = catnat.Parameterization(4, "sigmoid")
    drawn = ct.sample(torch.tensor([torch.inf, 0.0, -torch.inf]), pi, sample_shape=(100_000,))
    assert (drawn == 2).all()


# -- sizes -------------------------------------------------------------------------------------------------------


def test_a_single_class_is_always_drawn():
    assert ct.sample(torch.zeros(3, 0), 1, sample_shape=(2,)).equal(torch.zeros(2, 3, dtype=torch.int64))
    assert ct.CatnatCategorical(torch.zeros(0), 1).sample() == 0


@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
def test_draws_fit_from_very_many_classes(activation):
    pi, scores = catnat.Parameterization(1 << 17, activation), make_scores(1 << 17, spread=0.5)
    torch.manual_seed(0)
    drawn = ct.sample(scores, pi, sample_shape=(20000,))
    assert ct.log_prob(scores, drawn, pi).isfinite().all()
    groups = ct.catnat(scores.double(), pi).reshape(64, -1).sum(-1)  # the 64 subtrees of the sixth level
    assert fit(torch.bincount(drawn >> 11, minlength=64), groups) > LEAST_P
    # below those: which half of its subtree, over all subtrees together
    right = ct.catnat(scores.double(), pi).reshape(64, 2, -1).sum(-1)[:, 1].sum().item()
    assert stats.binomtest(int(((drawn >> 10) & 1).sum()), 20000, right).pvalue > LEAST_P


# -- the source of randomness ------------------------------------------------------------------------------------

SAMPLERS = {
    "sample": lambda s, g: ct.sample(s, 6, sample_shape=(50,), generator=g),
    "sample, masked": lambda s, g: ct.sample(s, 6, sample_shape=(50,), mask=torch.arange(6) > 1, generator=g),
    "sample, chain": lambda s, g: ct.sample(s, catnat.Parameterization(6, tree=make_tree("chain", 6)), generator=g),
    "sample, walked": lambda s, g: ct.sample(s.repeat(1, 600), 3001, generator=g),
    "straight_through": lambda s, g: ct.straight_through(s, 6, generator=g),
    "relaxed_sample": lambda s, g: ct.gumbel_softmax(s, 6, generator=g),
    "gumbel_straight_through": lambda s, g: ct.gumbel_softmax(s, 6, generator=g, hard=True),
    "CatnatCategorical": lambda s, g: ct.CatnatCategorical(s, 6).sample((50,), generator=g),
    "OneHotCatnat": lambda s, g: ct.OneHotCatnat(s, 6).sample((50,), generator=g),
    "OneHotCatnatStraightThrough": lambda s, g: ct.OneHotCatnatStraightThrough(s, 6).rsample((50,), generator=g),
    "MultiCatnat": lambda s, g: ct.MultiCatnat(s, [3, 4]).sample((50,), generator=g),
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_a_generator_alone_decides_the_draws(sampler):
    scores = make_scores(6, 40)
    before = torch.get_rng_state()
    first = sampler(scores, torch.Generator().manual_seed(3))
    again = sampler(scores, torch.Generator().manual_seed(3))
    other = sampler(scores, torch.Generator().manual_seed(4))
    assert torch.get_rng_state().equal(before)
    assert first.equal(again) and not first.equal(other)


def test_the_global_seed_decides_without_a_generator():
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        runs.append(
            (ct.sample(make_scores(6, 40), 6), D.Independent(ct.CatnatCategorical(make_scores(6, 40), 6), 1).sample())
        )
    assert runs[0][0].equal(runs[1][0]) and runs[0][1].equal(runs[1][1])
