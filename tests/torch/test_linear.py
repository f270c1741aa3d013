"""`CatnatLinear`, and what a module's state says of the function that its scores mean."""

from __future__ import annotations

import warnings

import pytest
import torch

import catnat
import catnat.torch as ct

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("parameterization", [6, catnat.Parameterization(6, tree=catnat.Tree.chain(6))])
def test_a_linear_head_is_a_linear_layer_and_a_catnat(parameterization):
    torch.manual_seed(0)
    head = ct.CatnatLinear(8, parameterization)
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


# -- what a state says -------------------------------------------------------------------------------------------

KINDS = {
    "default": 6,
    "activation": catnat.Parameterization(6, "sigmoid"),
    "tail": catnat.Parameterization(6, catnat.Natural(tail=0.01)),
    "amplitude": catnat.Parameterization(6, catnat.Natural(amplitude=3.0)),
    "chain": catnat.Parameterization(6, tree=catnat.Tree.chain(6)),
    "nested": catnat.Parameterization(6, tree=catnat.Tree.from_nested([[[0, 1], 2], [3, [4, 5]]])),
    "same shape": catnat.Parameterization(6, tree=catnat.Tree.from_nested([[[5, 1], 2], [3, [4, 0]]])),
    "center": catnat.Parameterization(6, center=0.0),
    "centers": catnat.Parameterization(6, center=(0.0, 0.0, 0.0, 0.0, 1e-9)),
}


def network_of(kind):
    return torch.nn.Sequential(torch.nn.Linear(8, 8), ct.CatnatLinear(8, kind))


@pytest.mark.parametrize("way", ["file", "dict", "safetensors", "half"])
def test_a_state_goes_only_where_its_scores_mean_the_same(way, tmp_path):
    """However it travels: refused before anything is copied, with strict=False too."""
    for saved in KINDS if way == "file" else ["activation", "same shape"]:
        torch.manual_seed(0)
        network = network_of(KINDS[saved])
        state = (network.half() if way == "half" else network).state_dict()
        if way == "file":
            torch.save(state, tmp_path / "state.pt")
            state = torch.load(tmp_path / "state.pt", weights_only=True)
        elif way == "safetensors":
            files = pytest.importorskip("safetensors.torch")
            files.save_file(state, tmp_path / "state.safetensors")
            state = files.load_file(tmp_path / "state.safetensors")
        elif way == "dict":
            state = dict(state)
        for name, kind in KINDS.items():
            other = network_of(kind)
            before = {key: value.clone() for key, value in other.state_dict().items()}
            if name == saved:
                other.load_state_dict(state)
                torch.testing.assert_close(other(X), network.float()(X), rtol=0, atol=0)
                continue
            for strict in (True, False):
                with pytest.raises(
                    RuntimeError, match=r"1\.definition: .*another parameterization \(.*(another|there, )"
                ):
                    other.load_state_dict(dict(state), strict=strict)
                own = other[1].state_dict(prefix="1.")  # the head's: of the layers before it PyTorch knows nothing
                torch.testing.assert_close(own, {k: before[k] for k in own}, rtol=0, atol=0)


@pytest.mark.parametrize("module", [ct.Catnat, ct.LogCatnat, ct.CatnatCrossEntropyLoss])
def test_modules_without_weights_say_it_too(module):
    pi = catnat.Parameterization(10, "sigmoid")
    network = torch.nn.Sequential(torch.nn.Linear(4, 9), module(pi))
    state = network.state_dict()
    assert set(state) == {"0.weight", "0.bias", "1.definition"}
    with pytest.raises(
        RuntimeError, match=r"1\.definition: .*tail 0\.5 there, 0\.1 here.* it is .*Natural\(tail=0\.1\)"
    ):
        torch.nn.Sequential(torch.nn.Linear(4, 9), module(10)).load_state_dict(state)
    torch.nn.Sequential(torch.nn.Linear(4, 9), module(pi)).load_state_dict(state)


def test_equal_functions_take_each_others_states():
    for one, other in [
        (6, catnat.Parameterization(6, catnat.Natural())),
        (6, catnat.Parameterization(6, tree=catnat.Tree.balanced(6))),
        (catnat.Parameterization(6, "sigmoid"), catnat.Parameterization(6, catnat.Natural(tail=0.5))),
    ]:
        head, again = ct.CatnatLinear(8, one), ct.CatnatLinear(8, other)
        again.load_state_dict(head.state_dict())
        torch.testing.assert_close(again(X), head(X))


def test_an_older_state_says_nothing_of_it():
    head = ct.CatnatLinear(8, 6)
    state = {name: value for name, value in head.state_dict().items() if name != "definition"}
    again = ct.CatnatLinear(8, 6)
    again.load_state_dict(state)
    torch.testing.assert_close(again(X), head(X))


def test_a_head_made_without_memory_starts_as_any_other():
    frequencies = torch.tensor([0.05, 0.3, 0.1, 0.25, 0.2, 0.1])
    with torch.device("meta"):
        network = torch.nn.Sequential(ct.CatnatLinear(8, 6, class_frequencies=frequencies), ct.LogCatnat(7))
    assert all(value.is_meta for value in network.state_dict().values())
    assert ct.CatnatLinear(8, 6, device="meta").definition.is_meta
    network.to_empty(device="cpu")
    for value in network.state_dict().values():
        value.fill_(3)
    for module in network:
        module.reset_parameters()
    head = network[0]
    torch.testing.assert_close(head(torch.zeros(8)).exp(), frequencies)
    assert 0 < head.weight.abs().max() < 1 and head.weight.std() > 0.1  # small random weights
    network.load_state_dict(network.state_dict())
    again = torch.nn.Sequential(ct.CatnatLinear(8, 6), ct.LogCatnat(7))
    again.load_state_dict(network.state_dict())


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


def test_bad_settings():
    for wrong, named in [
        (lambda: ct.CatnatLinear(8, 6, "sigmoid"), r"takes 3 .*or catnat.Parameterization\(num_classes, activation"),
        (lambda: ct.CatnatLinear(8, 6, tree=None), r"'tree'.*Parameterization\(num_classes, activation, tree"),
        (lambda: ct.CatnatLinear(8, 6, sparse=True), "'sparse'. It takes in_features, parameterization, class_freq"),
        (lambda: ct.CatnatLinear(8, "sigmoid"), "write catnat.Parameterization"),
    ]:
        with pytest.raises(TypeError, match=named):
            wrong()
    with pytest.raises(ValueError, match="class_frequencies must hold one number per class: 2; got"):
        ct.CatnatLinear(8, 2, class_frequencies=torch.ones(3))
    with pytest.raises(ValueError, match="class_frequencies must be finite and above 0"):
        ct.CatnatLinear(8, 2, class_frequencies=torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match="class_frequencies need a bias"):
        ct.CatnatLinear(8, 2, class_frequencies=torch.ones(2), bias=False)


def test_saturation_is_the_share_beyond_the_natural_range():
    joint = catnat.Natural().joint
    x = torch.tensor([[0.0, joint - 0.01, joint + 0.01], [-9.0, 9.0, 1.0]])
    pi = catnat.Parameterization(4)  # every centre is 0
    torch.testing.assert_close(ct.saturation(x, pi), torch.tensor(0.5))
    assert ct.saturation(x, catnat.Parameterization(4, "paper")) == pytest.approx(2 / 6)  # the range ends at pi
    assert ct.saturation(x, catnat.Parameterization(4, "sigmoid")) == 0
    wide = catnat.Natural(amplitude=2 * catnat.Natural().amplitude)
    assert ct.saturation(2 * x, catnat.Parameterization(4, wide)) == 0.5
    shifted = catnat.Parameterization(3)
    assert ct.saturation(torch.tensor(shifted.centers.tolist()), shifted) == 0
