"""The oracle's tree against sums over paths and classes that use no tree at all."""

from __future__ import annotations

import numpy as np
import pytest

from catnat import Natural, Parameterization, Sigmoid
from catnat_lab import reference
from tests.core.arsinh import Arsinh
from tests.core.trees import KINDS, make_tree

ACTIVATIONS = [
    Sigmoid(),
    Natural(),
    Natural(amplitude=2.0, tail=0.01),
    Natural(tail=0.0, floor=0.0),
    Natural(amplitude=2.0, tail=0.0, floor=1e-4),
    Arsinh(),
]
SIZES = (1, 2, 3, 6, 8, 13)
GRID = [  # `make test` has every tree of every size, with two activations each
    pytest.param(
        Parameterization(size, activation, make_tree(kind, size, seed=7)),
        id=f"{kind}-{size}-{activation!r}",
        marks=() if (a + b + c) % 3 == 0 else pytest.mark.slow,
    )
    for a, size in enumerate(SIZES)
    for b, kind in enumerate(KINDS)
    for c, activation in enumerate(ACTIVATIONS)
]
everywhere = pytest.mark.parametrize("pi", GRID)


def scores_for(pi: Parameterization, rows: int = 3, seed: int = 0) -> np.ndarray:
    """Scores well inside every node's range; where there is none, inside and beyond the joints."""
    bounded = isinstance(pi.activation, Natural) and pi.activation.tail == 0
    half = pi.activation.amplitude / 2 if bounded else 4.0
    return pi.centers + np.random.default_rng(seed).uniform(-0.8 * half, 0.8 * half, (rows, pi.num_nodes))


def masks_for(pi: Parameterization, rows: int = 3) -> np.ndarray:
    """Random masks; the first row has one class left."""
    mask = np.random.default_rng(1).random((rows, pi.num_classes)) < 0.6
    mask[0] = False
    mask[np.arange(rows), np.arange(rows) % pi.num_classes] = True
    return mask


def brute_probabilities(scores: np.ndarray, pi: Parameterization) -> np.ndarray:
    """p_k as a product along `Tree.path`."""
    log_0, log_1, _, _ = reference.activation(scores, pi)
    a = np.stack([np.exp(log_0), np.exp(log_1)])
    columns = [
        np.prod([a[bit, :, node - 1] for node, bit in pi.tree.path(k)], axis=0) * np.ones(len(scores))
        for k in range(pi.num_classes)
    ]
    return np.stack(columns, -1)


@everywhere
def test_probabilities_are_products_along_paths_and_sum_to_one(pi: Parameterization) -> None:
    scores = scores_for(pi)
    p = reference.catnat(scores, pi)
    np.testing.assert_allclose(p, brute_probabilities(scores, pi), rtol=1e-13)
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-14)


@everywhere
def test_gradient_is_the_limit_of_differences(pi: Parameterization) -> None:
    scores, step = scores_for(pi), 1e-6
    upstream = np.random.default_rng(2).normal(size=(len(scores), pi.num_classes))
    found = reference.log_catnat_gradient(scores, upstream, pi)
    for node in range(pi.num_nodes):
        nudge = step * np.eye(pi.num_nodes)[node]
        ahead, behind = reference.log_catnat(scores + nudge, pi), reference.log_catnat(scores - nudge, pi)
        expected = np.sum(upstream * (ahead - behind), -1) / (2 * step)
        np.testing.assert_allclose(found[:, node], expected, rtol=1e-6, atol=1e-7)


@everywhere
def test_reach_is_the_mass_of_the_classes_below(pi: Parameterization) -> None:
    scores = scores_for(pi)
    p, found = reference.catnat(scores, pi), reference.reach(scores, pi)
    for node in range(1, pi.num_classes):
        below = [k for k in range(pi.num_classes) if node in dict(pi.tree.path(k))]
        np.testing.assert_allclose(found[:, node - 1], p[:, below].sum(-1), rtol=1e-13)


@everywhere
def test_fisher_matrix_is_diagonal_and_theorem_one_gives_it(pi: Parameterization) -> None:
    scores = scores_for(pi)
    expected = reference.fisher_diagonal(scores, pi)[..., None] * np.eye(pi.num_nodes)
    np.testing.assert_allclose(reference.fisher_matrix(scores, pi), expected, rtol=1e-11, atol=1e-13)


@everywhere
def test_natural_gradient_solves_the_fisher_system(pi: Parameterization) -> None:
    scores = scores_for(pi)
    gradient = np.random.default_rng(3).normal(size=scores.shape)
    for damping in (0.0, 0.1):
        found = reference.natural_gradient(scores, gradient, pi, damping)
        system = reference.fisher_matrix(scores, pi) + damping * np.eye(pi.num_nodes)
        np.testing.assert_allclose(np.einsum("...ij,...j->...i", system, found), gradient, rtol=1e-9, atol=1e-9)


@everywhere
def test_summaries_are_sums_over_the_classes(pi: Parameterization) -> None:
    scores, others = scores_for(pi), scores_for(pi, seed=5)
    p, q = reference.catnat(scores, pi), reference.catnat(others, pi)
    np.testing.assert_allclose(reference.entropy(scores, pi), -np.sum(p * np.log(p), -1), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        reference.kl_divergence(scores, others, pi), np.sum(p * np.log(p / q), -1), rtol=1e-11, atol=1e-14
    )
    assert (reference.mode(scores, pi) == p.argmax(-1)).all()
    for k in range(pi.num_classes):
        index = np.full(len(scores), k)
        np.testing.assert_allclose(reference.log_prob(scores, index, pi), np.log(p[:, k]), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(reference.cross_entropy(scores, index, pi), -np.log(p[:, k]), rtol=1e-12, atol=1e-14)


@everywhere
def test_scores_from_probs_is_the_inverse_map(pi: Parameterization) -> None:
    # even probabilities, since a floor keeps a branch from becoming rarer than it
    p = np.random.default_rng(4).dirichlet(np.full(pi.num_classes, 4.0), size=3)
    for scale in (1.0, 7.0):  # masses need not sum to one
        np.testing.assert_allclose(reference.catnat(reference.scores_from_probs(scale * p, pi), pi), p, rtol=1e-9)


@everywhere
def test_a_mask_conditions_on_the_allowed_classes(pi: Parameterization) -> None:
    scores, mask = scores_for(pi), masks_for(pi)
    p = reference.catnat(scores, pi) * mask
    found = reference.catnat(scores, pi, mask)
    np.testing.assert_allclose(found, p / p.sum(-1, keepdims=True), rtol=1e-12)
    assert (np.isneginf(reference.log_catnat(scores, pi, mask)) == ~mask).all()


def test_allowed_classes_without_mass_share_it_evenly() -> None:
    pi = Parameterization(4, "paper")
    scores = np.array([10.0, 0.0, 0.0])  # certainly right: classes 0 and 1 have no mass
    found = reference.catnat(scores, pi, np.array([True, True, False, False]))
    np.testing.assert_allclose(found, [0.5, 0.5, 0, 0], rtol=1e-15)


def test_entropy_and_kl_count_a_class_without_mass_as_nothing() -> None:
    pi = Parameterization(4, "paper")
    certain, even = np.array([10.0, 0.0, 10.0]), np.zeros(3)
    assert reference.entropy(certain, pi) == 0
    assert reference.kl_divergence(certain, even, pi) == pytest.approx(np.log(4), rel=1e-15)
    assert reference.kl_divergence(even, certain, pi) == np.inf


def test_softmax_fisher_is_the_covariance_of_the_one_hot_class() -> None:
    logits = np.random.default_rng(6).normal(size=(3, 5))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for row, probabilities in zip(reference.softmax_fisher(logits + 700), p, strict=True):
        classes = np.eye(5)
        mean = probabilities @ classes
        expected = sum(w * np.outer(c - mean, c - mean) for w, c in zip(probabilities, classes, strict=True))
        np.testing.assert_allclose(row, expected, rtol=1e-10, atol=1e-13)
