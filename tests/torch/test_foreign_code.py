"""What other libraries' code does with ours: each of these once failed."""

from __future__ import annotations

import io
from functools import partial

import pytest
import torch
from torch import distributions as D
from torch.distributions import kl_divergence

import catnat
import catnat.torch as ct

SCORES = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
Policy = partial(ct.CatnatCategorical, parameterization=6, validate_args=False)


def compiled(function):
    """As a user's first compilation finds it: PyTorch turns validation off, for it cannot compile its checks."""
    torch.compiler.reset()
    D.Distribution.set_default_validate_args(False)
    return torch.compile(function, fullgraph=True, backend="eager")


def second_reads(scores):
    policy = Policy(scores)
    return policy.probs + policy.probs + policy.logits + policy.logits + policy.mode.unsqueeze(-1)


def mixture(scores):
    parts = D.Normal(torch.zeros(4, 6), torch.ones(4, 6), validate_args=False)
    return D.MixtureSameFamily(Policy(scores), parts, validate_args=False).log_prob(torch.zeros(4))


CALLS = {
    "second reads": second_reads,
    "hasattr": lambda s: Policy(s).probs if hasattr(Policy(s), "mode") else s,
    "a first KL": lambda s: kl_divergence(Policy(s), Policy(2 * s)),
    "a first KL to torch's": lambda s: kl_divergence(Policy(s), D.Categorical(logits=torch.zeros(4, 6))),
    "mixture": mixture,
    "by default": lambda s: ct.CatnatCategorical(s, 6).log_prob(torch.zeros(4, dtype=torch.long)),
}


@pytest.mark.parametrize("name", CALLS)
def test_compiled_in_one_graph(name):
    expected = CALLS[name](SCORES)
    torch.testing.assert_close(compiled(CALLS[name])(SCORES), expected)


def test_straight_through_samples_compile():
    drawn = compiled(lambda s: ct.OneHotCatnatStraightThrough(s, 6, validate_args=False).rsample())(SCORES)
    torch.testing.assert_close(drawn.sum(-1), torch.ones(4))


@pytest.mark.slow
def test_a_first_kl_in_a_fresh_process(tmp_path):
    # in this one somebody may have asked before
    import subprocess
    import sys

    code = (
        "import torch, catnat.torch as ct\n"
        "kl = lambda s: torch.distributions.kl_divergence(ct.CatnatCategorical(s, 4, validate_args=False),"
        " ct.CatnatCategorical(2 * s, 4, validate_args=False))\n"
        "print(torch.compile(kl, fullgraph=True, backend='eager')(torch.ones(2, 3)).shape)\n"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert outcome.stdout.strip() == "torch.Size([2])", outcome.stderr[-2000:]


@pytest.mark.parametrize("tree", [None, catnat.Tree.chain(6)], ids=["heap", "chain"])
def test_tensors_without_values(tree):
    from torch._subclasses.fake_tensor import FakeTensorMode

    pi = catnat.Parameterization(6, "natural", tree)
    with FakeTensorMode() as mode:
        log_p, entropy = ct.LogCatnat(pi)(torch.randn(4, 5)), ct.entropy(mode.from_tensor(SCORES), pi)
    assert (log_p.shape, entropy.shape) == ((4, 6), (4,))
    assert ct.log_catnat(SCORES, pi).shape == (4, 6)  # nothing of it was kept


def test_checkpoints_may_hold_parameterizations():
    kept = {
        "a": catnat.Parameterization(5, "paper", catnat.Tree.chain(5), 0.1),
        "b": catnat.Parameterization(3, catnat.Natural(tail=0.2)),
        "c": catnat.Parameterization(4, "sigmoid"),
    }
    file = io.BytesIO()
    torch.save(kept, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == kept


@pytest.mark.parametrize("kind", [ct.CatnatCategorical, ct.OneHotCatnat])
def test_distributions_are_rebuilt_from_probs_or_logits(kind):
    probs = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])
    torch.testing.assert_close(kind(probs=probs).probs, probs)
    torch.testing.assert_close(
        kind(logits=probs.log() + 3, parameterization=catnat.Parameterization(3, "sigmoid")).probs, probs
    )
    with pytest.raises(ValueError, match="exactly one of scores, probs and logits must be given; got none"):
        kind()
    with pytest.raises(ValueError, match="got scores and probs"):
        kind(torch.zeros(2), 3, probs=probs)


def test_an_empty_batch_passes_validation():
    assert ct.CatnatCategorical(torch.zeros(0, 3), 4, validate_args=True).sample().shape == (0,)
    assert ct.OneHotCatnat(torch.zeros(0, 3), 4, validate_args=True).log_prob(torch.zeros(0, 4)).shape == (0,)
    assert ct.MultiCatnat(torch.zeros(0, 5), [3, 4], validate_args=True).sample().shape == (0, 2)
    empty = torch.zeros(0, 3, requires_grad=True)
    drawn = ct.RelaxedOneHotCatnat(0.5, empty, 4, validate_args=True).rsample()
    (gradient,) = torch.autograd.grad(drawn.sum(), empty)
    assert (drawn.shape, gradient.shape) == ((0, 4), (0, 3))
    assert ct.RelaxedOneHotCatnat(0.5, empty, 4, validate_args=True).log_prob(drawn).shape == (0,)
    relaxed, full = ct.RelaxedOneHotCatnat(0.5, SCORES, 6), ct.log_catnat(SCORES, 6)
    value = relaxed.rsample((3,))
    theirs = D.RelaxedOneHotCategorical(torch.tensor(0.5), logits=full).log_prob(value)
    torch.testing.assert_close(relaxed.log_prob(value), theirs)


def test_many_classes_pass_validation():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        relaxed = ct.RelaxedOneHotCatnat(5.0, 2 * torch.randn(9999, generator=generator), 10_000, validate_args=True)
        assert relaxed.log_prob(relaxed.rsample()).isfinite()


def test_several_parts_can_be_enumerated():
    several = ct.MultiCatnat(torch.randn(2, 6), [3, 5])
    values = several.enumerate_support()
    assert values.shape == (15, 2, 2)
    torch.testing.assert_close(several.log_prob(values).exp().sum(0), torch.ones(2))
    assert several.enumerate_support(expand=False).shape == (15, 1, 2)
    assert not several.support.check(torch.tensor([0, 5])) and several.support.check(torch.tensor([2, 4]))


def test_eight_bits_and_lists_get_a_clear_error():
    with pytest.raises(TypeError, match=r"one of float32, float64, float16, bfloat16; got torch.float8_e4m3fn"):
        ct.log_catnat(SCORES.to(torch.float8_e4m3fn), 6)
    with pytest.raises(TypeError, match=r"weight must be a torch\.Tensor, one number per class; got list"):
        ct.cross_entropy(SCORES, torch.zeros(4, dtype=torch.long), 6, weight=[1.0] * 6)


# -- what is given in place of scores ----------------------------------------------------------------------------

KINDS = {
    "integer": ct.CatnatCategorical,
    "one-hot": ct.OneHotCatnat,
    "relaxed": partial(ct.RelaxedOneHotCatnat, 0.5),
}
EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@EACH_KIND
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"probs": [[1.0, 1.0], [0.0, 0.0]]}, r"probs must give some class a mass in every row; row \(1,\) has none"),
        ({"logits": [-torch.inf, -torch.inf]}, "logits must give some class a mass in every row; it has none"),
        ({"probs": [1.0, torch.inf]}, "probs must be finite and at least 0; it holds inf"),
        ({"probs": [1.0, -0.5]}, r"probs must be finite and at least 0; it holds -0\.5"),
        ({"logits": [0.0, torch.inf]}, "logits must be below infinity, and no NaN; it holds inf"),
        ({"logits": [0.0, torch.nan]}, "logits must be below infinity, and no NaN; it holds nan"),
    ],
    ids=str,
)
def test_what_is_no_distribution_is_refused(kind, given, told):
    for validate in (True, False):
        with pytest.raises(ValueError, match=told):
            kind(**{name: torch.tensor(value) for name, value in given.items()}, validate_args=validate)


@EACH_KIND
def test_whole_numbers_may_be_probs_and_logits(kind):
    quarter = torch.tensor([0.25, 0.75])
    torch.testing.assert_close(kind(probs=torch.tensor([1, 3])).probs, quarter)
    torch.testing.assert_close(kind(logits=torch.tensor([2, 2])).probs, torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("activation", ["natural", "sigmoid", "paper"])
def test_probabilities_that_underflowed_have_finite_gradients(activation):
    pi = catnat.Parameterization(4, activation)
    probs = torch.tensor([[0.0, 1, 0, 0], [1e-44, 0.5, 0.5, 0], [0.1, 0.2, 0.3, 0.4]], requires_grad=True)
    again = ct.catnat(ct.scores_from_probs(probs, pi), pi)
    torch.testing.assert_close(again, probs)
    (gradient,) = torch.autograd.grad((again * torch.arange(4.0)).sum(), probs)
    assert gradient.isfinite().all()
    # where nothing is certain it is that of p / sum p
    (expected,) = torch.autograd.grad((probs / probs.sum(-1, keepdim=True) * torch.arange(4.0)).sum(), probs)
    torch.testing.assert_close(gradient[2], expected[2])
    logits = torch.tensor([0.0, -torch.inf, 1.0, -200.0], requires_grad=True)
    back = ct.catnat(ct.scores_from_log_probs(logits, pi), pi)
    assert torch.autograd.grad((back * torch.arange(4.0)).sum(), logits)[0].isfinite().all()


# -- a change in place -------------------------------------------------------------------------------------------

ANSWERS = {
    "log_prob": lambda d: d.log_prob(d.enumerate_support()),
    "probs": lambda d: d.probs,
    "logits": lambda d: d.logits,
    "entropy": lambda d: d.entropy(),
    "mode": lambda d: d.mode,
    "mean": lambda d: d.mean.nan_to_num(),
    "expand": lambda d: d.expand((2, 4)).probs,
    "scores": lambda d: d.scores,
}


@pytest.mark.parametrize("kind", [ct.CatnatCategorical, ct.OneHotCatnat])
@pytest.mark.parametrize("masked", [False, True])
def test_a_change_in_place_changes_everything(kind, masked):
    scores, masking = SCORES.clone(), {"mask": torch.arange(6) != 2} if masked else {}
    ours = kind(scores, 6, **masking)
    for answer in ANSWERS.values():  # whatever was asked before
        answer(ours)
    scores.neg_()
    fresh = kind(-SCORES, 6, **masking)
    for name, answer in ANSWERS.items():
        torch.testing.assert_close(answer(ours), answer(fresh), msg=name)
    torch.testing.assert_close(kl_divergence(ours, fresh), torch.zeros(4), atol=1e-6, rtol=0)


def test_several_parts_change_together():
    scores = torch.randn(3, 6)
    several, fresh = ct.MultiCatnat(scores, [3, 5]), ct.MultiCatnat(-scores.clone(), [3, 5])
    values = several.enumerate_support()
    several.log_prob(values), several.entropy(), several.mode  # whatever was asked before
    scores.neg_()
    torch.testing.assert_close(several.log_prob(values), fresh.log_prob(values))
    torch.testing.assert_close(several.entropy(), fresh.entropy())
    torch.testing.assert_close(several.mode, fresh.mode)


def test_a_relaxed_distribution_reads_its_scores_once_as_torchs_does():
    scores = SCORES.clone()
    relaxed, fresh = ct.RelaxedOneHotCatnat(0.5, scores, 6), ct.RelaxedOneHotCatnat(0.5, SCORES.clone(), 6)
    scores.neg_()
    value = fresh.rsample()
    for of in (lambda d: d.log_prob(value), lambda d: d.probs, lambda d: d.logits, lambda d: d.scores):
        torch.testing.assert_close(of(relaxed), of(fresh))


# -- what torch.distributions knows of its own -------------------------------------------------------------------


def test_the_scores_constraint_has_its_transform():
    for kind in (ct.CatnatCategorical, ct.OneHotCatnat, ct.RelaxedOneHotCatnat, ct.MultiCatnat):
        for registry in (D.transform_to, D.biject_to):
            transform = registry(kind.arg_constraints["scores"])
            assert transform(SCORES).equal(SCORES)
            assert transform.log_abs_det_jacobian(SCORES, SCORES).equal(torch.zeros(4))
    support = ct.RelaxedOneHotCatnat(0.5, SCORES, 6).support
    for registry, wide in ((D.transform_to, SCORES), (D.biject_to, SCORES[:, :4])):
        assert support.check(registry(support)(wide)).all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [ct.CatnatCategorical, ct.OneHotCatnat, ct.OneHotCatnatStraightThrough])
def test_a_traced_sample_is_an_eager_one(kind):
    def draw(scores):
        return kind(scores, 6, validate_args=False).sample((20,))

    traced = torch.jit.trace(draw, (SCORES,), check_trace=False)
    found = []
    for function in (draw, traced):
        torch.manual_seed(7)
        found.append(function(2 * SCORES))
    assert torch.equal(*found)


def test_a_relaxed_temperature_may_be_learned():
    temperature = torch.tensor(0.7, requires_grad=True)
    relaxed = ct.RelaxedOneHotCatnat(temperature, SCORES, 6)
    theirs = D.RelaxedOneHotCategorical(temperature, logits=ct.log_catnat(SCORES, 6))
    value = theirs.sample()
    slopes = [torch.autograd.grad(d.log_prob(value).sum(), temperature)[0] for d in (relaxed, theirs)]
    torch.testing.assert_close(*slopes)
    assert slopes[0].abs() > 0
