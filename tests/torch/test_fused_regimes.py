"""The contract's batches take log_catnat every way that `fused` has; else it would judge less than it seems to."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import torch

import catnat.torch as ct
from catnat import Natural, Parameterization
from catnat.torch import compiled, dispatch, eager, fused
from tests.contract.cases import Case, batches, grid, scores_for


@contextmanager
def spied() -> Iterator[collections.Counter[str]]:
    """Counts of which way log_catnat took."""
    taken: collections.Counter[str] = collections.Counter()

    def counting(name: str, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def wrapper(*arguments: object) -> torch.Tensor:
            taken[name] += 1
            return function(*arguments)

        return wrapper

    with (
        patch.object(compiled, "applies", lambda *_: False),  # that one comes first, where Numba is installed
        patch.object(fused, "_both", counting("small", fused._both)),
        patch.object(fused._Incidence, "forward", staticmethod(counting("few classes", fused._Incidence.forward))),
        patch.object(fused._Heap, "forward", staticmethod(counting("heap", fused._Heap.forward))),
        patch.object(eager, "log_classes", counting("plain", eager.log_classes)),
    ):
        yield taken


def way_of(size: int, rows: int, score_set: str = "scale 1", **options: object) -> set[str]:
    pi = Parameterization(size, Natural(**options))  # type: ignore[arg-type]
    with spied() as taken:
        ct.log_catnat(torch.from_numpy(scores_for(pi, score_set, rows, np.float32)), pi)
    return set(taken)


@pytest.mark.parametrize(
    ("size", "rows", "way"),
    [
        (6, 1, {"small"}),
        (33, 7, {"small"}),
        (18, 300, {"few classes"}),
        (33, 300, {"few classes"}),
        (33, 1100, {"few classes"}),
        (100, 1, {"heap"}),
        (100, 300, {"heap"}),
        (1000, 7, {"heap"}),
        (1, 7, {"plain"}),
    ],
)
def test_each_size_of_batch_goes_its_own_way(size: int, rows: int, way: set[str]) -> None:
    assert rows in [r for s, r in batches(size) if s == "scale 1"], "this batch is not in the contract"
    assert way_of(size, rows) == way


def test_products_that_underflow_are_taken_in_logarithms() -> None:
    assert way_of(4096, 2, "scale 1e4") == {"heap", "plain"}


def test_what_has_no_short_form_is_walked_plainly() -> None:
    assert way_of(33, 7, saturation="reflect") == way_of(33, 7, floor=0.0) == {"plain"}
    assert way_of(33, 7, saturation="revive") == {"few classes"}


def test_the_contract_takes_every_way() -> None:
    total: collections.Counter[str] = collections.Counter()
    cases: list[Case] = [c for c in grid(6, 33, 100) if "floor1e-08" in c.name or "sigmoid" in c.name]
    with spied() as taken:
        for case in cases:
            for score_set, rows in batches(case.pi.num_classes):
                x = torch.from_numpy(scores_for(case.pi, score_set, rows, np.float32))
                ct.log_catnat(x, case.pi)
                total["calls"] += 1
    assert set(taken) == {"small", "few classes", "heap", "plain"}
    assert all(taken[way] > total["calls"] / 50 for way in taken), taken


def test_higher_derivatives_and_transforms_are_walked_plainly() -> None:
    pi = Parameterization(100)
    x = torch.from_numpy(scores_for(pi, "scale 1", 3)).requires_grad_()
    with spied() as taken:
        (gradient,) = torch.autograd.grad(ct.log_catnat(x, pi)[:, 0].sum(), x, create_graph=True)
    assert set(taken) == {"heap", "plain"} and gradient.requires_grad
    with spied() as taken:
        torch.func.vmap(lambda row: ct.log_catnat(row, pi))(x.detach())
    assert set(taken) == {"plain"}


def test_there_is_one_door() -> None:
    # whoever adds a way adds it behind this door, and to the spies above
    pi = Parameterization(33)
    x = torch.from_numpy(scores_for(pi, "scale 1", 3))
    with patch.object(dispatch, "_log_classes", side_effect=RuntimeError("the door")):
        for function in (ct.log_catnat, ct.catnat, ct.mode):
            with pytest.raises(RuntimeError, match="the door"):
                function(x, pi)
