"""Every head is a distribution over K classes, and the way back from probabilities leads to the same one."""

from __future__ import annotations

import pytest
import torch

import catnat
from catnat_lab.errors import UserError
from catnat_lab.heads import HEAD_NAMES, PAPER_HEADS, activation_of, head, is_natural, natural_reach, parts_of


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("name", HEAD_NAMES)
def test_scores_and_probabilities_lead_to_each_other(name, classes):
    torch.manual_seed(0)
    probs = torch.rand(20, classes, dtype=torch.float64).softmax(-1)
    one = head(name, classes)
    scores = one.scores_from_probs(probs)
    assert scores.shape == (20, one.width)
    torch.testing.assert_close(one.log_probs(scores).exp(), probs)


@pytest.mark.parametrize("name", HEAD_NAMES)
def test_probabilities_sum_to_one(name):
    one = head(name, 5)
    probs = one.log_probs(torch.randn(30, one.width)).exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones(30))


def test_softmax_and_sparsemax_take_a_score_a_class_and_catnat_one_less():
    assert {name: head(name, 4).width for name in PAPER_HEADS} == {
        "sparsemax": 4,
        "softmax": 4,
        "catnat-sigmoid": 3,
        "catnat-natural": 3,
    }


def test_catnat_is_the_default_of_the_library_and_natural_what_published_tables_mean():
    assert activation_of("catnat") == catnat.Parameterization(2).activation
    assert activation_of("catnat-sigmoid") == catnat.Sigmoid()
    paper = {name: activation_of(name) for name in HEAD_NAMES if name.startswith("catnat-natural")}
    assert {name: (one.tail, one.saturation, one.floor) for name, one in paper.items()} == {
        "catnat-natural": (0.0, "clip", 1e-8),
        "catnat-natural-exact": (0.0, "clip", 0.0),
        "catnat-natural-reflect": (0.0, "reflect", 1e-8),
        "catnat-natural-revive": (0.0, "revive", 1e-4),
        "catnat-natural-revive-fine": (0.0, "revive", 1e-6),
    }
    assert activation_of("softmax") is None


def test_the_natural_range_ends_where_a_branch_has_the_probability_of_the_tail():
    for name in ("catnat", "catnat-natural-exact"):
        one, reach = activation_of(name), natural_reach(activation_of(name))
        scores = torch.tensor([[0.0], [reach], [-reach]], dtype=torch.float64)
        least = head(name, 2).log_probs(scores).exp().min(-1).values
        torch.testing.assert_close(least, torch.tensor([0.5, one.tail, one.tail], dtype=torch.float64))
    assert natural_reach(activation_of("catnat-natural")) == torch.pi
    assert natural_reach(catnat.Natural(amplitude=3.0, tail=0.0)) == pytest.approx(1.5)
    for name in ("softmax", "catnat-sigmoid", "catnat-natural-reflect"):
        assert natural_reach(activation_of(name)) is None
    assert [name for name in HEAD_NAMES if not is_natural(name)] == ["softmax", "sparsemax", "catnat-sigmoid"]


def test_sparsemax_is_brought_back_to_where_it_learns_and_else_left_alone():
    one = head("sparsemax", 3)
    scores = torch.tensor([[0.3, 0.5, 0.1], [4.0, 0.0, -3.0]])
    assert (one.log_probs(scores)[1, 1:] == -torch.inf).all()
    back = one.project(scores)
    assert torch.equal(back[0], scores[0])
    assert (one.log_probs(back)[1].exp() >= 0.9e-3).all()
    torch.testing.assert_close(one.log_probs(back)[1].exp().sum(), torch.tensor(1.0))


@pytest.mark.parametrize("name", [name for name in HEAD_NAMES if name != "sparsemax"])
def test_other_heads_are_not_projected(name):
    scores = torch.randn(3, head(name, 4).width)
    assert head(name, 4).project(scores) is scores


def test_an_unknown_head_is_named_with_the_known_ones():
    with pytest.raises(UserError, match=r"head must be one of softmax, .*; got 'softmx' \(did you mean softmax\?\)"):
        head("softmx", 3)


def test_a_row_that_is_not_a_number_spoils_no_other():
    scores = torch.tensor([[0.3, 0.5], [torch.nan, 0.5], [torch.inf, 0.5]], requires_grad=True)
    log_probs = head("sparsemax", 2).log_probs(scores)
    assert log_probs[0].isfinite().all() and log_probs[1:].isnan().all()
    assert head("sparsemax", 2).project(scores.detach())[0].isfinite().all()


def test_names_of_any_member():
    assert activation_of("catnat-tail0.02") == catnat.Natural(tail=0.02)
    assert activation_of("catnat-clip1e-6") == catnat.Natural(tail=0.0, saturation="clip", floor=1e-6)
    assert activation_of("catnat-revive1e-8") == catnat.Natural(tail=0.0, saturation="revive", floor=1e-8)
    for wrong in ("catnat-tail2", "catnat-clip0.9", "catnat-clip1e"):
        with pytest.raises(UserError, match=f"head '{wrong}' is no member of the family: "):
            activation_of(wrong)


@pytest.mark.parametrize("name", ["catnat", "catnat-sigmoid", "catnat-tail0.02", "catnat-natural"])
def test_a_name_may_end_in_a_tree(name: str):
    """Scores of 0 draw every class alike; the first score moves the two halves of the tree apart, and only them."""
    named = f"{name}[[1,3],[0,[2,4]]]"
    assert parts_of(named) == (name, catnat.Tree.from_nested([[1, 3], [0, [2, 4]]])) and parts_of(name) == (name, None)
    assert activation_of(named) == activation_of(name)
    one = head(named, 5)
    assert torch.allclose(one.log_probs(torch.zeros(4)).exp(), torch.full((5,), 0.2))
    probs = one.log_probs(torch.tensor([1.0, 0.0, 0.0, 0.0])).exp()
    assert torch.allclose(probs[1], probs[3]) and torch.allclose(probs[[0, 0]], probs[[2, 4]])
    assert abs(probs[1] - probs[0]) > 0.05


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("catnat[[1,3],[0,2]]", "has a tree of 4 classes; here there are 5"),
        ("catnat[[1,3],[0,[2,5]]]", r"must end in a tree such as \[\[0,1\],2\]: .*4 is missing"),
        ("catnat[", "must end in a tree .*: these are no nested pairs of class ids"),
        ("catnat[[1,3]", "must end in a tree .*: these are no nested pairs of class ids"),
        ("catnat[[1,3],[0,[2,4]]]]", "must end in a tree .*: these are no nested pairs of class ids"),
        ("catnat" + "[" * 100_000, "must end in a tree"),
        ("catnat[[1,3], [0,[2,4]]]", "head must be a name without spaces"),
        ("catnat-tail0.2[0,0.5]", "must end in a tree"),
        ("softmax[[1,3],[0,[2,4]]]", "a catnat with or without a tree; got 'softmax"),
    ],
)
def test_a_tree_that_does_not_fit_is_refused(name: str, told: str):
    with pytest.raises(UserError, match=told):
        head(name, 5)
