"""Every backend's log-probabilities and their gradients against the oracle, over the whole grid."""

from __future__ import annotations

import numpy as np
import pytest

from catnat_lab import reference
from tests.contract.backends import PLAIN, PUBLIC, asked
from tests.contract.cases import SIZES, Case, batches, grid, scores_for
from tests.contract.judge import assert_close, expected_gradient

CASES = grid(*SIZES)
JUDGED = [*PUBLIC, *PLAIN]
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
