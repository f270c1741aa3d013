"""The edges of what may come in: NaN, infinities, nothing at all, one class, two, and very many."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from catnat import Activation, Natural, Parameterization
from catnat_lab import reference
from tests.contract.backends import BACKENDS, ORACLE, PLAIN, PUBLIC, Backend, asked
from tests.contract.cases import ACTIVATIONS, PRECISIONS, Case, grid, inside_scores, scores_for
from tests.contract.judge import assert_close
from tests.thinned import thinned

every_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
every_activation = pytest.mark.parametrize(
    ("backend", "activation"),
    [
        pytest.param(backend, activation, id=f"{backend.name}-{name}")
        for turn, (name, activation) in enumerate(ACTIVATIONS.items())
        for backend in asked(BACKENDS, Case(name, Parameterization(1, activation), turn, PRECISIONS[turn:1]))
    ],
)
everywhere = pytest.mark.parametrize("case", grid(2, 6, 33, 100), ids=str)


@everywhere
def test_nan_stays_in_its_row(case: Case) -> None:
    pi, rows = case.pi, 70
    for backend in asked([*BACKENDS, *PLAIN], case):
        scores = inside_scores(pi, rows, backend.dtype)
        upstream = np.random.default_rng(0).normal(size=(rows, pi.num_classes)).astype(backend.dtype)
        clean = backend.log_catnat(scores, pi), backend.gradient(scores, upstream, pi)
        node = pi.num_nodes // 2
        scores[3, node] = np.nan
        dirty = backend.log_catnat(scores, pi), backend.gradient(scores, upstream, pi)
        for before, after in zip(clean, dirty, strict=True):
            np.testing.assert_allclose(np.delete(after, 3, 0), np.delete(before, 3, 0), rtol=1e-5, atol=1e-5)
        below = [k for k in range(pi.num_classes) if node + 1 in dict(pi.tree.path(k))]
        assert np.isnan(dirty[0][3, below]).all(), backend.name
        index = np.full(rows, below[0])
        assert (np.isnan(backend.log_prob(scores, index, pi)) == (np.arange(rows) == 3)).all(), backend.name
        assert (np.isnan(backend.entropy(scores, pi)) == (np.arange(rows) == 3)).all(), backend.name


@pytest.mark.parametrize("rows", [4, 300])
@pytest.mark.parametrize("case", grid(2, 6, 33, 100), ids=str)
def test_infinite_scores_are_certain_turns(case: Case, rows: int) -> None:
    pi = case.pi
    for backend in asked([*PUBLIC, *PLAIN], case):
        scores = inside_scores(pi, rows, backend.dtype)
        scores[1::2] = np.random.default_rng(0).choice([-np.inf, np.inf], scores[1::2].shape)
        scores[2, 0] = np.inf
        expected = ORACLE.log_catnat(scores.astype(np.float64), pi)
        assert_close(backend.log_catnat(scores, pi), expected, backend.tolerance, backend.name)
        index = np.arange(rows) % pi.num_classes
        found = backend.log_prob(scores, index, pi)
        assert_close(found, expected[np.arange(rows), index], backend.tolerance, backend.name)
        assert not np.isnan(backend.entropy(scores, pi)).any(), backend.name
        gradient = backend.gradient(scores, np.ones((rows, pi.num_classes), backend.dtype), pi)
        if isinstance(pi.activation, Natural) and pi.activation.tail == 0:
            assert (gradient[np.isinf(scores)] == 0).all(), backend.name
        assert np.isfinite(gradient).all(), backend.name


@every_activation
def test_an_empty_batch_is_an_empty_answer(backend: Backend, activation: Activation) -> None:
    for size in (1, 6):
        pi = Parameterization(size, activation)
        for shape in ((0,), (3, 0)):
            scores = np.zeros((*shape, size - 1), dtype=backend.dtype)
            index = np.zeros(shape, dtype=np.int64)
            mask = np.ones((*shape, size), dtype=bool)
            assert backend.log_catnat(scores, pi).shape == (*shape, size)
            assert backend.log_catnat(scores, pi, mask).shape == (*shape, size)
            assert backend.log_prob(scores, index, pi).shape == shape
            assert backend.entropy(scores, pi).shape == backend.kl(scores, scores, pi).shape == shape
            assert backend.mode(scores, pi).shape == shape
            assert backend.reach(scores, pi).shape == backend.fisher_diagonal(scores, pi).shape == scores.shape
            probs = np.zeros((*shape, size), dtype=backend.dtype)
            assert backend.scores_from_probs(probs, pi).shape == scores.shape


@every_activation
def test_one_class_is_certain(backend: Backend, activation: Activation) -> None:
    pi = Parameterization(1, activation)
    for shape in ((), (4,), (2, 3)):
        scores, index = np.zeros((*shape, 0), dtype=backend.dtype), np.zeros(shape, dtype=np.int64)
        mask = np.ones((*shape, 1), dtype=bool)
        for allowed in (None, mask):
            assert (backend.log_catnat(scores, pi, allowed) == np.zeros((*shape, 1))).all()
            assert (backend.log_prob(scores, index, pi, allowed) == np.zeros(shape)).all()
            assert (backend.entropy(scores, pi, allowed) == np.zeros(shape)).all()
            assert (backend.kl(scores, scores, pi, allowed) == np.zeros(shape)).all()
            assert (backend.mode(scores, pi, allowed) == index).all()
        assert backend.reach(scores, pi).shape == scores.shape
        assert backend.fisher_diagonal(scores, pi).shape == scores.shape
        assert backend.scores_from_probs(np.ones((*shape, 1), dtype=backend.dtype), pi).shape == scores.shape
        assert backend.gradient(scores, np.ones((*shape, 1), dtype=backend.dtype), pi).shape == scores.shape
    assert backend.counts(np.zeros(0, dtype=backend.dtype), pi, 5).tolist() == [5]


@every_backend
def test_two_classes_are_one_coin(backend: Backend) -> None:
    x = np.linspace(-3, 3, 13, dtype=backend.dtype)[:, None]
    coins = {"sigmoid": 1 / (1 + np.exp(-x)), "paper": (1 + np.sin(x / 2)) / 2}
    for name, a in coins.items():
        found = np.exp(backend.log_catnat(x, Parameterization(2, name)))
        np.testing.assert_allclose(found, np.concatenate([1 - a, a], -1), atol=backend.tolerance)


@pytest.mark.parametrize(
    ("backend", "size", "activation"),
    thinned(product(PUBLIC, [131072, 300_001], ["natural", "sigmoid"]), every=16),  # with and without a table of paths
    ids=lambda value: getattr(value, "name", value),
)
def test_very_many_classes(backend: Backend, size: int, activation: str) -> None:
    pi = Parameterization(size, activation)
    scores = scores_for(pi, "scale 1", 2, backend.dtype)
    log_p = backend.log_catnat(scores, pi)
    np.testing.assert_allclose(np.exp(log_p.astype(np.float64)).sum(-1), 1, atol=10 * backend.tolerance)
    index = np.array([0, size - 1])
    found = backend.log_prob(scores, index, pi)
    assert_close(found, log_p[[0, 1], index].astype(np.float64), 2 * backend.tolerance, backend.name)
    for k, value, row in zip(index, found, scores.astype(np.float64), strict=True):
        path = pi.tree.path(int(k))
        offsets = np.array([row[node - 1] - pi.centers[node - 1] for node, _ in path])
        turns = np.array([bit for _, bit in path])
        expected = -np.log1p(np.exp(np.where(turns, -1, 1) * reference.logit(offsets, pi.activation)[0])).sum()
        assert value == pytest.approx(expected, rel=1e-5)
    assert backend.counts(scores[0], pi, 10).sum() == 10
