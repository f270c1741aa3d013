"""Stacked training is training one by one; and it does learn."""

from __future__ import annotations

import math

import pytest
import torch

from catnat_lab.gsl.train import Run, Settings, begun, learned, make_dataset, optimal, train, true_edges
from catnat_lab.heads import HEAD_NAMES

PLAN = Settings(epochs=2, batch=16, graphs=6, choice_graphs=8)
CPU = torch.device("cpu")


def dataset(theta: float = 0.5, pairs: int = 200):
    return make_dataset(theta, communities=1, pairs=pairs)


def test_the_true_graph_is_the_papers():
    edges = true_edges(4)
    assert edges.sum() == 102 and torch.equal(edges, edges.T) and edges.diagonal().all()
    assert edges[5, 6] and not edges[0, 2]
    assert torch.equal(edges[:6, :6], edges[12:18, 12:18])


def test_a_dataset_is_drawn_from_its_model():
    data = make_dataset(0.25, communities=2, pairs=4000)
    x, y = data.train
    assert x.shape == (3200, 12, 4) and len(data.validation[0]) == len(data.test[0]) == 400
    # given x, the mean of y is theta x W, and its variance theta (1 - theta) sum_j (x_j W)^2
    xw = x @ data.weight
    miss = y - data.theta @ xw
    variance = (data.theta * (1 - data.theta)) @ xw.square()
    assert abs((miss.square() / variance).mean() - 1) < 0.03
    assert abs((miss / variance.sqrt()).mean()) < 0.02
    again = make_dataset(0.25, communities=2, pairs=4000)
    assert torch.equal(again.test[1], data.test[1])


@pytest.mark.parametrize("baseline", ["leave-one-out", "moving-average"])
def test_stacked_training_is_training_one_by_one(baseline):
    first, second = dataset(0.3), dataset(0.7)
    runs = [Run(first, name, 0.02, 1) for name in HEAD_NAMES] + [Run(second, "softmax", 0.05, 2)]
    plan = Settings(epochs=1, batch=16, graphs=6, choice_graphs=8, baseline=baseline)
    together = train(runs, plan, dtype=torch.float64)
    for run, outcome in zip(runs, together, strict=True):
        (alone,) = train([run], plan, dtype=torch.float64)
        assert outcome.metrics == pytest.approx(alone.metrics, rel=1e-9), run.head
        assert outcome.record["theta"] == pytest.approx(alone.record["theta"], rel=1e-9, abs=1e-12), run.head
        for key, values in outcome.record["curve"].items():
            assert values == pytest.approx(alone.record["curve"][key], rel=1e-9), (run.head, key)


def test_runs_of_different_seeds_rates_and_data_differ():
    data = dataset()
    runs = [Run(data, "softmax", 0.02, 1), Run(data, "softmax", 0.02, 2), Run(data, "softmax", 0.05, 1)]
    outcomes = train([*runs, Run(dataset(0.3), "softmax", 0.02, 1)], PLAN)
    assert len({outcome.metrics["validation_es"] for outcome in outcomes}) == 4


def test_every_head_starts_from_the_same_graph():
    theta, weight = learned(begun([Run(dataset(), name, 0.1, 3) for name in sorted(HEAD_NAMES)], CPU, torch.float32))
    assert theta.min() >= 0 and theta.max() <= 0.1 and theta.shape == (len(HEAD_NAMES), 36)
    torch.testing.assert_close(theta, theta[:1].expand_as(theta), rtol=1e-4, atol=1e-6)
    assert torch.equal(weight, weight[:1].expand_as(weight))


@pytest.mark.parametrize("name", ["softmax", "catnat-paper"])
def test_training_finds_the_graph(name):
    data = dataset(0.5, pairs=2000)
    (outcome,) = train([Run(data, name, 0.05, 1)], Settings(epochs=6, batch=32, graphs=16, choice_graphs=32))
    best = optimal(data, 1, 16)
    start = 0.5 * float(true_edges(1).float().mean())  # the error of an empty graph
    assert outcome.metrics["theta_mae"] < start / 3
    assert best.metrics["es"] < outcome.metrics["es"] < 1.15 * best.metrics["es"]
    curve = outcome.record["curve"]
    assert curve["step"] == [50.0 * epoch for epoch in range(1, 7)]
    assert curve["validation_es"][-1] < 0.85 * curve["validation_es"][0]
    assert outcome.metrics["es_paper"] == pytest.approx(2 * outcome.metrics["es"])


def test_optimal_values_are_those_of_the_true_model():
    data = dataset(0.25, pairs=20_000)
    outcomes = [optimal(data, seed, 64) for seed in range(3)]
    mean = sum(outcome.metrics["pp_mse"] for outcome in outcomes) / 3
    degree = float(true_edges(1).float().sum(1).mean())
    expected = 0.25 * 0.75 * degree * float(data.weight.square().sum(0).mean()) * (1 + 1 / 64)
    assert mean == pytest.approx(expected, rel=0.05)
    assert all(outcome.metrics["theta_mae"] == 0 for outcome in outcomes)


def test_a_run_that_diverges_is_infinitely_bad_and_spoils_no_other():
    data = dataset()
    good = Run(data, "softmax", 0.02, 1)
    *wild, calm = train([Run(data, "softmax", 1e39, 1), Run(data, "sparsemax", 1e39, 1), good], PLAN)
    (alone,) = train([good], PLAN)
    assert all(outcome.value == math.inf for outcome in wild) and math.isfinite(calm.value)
    assert calm.metrics == pytest.approx(alone.metrics, rel=1e-4)


def test_no_edge_of_sparsemax_is_lost_for_good():
    (outcome,) = train([Run(dataset(), "sparsemax", 0.2, 1)], PLAN)
    assert 0.9e-3 <= min(outcome.record["theta"]) < 2e-3 and max(outcome.record["theta"]) <= 1 - 0.9e-3
