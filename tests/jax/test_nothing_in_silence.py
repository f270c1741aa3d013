"""States that were wrong without an error, in JAX: each of these laws was broken once."""

from __future__ import annotations

import gc
import weakref
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
import catnat.jax as cj
from catnat import Natural, Parameterization, Tree
from catnat.core import caches
from catnat.jax import _dispatch
from catnat.jax._walk import Walk
from catnat_lab import reference

KEY = jax.random.key(0)


# -- an activation of one's own ----------------------------------------------------------------------------------


def steep(rate: float, said: float | None = None) -> catnat.Activation:
    """As a notebook's cell that is run again makes it: another class, of the same module and name."""

    @dataclass(frozen=True)
    class Steep(catnat.Activation):
        def logit(self, offset: Any, xp: Any) -> Any:
            return rate * offset

        def slope(self, offset: Any, xp: Any) -> Any:
            return (said or rate) * xp.ones_like(offset)

        def inverse(self, logit: Any, xp: Any) -> Any:
            return logit / rate

    return Steep()


def test_two_activations_of_one_name_are_two() -> None:
    x = jnp.linspace(-1, 1, 5)
    early, late = (Parameterization(6, steep(rate), center=0.0) for rate in (1.0, 3.0))
    before, after = cj.catnat(x, early), cj.catnat(x, late)
    np.testing.assert_array_equal(cj.catnat(x, early), before)
    np.testing.assert_allclose(before, cj.catnat(x, Parameterization(6, "sigmoid", center=0.0)), rtol=1e-5)
    np.testing.assert_allclose(after, cj.catnat(3 * x, Parameterization(6, "sigmoid", center=0.0)), rtol=1e-5)


def test_a_slope_that_is_not_the_logits_is_refused_or_not_believed() -> None:
    with pytest.raises(ValueError, match=r"Steep\.slope must be that of its logit"):
        Parameterization(6, steep(1.0, said=2.0))

    @dataclass(frozen=True)
    class Far(catnat.Activation):  # wrong so far out that a look at it near the centre finds nothing
        def logit(self, offset: Any, xp: Any) -> Any:
            return offset

        def slope(self, offset: Any, xp: Any) -> Any:
            return xp.where(xp.abs(offset) > 5, 9.0, 1.0)

        def inverse(self, logit: Any, xp: Any) -> Any:
            return logit

    x = jnp.array([6.0, -7.0, 1.0])
    far, sigmoid = (Parameterization(4, of, center=0.0) for of in (Far(), "sigmoid"))
    for function in (cj.log_catnat, lambda s, pi: cj.log_prob(s, jnp.array(3), pi), cj.fisher_diagonal):
        found, wanted = (jax.jacrev(lambda s, pi=pi, f=function: f(s, pi))(x) for pi in (far, sigmoid))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


# -- layouts and widths ------------------------------------------------------------------------------------------


def test_a_loss_of_an_ambiguous_layout_is_refused_and_an_axis_settles_it() -> None:
    scores, labels = jnp.zeros((2, 3, 3)), jnp.zeros((2, 3), jnp.int32)
    with pytest.raises(ValueError, match=r"axis must be given.*axis=-1 or axis=1; got scores of shape \(2, 3, 3\)"):
        cj.cross_entropy(scores, labels, 4)
    for axis in (-1, 1):
        assert cj.cross_entropy(scores, labels, 4, axis=axis) == pytest.approx(np.log(4))
    assert cj.cross_entropy(jnp.zeros((2, 5, 3)), jnp.zeros((2, 5), int), 4) == pytest.approx(np.log(4))
    with pytest.raises(ValueError, match="scores must hold num_classes - 1 = 3"):
        cj.cross_entropy(jnp.zeros((2, 3, 5)), jnp.zeros((2, 5), int), 4)


@pytest.mark.parametrize("call", [cj.log_catnat, cj.entropy, cj.mode, lambda x, k: cj.sample(KEY, x, k)])
def test_log_probabilities_are_not_taken_for_scores(call: Any) -> None:
    with pytest.raises(ValueError, match="Make the last layer 9 wide; logits or log-prob"):
        call(cj.CatnatLinear.init(KEY, 3, 10)(jnp.ones((2, 3))), 10)


# -- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8, 64, 1024])
@pytest.mark.parametrize("activation", ["natural", "sigmoid", "paper"])
def test_uniform_scores_give_exactly_one_over_the_number_of_classes(size: int, activation: str) -> None:
    p = cj.catnat(jnp.zeros((2, size - 1)), Parameterization(size, activation))
    assert (p == 1 / size).all()


@pytest.mark.parametrize("tree", ["balanced", "chain"])
@pytest.mark.parametrize("size", [3, 100])
def test_log_probabilities_come_back_however_small(tree: str, size: int) -> None:
    pi = Parameterization(size, "sigmoid", getattr(Tree, tree)(size))
    log_p = -100.0 * np.arange(size)
    log_p[1] = -0.5
    exact = log_p - np.logaddexp.reduce(log_p)
    found = cj.log_catnat(cj.scores_from_log_probs(jnp.asarray(log_p, jnp.float32), pi), pi)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["balanced", "chain"])
def test_masses_of_a_deep_tree_are_those_of_a_shallow_one(kind: str) -> None:
    size = 97
    pi = Parameterization(size, "natural", Tree.chain(size) if kind == "chain" else Tree.huffman(2.0 ** -np.arange(97)))
    p = np.random.default_rng(0).dirichlet(np.ones(size), 3)
    with jax.enable_x64(True):
        scores = cj.scores_from_log_probs(np.log(p), pi)
        np.testing.assert_allclose(scores, cj.scores_from_probs(p, pi), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(reference.log_catnat(np.asarray(scores), pi), np.log(p), rtol=1e-9)
        pulled = jax.grad(lambda lp: cj.scores_from_log_probs(lp, pi).sum())(jnp.asarray(np.log(p)))
        wanted = jax.grad(lambda lp: cj.scores_from_probs(jnp.exp(lp), pi).sum())(jnp.asarray(np.log(p)))
        np.testing.assert_allclose(pulled, wanted, rtol=1e-8, atol=1e-10)


def test_masses_that_make_no_distribution_are_refused() -> None:
    for probs, message in [
        ([[0.5, 0.5], [0.0, 0.0]], r"probs must give some class a mass in every row; row \(1,\) has none"),
        ([0.0, np.inf], "probs must be finite and at least 0; it holds inf"),
        ([0.5, np.nan], "probs must be finite and at least 0; it holds nan"),
        ([1.5, -0.5], "probs must be finite and at least 0; it holds -0.5"),
    ]:
        with pytest.raises(ValueError, match=message):
            cj.scores_from_probs(jnp.array(probs), 2)
    for log_probs, message in [
        ([-np.inf, -np.inf], r"log_probs must give some class a mass"),
        ([0.0, np.inf], r"log_probs must be below infinity, and no NaN; it holds inf"),
    ]:
        with pytest.raises(ValueError, match=message):
            cj.scores_from_log_probs(jnp.array(log_probs), 2)


def test_probabilities_that_underflow_have_a_finite_gradient() -> None:
    target = jnp.array([0.2, 0.3, 0.5])
    loss = lambda p: (cj.catnat(cj.scores_from_probs(p, 3), 3) * target).sum()  # noqa: E731
    assert jnp.isfinite(jax.grad(loss)(jnp.array([1.0, 0.0, 0.0]))).all()


def test_the_largest_score_has_a_finite_smoothed_loss() -> None:
    largest = jnp.full((1, 2), jnp.finfo(jnp.float32).max)
    pi = Parameterization(3, Natural(tail=0.5), center=0.0)
    assert jnp.isfinite(cj.cross_entropy(largest * jnp.array([1.0, 0.0]), jnp.array([2]), pi, label_smoothing=0.1))


# -- what is kept ------------------------------------------------------------------------------------------------


def test_a_plan_is_immutable_and_one_of_equal_ones_serves() -> None:
    first, second = (_dispatch.plan_for(Parameterization(7, tree=Tree.chain(7)), np.dtype("f4")) for _ in range(2))
    assert first is second and Walk(first) == Walk(second) and hash(first) == hash(second)
    with pytest.raises(FrozenInstanceError):
        first.depth = 3  # type: ignore[misc]


def test_plans_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = _dispatch.plan_for(200, np.dtype("f4")).nbytes
    monkeypatch.setattr(caches, "MAX_BYTES", 5 * cost)
    for size in range(200, 230):
        _dispatch.plan_for(size, np.dtype("f4"))
    assert 0 < _dispatch._plans.total <= 5 * cost


@pytest.mark.slow  # all programs are dropped, and all that lives is looked through for the tree
def test_plans_are_dropped_with_their_programs() -> None:
    catnat.clear_caches()
    pi = Parameterization(9, tree=Tree.huffman(np.arange(9.0)))
    tree = weakref.ref(pi.tree)
    assert cj.log_catnat(jnp.zeros(8), pi).shape == (9,) and Walk.log_probs._cache_size() > 0
    del pi
    catnat.clear_caches()
    assert not _dispatch._plans and Walk.log_probs._cache_size() == 0
    jax.clear_caches()  # JAX's own, which keep what was traced
    gc.collect()
    assert tree() is None


def test_sampling_from_a_chain_takes_no_table_of_draws_by_classes() -> None:
    pi, draws = Parameterization(2000, "sigmoid", Tree.chain(2000)), 4096
    made = jax.make_jaxpr(lambda s: cj.sample(KEY, s, pi, sample_shape=(draws,)))(jnp.zeros(1999))
    sizes = [v.aval.size for eqn in every_equation(made.jaxpr) for v in eqn.outvars if hasattr(v.aval, "size")]
    assert draws <= max(sizes) < 20 * draws


def every_equation(jaxpr: Any) -> Any:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from every_equation(inner)
