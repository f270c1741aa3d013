"""catnat in Pyro against the float64 reference: values, shapes, enumeration and inference."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch.distributions import kl_divergence
from torch.testing import assert_close

import catnat.torch as ct
from catnat_lab import reference
from tests.integrations import oracle
from tests.integrations.oracle import DATA, MASKS, PARAMETERIZATIONS, SPREAD, K
from tests.thinned import thinned

pyro = pytest.importorskip("pyro", reason="Pyro is not installed")

import pyro.distributions as dist  # noqa: E402
from pyro import poutine  # noqa: E402
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, config_enumerate, infer_discrete  # noqa: E402

from catnat.integrations.pyro import (  # noqa: E402
    CatnatCategorical,
    OneHotCatnat,
    OneHotCatnatStraightThrough,
    RelaxedOneHotCatnat,
)

EACH = pytest.mark.parametrize("pi", PARAMETERIZATIONS.values(), ids=PARAMETERIZATIONS)
MASKED = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    with pyro.validation_enabled():
        yield


def tensor(array):
    return None if array is None else torch.tensor(array)


@EACH
@MASKED
def test_values_are_the_references(pi, mask):
    x = oracle.draw_scores(4)
    scores = tensor(x).requires_grad_()
    ours = CatnatCategorical(scores, pi, mask=tensor(mask))
    log_p = reference.log_catnat(x, pi, mask)
    assert isinstance(ours, ct.CatnatCategorical) and isinstance(ours, dist.Distribution)
    assert_close(ours.log_prob(ours.enumerate_support()).T.detach(), tensor(log_p))
    assert_close(ours.entropy().detach(), tensor(reference.entropy(x, pi, mask)))
    (slope,) = torch.autograd.grad(ours.entropy().sum(), scores)
    assert_close(slope, tensor(oracle.gradient(lambda s: reference.entropy(s, pi, mask), x)), rtol=1e-6, atol=1e-8)
    for other in (CatnatCategorical(tensor(x[::-1].copy()), pi), dist.Categorical(logits=tensor(log_p[::-1].copy()))):
        log_q = reference.log_catnat(x[::-1], pi) if isinstance(other, CatnatCategorical) else log_p[::-1]
        assert_close(kl_divergence(ours, other).detach(), tensor(oracle.kl(log_p, log_q)))


@MASKED
@pytest.mark.parametrize("kind", [CatnatCategorical, OneHotCatnat, OneHotCatnatStraightThrough])
def test_expand_keeps_the_class_and_the_mask(kind, mask):
    ours = kind(tensor(oracle.draw_scores(3)), PARAMETERIZATIONS["sigmoid"], mask=tensor(mask))
    wide = ours.expand_by([2])
    drawn = wide()
    assert type(wide) is kind and wide.batch_shape == (2, 3) and drawn.shape == (2, 3, *ours.event_shape)
    assert_close(wide.log_prob(drawn), ours.log_prob(drawn))
    assert wide.to_event(1).log_prob(drawn).shape == (2,)
    half = torch.tensor([True, False, True])
    assert_close(ours.mask(half).log_prob(drawn), torch.where(half, ours.log_prob(drawn), 0.0))
    if kind is CatnatCategorical:
        assert kind.infer_shapes(scores=(2, 3, K - 1)) == ((2, 3), ())


@pytest.mark.parametrize(
    ("pi", "mask", "batch"), thinned(product(PARAMETERIZATIONS.values(), MASKS.values(), [(), (5,)]), every=6)
)
def test_enumeration_is_the_exact_marginal(pi, mask, batch):
    x = oracle.draw_scores(*batch)
    scores = tensor(x).requires_grad_()

    @config_enumerate
    def model():
        with pyro.plate("data", len(DATA)):
            k = pyro.sample("k", CatnatCategorical(scores, pi, mask=tensor(mask)))
            pyro.sample("x", dist.Normal(k.double(), SPREAD), obs=tensor(DATA))

    loss = TraceEnum_ELBO(max_plate_nesting=1).differentiable_loss(model, lambda: None)
    marginal = lambda s: oracle.mixture(reference.log_catnat(s, pi, mask))  # noqa: E731
    assert_close(-loss.detach(), tensor(marginal(x).sum()))
    (slope,) = torch.autograd.grad(-loss, scores)
    assert_close(slope, tensor(oracle.gradient(marginal, x)), rtol=1e-6, atol=1e-7)


def test_enumeration_of_two_latents_in_a_chain():
    # a Markov chain of two steps: log sum over i, j of p(i) p(j | i) p(x | j)
    pi, first, then = PARAMETERIZATIONS["natural"], oracle.draw_scores(), oracle.draw_scores(K, seed=1)

    @config_enumerate
    def model():
        i = pyro.sample("i", CatnatCategorical(tensor(first), pi))
        j = pyro.sample("j", CatnatCategorical(tensor(then)[i], pi))
        pyro.sample("x", dist.Normal(j.double(), SPREAD), obs=torch.tensor(DATA[0]))

    log_j = np.log(np.exp(reference.log_catnat(first, pi)) @ np.exp(reference.log_catnat(then, pi)))
    assert TraceEnum_ELBO().loss(model, lambda: None) == pytest.approx(-oracle.mixture(log_j)[0], abs=1e-9)


def test_posterior_classes_of_infer_discrete_are_the_likeliest():
    x = oracle.draw_scores()

    @config_enumerate
    def model():
        with pyro.plate("data", len(DATA)):
            k = pyro.sample("k", CatnatCategorical(tensor(x), K))
            pyro.sample("x", dist.Normal(k.double(), SPREAD), obs=tensor(DATA))
        return k

    joint = reference.log_catnat(x, PARAMETERIZATIONS["natural"]) - 0.5 * ((DATA[:, None] - np.arange(K)) / SPREAD) ** 2
    found = infer_discrete(model, first_available_dim=-2, temperature=0)()
    assert found.tolist() == joint.argmax(-1).tolist()


def fit(guide_of, model_of, loss, steps, rate=0.05):
    svi = SVI(model_of, guide_of, pyro.optim.Adam({"lr": rate}), loss)
    for _ in range(steps):
        svi.step()


def test_svi_finds_the_exact_posterior():
    # one latent and one observation: the posterior is proportional to the prior times the likelihood
    likelihood = torch.tensor([0.5, 0.1, 0.7, 0.2, 0.9, 0.3], dtype=torch.float64)

    def model():
        k = pyro.sample("k", CatnatCategorical(torch.zeros(K - 1, dtype=torch.float64), K))
        pyro.factor("x", likelihood.log()[k])

    def guide():
        scores = pyro.param("scores", torch.zeros(K - 1, dtype=torch.float64))
        pyro.sample("k", CatnatCategorical(scores, K), infer={"enumerate": "parallel"})

    fit(guide, model, TraceEnum_ELBO(), 250)
    assert_close(ct.catnat(pyro.param("scores").detach(), K), likelihood / likelihood.sum(), atol=1e-3, rtol=0)


@pytest.mark.slow  # enumeration above has the exact gradient
def test_svi_of_a_parameter_on_parts_of_a_plate():
    data = torch.tensor(np.random.default_rng(0).choice(K, size=500, p=[0.05, 0.1, 0.15, 0.2, 0.2, 0.3]))

    def model():
        scores = pyro.param("scores", torch.zeros(K - 1))
        with pyro.plate("data", 500, subsample_size=100) as rows:
            pyro.sample("k", CatnatCategorical(scores, K), obs=data[rows])

    fit(lambda: None, model, Trace_ELBO(), 400, 0.02)
    share = torch.bincount(data, minlength=K) / 500
    assert_close(ct.catnat(pyro.param("scores").detach(), K), share, atol=0.03, rtol=0)


def test_straight_through_samples_carry_a_gradient_in_a_guide():
    scores = torch.zeros(K - 1, requires_grad=True)
    with poutine.trace() as trace:
        one_hot = pyro.sample("z", OneHotCatnatStraightThrough(scores, K))
    assert one_hot.sum() == 1 and trace.trace.nodes["z"]["fn"].has_rsample
    (one_hot @ torch.arange(float(K))).backward()
    slopes = torch.autograd.functional.jacobian(lambda s: ct.catnat(s, K), torch.zeros(K - 1))
    assert_close(scores.grad, slopes.T @ torch.arange(float(K)))


def test_a_forbidden_class_is_never_drawn():
    allowed = tensor(oracle.ALLOWED)
    drawn = CatnatCategorical(tensor(oracle.draw_scores()), K, mask=allowed).expand([100_000])()
    assert allowed[drawn].all()


@pytest.mark.parametrize(
    ("kind", "event"),
    [(CatnatCategorical, ()), (OneHotCatnat, (K,)), (OneHotCatnatStraightThrough, (K,)), (RelaxedOneHotCatnat, (K,))],
)
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_shapes_are_known_before_there_are_values(kind, event, batch):
    more = {"temperature": ()} if kind is RelaxedOneHotCatnat else {}
    for given in (
        {"scores": (*batch, K - 1)},
        {"probs": (*batch, K)},
        {"logits": (*batch, K)},
        *([] if more else [{"scores": (K - 1,), "mask": (*batch, K)}]),
    ):
        assert kind.infer_shapes(**more, **given) == (batch, event)
        dtypes = {"mask": torch.bool}
        made = {name: torch.ones(shape, dtype=dtypes.get(name)) for name, shape in (more | given).items()}
        if "scores" in given:
            made["parameterization"] = K
        assert (kind(**made).batch_shape, kind(**made).event_shape) == (batch, event)
    with pytest.raises(ValueError, match="agree on the number of classes"):
        kind.infer_shapes(scores=(K,), probs=(K,))


def test_relaxed_samples_in_a_plate():
    scores = tensor(oracle.draw_scores()).requires_grad_()
    with pyro.plate("rows", 3):
        drawn = pyro.sample("z", RelaxedOneHotCatnat(torch.tensor(0.5), scores, K))
    assert drawn.shape == (3, K)
    assert torch.autograd.grad(drawn[:, 0].sum(), scores)[0].abs().sum() > 0


def test_pyro_finds_what_depends_on_a_class():
    # it follows values by tensors of a class of its own, whose shapes are plain tuples
    def model():
        scores = pyro.sample("scores", dist.Normal(torch.zeros(K - 1), 1.0).to_event(1))
        k = pyro.sample("k", CatnatCategorical(scores, K))
        pyro.sample("x", dist.Normal(torch.arange(float(K))[k], 1.0), obs=torch.ones(()))

    found = pyro.infer.inspect.get_dependencies(model)["prior_dependencies"]
    assert found == {"scores": {"scores": set()}, "k": {"scores": set(), "k": set()}, "x": {"k": set(), "x": set()}}
