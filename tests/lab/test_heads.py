"""Every head is a distribution over K classes, and the way back from probabilities leads to the same one."""

from __future__ import annotations

import pytest
import torch

from catnat_lab.errors import UserError
from catnat_lab.heads import HEAD_NAMES, PAPER_HEADS, head


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
    with pytest.raises(UserError, match=r"head must be one of softmax, .*; got 'softmx'"):
        head("softmx", 3)


def test_a_row_that_is_not_a_number_spoils_no_other():
    scores = torch.tensor([[0.3, 0.5], [torch.nan, 0.5], [torch.inf, 0.5]], requires_grad=True)
    log_probs = head("sparsemax", 2).log_probs(scores)
    assert log_probs[0].isfinite().all() and log_probs[1:].isnan().all()
    assert head("sparsemax", 2).project(scores.detach())[0].isfinite().all()
