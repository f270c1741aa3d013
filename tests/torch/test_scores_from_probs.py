"""The way back, from probabilities or their logarithms to scores: where some are 0, or too small for their dtype."""

from __future__ import annotations

import pytest
import torch

import catnat.torch as ct
from catnat import Parameterization, Tree

EACH = pytest.mark.parametrize(
    "pi",
    [Parameterization(6), Parameterization(6, "sigmoid", Tree.chain(6)), Parameterization(6, "paper")],
    ids=["heap", "chain", "paper"],
)


@EACH
def test_probabilities_that_are_none_pull_at_no_other(pi: Parameterization) -> None:
    log_p = torch.tensor([[0.0, -1.0, -200.0, -0.5, -150.0, -300.0]], requires_grad=True)
    probs = log_p.exp()  # three of them are 0 in float32, two of those side by side
    scores = ct.scores_from_probs(probs, pi)
    assert not scores.isnan().any()
    torch.testing.assert_close(ct.catnat(scores, pi), probs / probs.sum(), rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(ct.catnat(scores, pi)[0, 1], log_p)
    assert gradient.isfinite().all() and gradient[0, 1] > 0


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logarithms_keep_what_probabilities_lose(pi: Parameterization, dtype: torch.dtype) -> None:
    log_p = torch.tensor([0.0, -200.0, -300.0, -1.0, -201.0, -2.0], dtype=dtype).log_softmax(-1).requires_grad_()
    scores = ct.scores_from_log_probs(log_p, pi)
    found = ct.log_catnat(scores, pi)
    if pi != Parameterization(6, "paper"):  # whose probabilities end at what a score can tell from the end
        torch.testing.assert_close(found, log_p, rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(found[3], log_p)[0].isfinite().all()


def test_logarithms_need_not_be_normalised() -> None:
    log_p = torch.randn(4, 6)
    scores = ct.scores_from_log_probs(log_p, 6)
    torch.testing.assert_close(scores, ct.scores_from_log_probs(log_p + 7, 6), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ct.log_catnat(scores, 6), log_p.log_softmax(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scores, ct.scores_from_probs(log_p.exp(), 6), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"logits must hold one value a class: 6 .*; got 5"):
        ct.scores_from_log_probs(log_p[:, 1:], Parameterization(6))
