"""A draw with its log-probability and entropy is what the single functions say."""

import pytest
import torch

import catnat.torch as ct
from catnat import Parameterization


@pytest.mark.parametrize("name", ["sigmoid", "natural"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_draw_is_its_parts(name, masked, dtype):
    pi = Parameterization(18, name)
    scores = torch.randn(3, 40, 17).to(dtype).requires_grad_()
    masking = {}
    if masked:
        mask = torch.rand(40, 18) < 0.5
        mask[:, 3] = True
        masking = {"mask": mask}
    drawn = ct.draw(scores, pi, generator=torch.Generator().manual_seed(1), **masking)
    again = ct.sample(scores, pi, generator=torch.Generator().manual_seed(1), **masking)
    assert drawn.sample.dtype == torch.int64 and torch.equal(drawn.sample, again)
    assert drawn.log_prob.dtype == drawn.entropy.dtype == dtype
    if masked:
        assert mask.expand(3, 40, 18).gather(-1, drawn.sample.unsqueeze(-1)).all()
    given = ct.draw(scores, pi, index=drawn.sample, **masking)
    assert given.sample is drawn.sample
    for found in (drawn, given):
        torch.testing.assert_close(found.log_prob, ct.log_prob(scores, drawn.sample, pi, **masking))
        assert torch.equal(found.entropy, ct.entropy(scores, pi, **masking))
    loss = (drawn.log_prob.double() + 2 * drawn.entropy.double()).sum()
    parts = ct.log_prob(scores, again, pi, **masking).double() + 2 * ct.entropy(scores, pi, **masking).double()
    # the parts' gradients are rounded to 16 bits one by one, the draw's once
    tolerance = {"rtol": 2e-2, "atol": 8e-3} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(*(torch.autograd.grad(v, scores)[0] for v in (loss, parts.sum())), **tolerance)


def test_draws_compile():
    scores, index = torch.randn(5, 17, requires_grad=True), torch.arange(5)
    compiled = torch.compile(lambda s, k: ct.draw(s, 18, index=k), fullgraph=True, backend="aot_eager")(scores, index)
    for a, b in zip(compiled, ct.draw(scores, 18, index=index), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_compiled_draws_take_another_size_of_batch():
    torch._dynamo.reset()
    compiled = torch.compile(lambda s: (ct.draw(s, 10), ct.sample(s, 10)), fullgraph=True, backend="aot_eager")
    for rows in (3, 5, 7):
        drawn, sample = compiled(torch.randn(rows, 9))
        assert drawn.sample.shape == drawn.entropy.shape == sample.shape == (rows,)


def test_bad_input():
    scores = torch.randn(5, 17)
    with pytest.raises(IndexError, match=r"index .* \[0, 17\]"):
        ct.draw(scores, 18, index=torch.full((5,), 18))
    with pytest.raises(ValueError, match=r"index must have the scores' batch shape \(5,\); got \(4,\)"):
        ct.draw(scores, 18, index=torch.zeros(4, dtype=torch.int64))
    with pytest.raises(TypeError, match="index must be an integer"):
        ct.draw(scores, 18, index=torch.zeros(5))
    with pytest.raises(TypeError, match="mask must be a boolean"):
        ct.draw(scores, 18, index=torch.zeros(5, dtype=torch.int64), mask=[True] * 18)
    with pytest.raises(TypeError, match="scores must be"):
        ct.draw([1.0], 2)
    assert ct.draw(torch.zeros(0, 17), 18).entropy.shape == (0,)
    assert ct.draw(torch.zeros(4, 0), 1).sample.tolist() == [0] * 4
