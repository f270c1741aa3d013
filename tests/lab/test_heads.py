"""Every head is a distribution over K classes, and the way back from probabilities leads to the same one."""

from __future__ import annotations

import pytest
import torch

import catnat
from catnat_lab.errors import UserError
from catnat_lab.files import read
from catnat_lab.heads import HEAD_NAMES, activation_of, head, is_natural, natural_reach, parts_of


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("name", HEAD_NAMES)
def test_scores_and_probabilities_lead_to_each_other(name, classes):
    torch.manual_seed(0)
    probs = torch.rand(20, classes, dtype=torch.float64).softmax(-1)
    one = head(name, classes)
    scores = one.scores_from_probs(probs)
    assert scores.shape == (20, one.width) and one.width == classes - name.startswith("catnat")
    torch.testing.assert_close(one.log_probs(scores).exp(), probs)


@pytest.mark.parametrize("name", HEAD_NAMES)
def test_probabilities_sum_to_one(name):
    one = head(name, 5)
    probs = one.log_probs(torch.randn(30, one.width)).exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones(30))


def test_catnat_is_the_default_of_the_library_and_paper_what_published_tables_mean():
    assert activation_of("catnat") == catnat.Parameterization(2).activation
    assert activation_of("catnat-sigmoid") == catnat.Sigmoid()
    assert activation_of("catnat-paper") == catnat.Natural(tail=0.0, floor=1e-8)
    assert activation_of("softmax") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("catnat-natural", "catnat-paper"),
        ("catnat-natural[[1,3],[0,[2,4]]]", "catnat-paper[[1,3],[0,[2,4]]]"),
        ("vae grey 10x8 catnat-natural", "vae grey 10x8 catnat-paper"),
        ("catnat-natural-exact catnat-natural-revive", "catnat-clip0 catnat-revive1e-4"),
        ("catnat-natural-reflect", "catnat-natural-reflect"),  # there is no such head any more
    ],
)
def test_an_old_name_is_read_from_files_and_nowhere_else(old, new, tmp_path):
    (tmp_path / "old.csv").write_text(old)
    assert read(tmp_path / "old.csv") == new
    with pytest.raises(UserError, match="head must be"):
        activation_of(old)


@pytest.mark.parametrize("floor", [1e-4, 1e-6])
def test_a_reviving_head_has_the_values_of_the_clip_and_a_gradient_that_leads_back(floor):
    """Outside the range -log p of one side leads back and passes; that of the other leads out and does not."""
    scores = torch.tensor([[-9.0], [-1.0], [0.5], [3.12], [4.0]], dtype=torch.float64, requires_grad=True)
    ours, clip = (head(f"catnat-{way}{floor:g}", 2).log_probs(scores) for way in ("revive", "clip"))
    torch.testing.assert_close(ours, clip)
    for side in (0, 1):
        losses = (-log_p[:, side].sum() for log_p in (ours, clip))
        back, clipped = (torch.autograd.grad(loss, scores, retain_graph=True)[0] for loss in losses)
        inside = torch.tensor([[False], [True], [True], [floor < 1e-4], [False]])
        torch.testing.assert_close(back[inside], clipped[inside])
        assert (clipped[~inside] == 0).all()
        leads_back = (back * scores > 0)[~inside]
        assert torch.equal(leads_back, (scores[~inside] > 0) == (side == 0)) and (back[~inside][~leads_back] == 0).all()


def test_the_natural_range_ends_where_a_branch_has_the_probability_of_the_tail():
    for name in ("catnat", "catnat-clip0"):
        one, reach = activation_of(name), natural_reach(activation_of(name))
        scores = torch.tensor([[0.0], [reach], [-reach]], dtype=torch.float64)
        least = head(name, 2).log_probs(scores).exp().min(-1).values
        torch.testing.assert_close(least, torch.tensor([0.5, one.tail, one.tail], dtype=torch.float64))
    assert natural_reach(activation_of("catnat-paper")) == torch.pi
    assert natural_reach(catnat.Natural(amplitude=3.0, tail=0.0)) == pytest.approx(1.5)
    for name in ("softmax", "catnat-sigmoid"):
        assert natural_reach(activation_of(name)) is None
    assert [name for name in HEAD_NAMES if not is_natural(name)] == ["softmax", "sparsemax", "catnat-sigmoid"]


def test_sparsemax_is_brought_back_to_where_it_learns_and_else_left_alone():
    one = head("sparsemax", 3)
    scores = torch.tensor([[0.3, 0.5, 0.1], [4.0, 0.0, -3.0]])
    assert (one.log_probs(scores)[1, 1:] == -torch.inf).all()
    back = one.project(scores)
    assert torch.equal(back[0], scores[0]) and head("softmax", 3).project(scores) is scores
    assert (one.log_probs(back)[1].exp() >= 0.9e-3).all()
    torch.testing.assert_close(one.log_probs(back)[1].exp().sum(), torch.tensor(1.0))


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
    assert activation_of("catnat-clip1e-6") == catnat.Natural(tail=0.0, floor=1e-6)
    for wrong in ("catnat-tail2", "catnat-clip0.9", "catnat-clip1e"):
        with pytest.raises(UserError, match=f"head '{wrong}' is no member of the family: "):
            activation_of(wrong)


@pytest.mark.parametrize("name", ["catnat", "catnat-sigmoid", "catnat-tail0.02", "catnat-paper"])
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
