"""Every backend's log-probabilities and their gradients against the oracle, over the whole grid."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from catnat import Natural, Parameterization
from catnat.core import reference
from tests.contract.backends import PLAIN, PUBLIC, Backend, asked
from tests.contract.cases import SIZES, Case, batches, grid, scores_for
from tests.contract.judge import assert_close, expected_gradient
from tests.thinned import thinned

CASES = grid(*SIZES)
JUDGED = [*PUBLIC, *PLAIN]
REVIVING = [case for case in grid(6, 33, 100) if "revive-floor1e-08" in case.name]
DTYPES = sorted({backend.dtype for backend in JUDGED}, key=lambda d: d.__name__)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(dtype: type, case: Case) -> None:
    pi = case.pi
    for score_set, rows in batches(pi.num_classes):
        scores = scores_for(pi, score_set, rows, dtype)
        upstream = np.random.default_rng(rows).normal(size=(rows, pi.num_classes)).astype(dtype)
        value = reference.log_catnat(scores.astype(np.float64), pi)
        slope, scale = expected_gradient(scores.astype(np.float64), upstream.astype(np.float64), pi)
        for backend in (b for b in asked(JUDGED, case) if b.dtype is dtype):
            what = f"{backend.name}, {case}, {score_set}, {rows} rows"
            assert_close(backend.log_catnat(scores, pi), value, backend.tolerance, what)
            found = backend.gradient(scores, upstream, pi)
            assert_close(found, slope, backend.tolerance, f"gradient, {what}", scale)


@pytest.mark.parametrize(
    ("case", "backend"), thinned(product(REVIVING, JUDGED), every=len(REVIVING) * len(JUDGED)), ids=lambda v: v.name
)
def test_revive_passes_only_gradients_that_lead_back_inside(case: Case, backend: Backend) -> None:
    natural = case.pi.activation
    clip = Parameterization(
        case.pi.num_classes,
        Natural(amplitude=natural.amplitude, tail=0.0, floor=natural.floor),
        case.pi.tree,
        case.pi.center,
    )
    scores = scores_for(case.pi, "scale 10", 40, backend.dtype)
    upstream = np.random.default_rng(0).normal(size=(40, case.pi.num_classes)).astype(backend.dtype)
    revived, clipped = (backend.gradient(scores, upstream, pi) for pi in (case.pi, clip))
    distance = natural.amplitude / 2 - np.abs(scores - case.pi.centers)
    inside, outside = distance > natural.margin + 1e-4, distance < natural.margin - 1e-4

    np.testing.assert_allclose(revived[inside], clipped[inside], rtol=10 * backend.tolerance, atol=backend.tolerance)
    assert (clipped[outside] == 0).all()
    outward = revived * (scores - case.pi.centers) < 0  # descent moves against the gradient
    assert not outward[outside].any()
    share = np.mean(revived[outside] != 0)
    assert 0.3 < share < 0.7, "with random upstream gradients about half of them lead back"
