"""`CatnatLinear`, the share of nodes beyond the natural range, and the warning about it."""

from __future__ import annotations

import warnings

import pytest
import torch

import catnat
import catnat.torch as ct

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("parameterization", ["natural", catnat.Parameterization(6, tree=catnat.Tree.chain(6))])
def test_a_linear_head_is_a_linear_layer_and_a_catnat(parameterization):
    torch.manual_seed(0)
    head = ct.CatnatLinear(8, 6, parameterization)
    assert head.in_features == 8
    assert head.out_features == head(torch.zeros(1, 8)).shape[-1]
    scores, target = head.linear(X), torch.arange(64) % 6
    assert head.linear.out_features == 5
    torch.testing.assert_close(head(X), ct.log_catnat(scores, parameterization))
    torch.testing.assert_close(head.log_probs(X), head(X))
    smooth = {"label_smoothing": 0.1}
    expected = ct.cross_entropy(scores, target, parameterization, **smooth)
    torch.testing.assert_close(head.loss(X, target, **smooth), expected)
    assert (head.mode(X) == head(X).argmax(-1)).all()
    mask = torch.arange(6) != 2
    torch.testing.assert_close(head.distribution(X, mask=mask).probs.sum(-1), torch.ones(64))
    drawn = head.sample(X, generator=torch.Generator().manual_seed(3))
    assert (drawn == ct.sample(scores, parameterization, generator=torch.Generator().manual_seed(3))).all()


def test_it_starts_uniform_or_at_given_frequencies():
    frequencies = torch.tensor([0.05, 0.3, 0.1, 0.25, 0.2, 0.1])
    torch.testing.assert_close(ct.CatnatLinear(8, 6)(torch.zeros(8)).exp(), torch.full((6,), 1 / 6))
    head = ct.CatnatLinear(8, 6, class_frequencies=frequencies)
    torch.testing.assert_close(head(torch.zeros(8)).exp(), frequencies)


def test_it_trains_and_is_saved():
    torch.manual_seed(0)
    target = (X[:, 0] > 0).long() * 2 + (X[:, 1] > 0).long()
    head = ct.CatnatLinear(8, 4)
    optimizer = torch.optim.SGD(head.parameters(), 0.5)
    for _ in range(200):
        optimizer.zero_grad()
        head.loss(X, target).backward()
        optimizer.step()
    assert (head.mode(X) == target).float().mean() > 0.95
    again = ct.CatnatLinear(8, 4)
    again.load_state_dict(head.state_dict())
    torch.testing.assert_close(again(X), head(X))


KINDS = {
    "default": "natural",
    "activation": "sigmoid",
    "tail": catnat.Natural(tail=0.01),
    "chain": catnat.Parameterization(6, tree=catnat.Tree.chain(6)),
    "nested": catnat.Parameterization(6, tree=catnat.Tree.from_nested([[[0, 1], 2], [3, [4, 5]]])),
    "same shape": catnat.Parameterization(6, tree=catnat.Tree.from_nested([[[5, 1], 2], [3, [4, 0]]])),
    "center": catnat.Parameterization(6, center=0.0),
    "centers": catnat.Parameterization(6, center=(0.0, 0.0, 0.0, 0.0, 1e-9)),
}


@pytest.mark.parametrize("saved", KINDS)
def test_a_state_dict_goes_only_where_its_scores_mean_the_same(saved, tmp_path):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), ct.CatnatLinear(8, 6, KINDS[saved]))
    torch.save(network.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert set(state) == {"0.weight", "0.bias", "1.linear.weight", "1.linear.bias"}
    for name, kind in KINDS.items():
        other = torch.nn.Sequential(torch.nn.Linear(8, 8), ct.CatnatLinear(8, 6, kind))
        if name == saved:
            other.load_state_dict(state)
            torch.testing.assert_close(other(X), network(X), rtol=0, atol=0)
        else:
            with pytest.raises(RuntimeError, match=r"parameterization of 1: saved with activation=.*; here it is act"):
                other.load_state_dict(state, strict=False)
        other.load_state_dict(dict(state))  # as from older files: tensors alone


def test_weights_of_a_plain_linear_layer_stay_behind_and_it_says_so():
    old = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 6)).state_dict()
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), ct.CatnatLinear(8, 6))
    told = (
        r"^1\.weight is not loaded: CatnatLinear has 1\.linear\.weight\. .* for 6 classes .* 5 scores: train this head"
    )
    with pytest.warns(catnat.CatnatWarning, match=told):
        network.load_state_dict(old, strict=False)
    torch.testing.assert_close(network[0].weight, old["0.weight"], rtol=0, atol=0)
    with pytest.warns(catnat.CatnatWarning, match=told), pytest.raises(RuntimeError, match="Missing key"):
        network.load_state_dict(old)
    scores = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 5)).state_dict()
    with pytest.warns(catnat.CatnatWarning, match=r"scores of the same tree, rename it to 1\.linear\.weight$"):
        network.load_state_dict(scores, strict=False)
    with pytest.warns(catnat.CatnatWarning, match="train this head anew"):
        network.load_state_dict(scores | {"1.weight": None}, strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network.load_state_dict(network.state_dict())
        network.load_state_dict({"0.weight": old["0.weight"]}, strict=False)  # a body without any head


def test_a_default_named_by_hand_is_the_same():
    state = ct.CatnatLinear(8, 6).state_dict()
    for same in (catnat.Natural(), catnat.Parameterization(6, tree=catnat.Tree.balanced(6))):
        ct.CatnatLinear(8, 6, same).load_state_dict(state)
        ct.LogCatnat(same).load_state_dict(ct.LogCatnat().state_dict())
    ct.LogCatnat(catnat.Parameterization(1)).load_state_dict(ct.LogCatnat().state_dict())
    with pytest.raises(RuntimeError, match="parameterization of the module"):
        ct.CatnatLinear(8, 6, "paper").load_state_dict(state)


def test_bad_settings():
    with pytest.raises(ValueError, match="num_classes = 6 classes; it has 5"):
        ct.CatnatLinear(8, 6, catnat.Parameterization(5))
    with pytest.raises(ValueError, match="class_frequencies must be finite and above 0"):
        ct.CatnatLinear(8, 2, class_frequencies=torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match="class_frequencies need a bias"):
        ct.CatnatLinear(8, 2, class_frequencies=torch.ones(2), bias=False)


def test_saturation_is_the_share_beyond_the_natural_range():
    joint = catnat.Natural().joint
    x = torch.tensor([[0.0, joint - 0.01, joint + 0.01], [-9.0, 9.0, 1.0]])
    pi = catnat.Parameterization(4)  # every centre is 0
    torch.testing.assert_close(ct.saturation(x, pi), torch.tensor(0.5))
    assert ct.saturation(x, catnat.Natural(tail=0.0)) == pytest.approx(2 / 6)  # the range ends at pi
    assert ct.saturation(x, "sigmoid") == 0
    assert ct.saturation(2 * x, catnat.Natural(amplitude=2 * catnat.Natural().amplitude)) == 0.5
    shifted = catnat.Parameterization(3)
    assert ct.saturation(torch.tensor(shifted.centers.tolist()), shifted) == 0


def test_one_warning_when_more_than_half_are_beyond():
    far, near = torch.full((2, 5), 8.0), torch.zeros(2, 5)
    for module in (ct.Catnat(warn=True), ct.LogCatnat(warn=True)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            module(near)
        with pytest.warns(catnat.CatnatWarning, match="100% of the nodes are beyond their natural range"):
            module(far)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            module(far)  # once is enough
            ct.LogCatnat()(far)  # and nobody is warned who has not asked
