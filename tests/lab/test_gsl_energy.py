"""The energy score and its gradient against enumeration: three nodes have 512 graphs, so expectations are sums."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from catnat_lab.gsl.train import Baseline, Energy, energy, predict, weighted_log_prob
from catnat_lab.heads import HEAD_NAMES, head

NODES, GRAPHS, DRAWS = 3, 4, 40_000
EDGES = NODES**2


class Small:
    """One batch of a three-node problem, the distances of all its graphs, and exact terms of the energy score."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(1, 2, NODES, 2, generator=generator, dtype=torch.float64)
        self.y = torch.randn(1, 2, NODES * 2, generator=generator, dtype=torch.float64)
        self.weight = torch.randn(1, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
        self.probs = 0.1 + 0.8 * torch.rand(EDGES, generator=generator, dtype=torch.float64)
        every = torch.arange(2**EDGES)
        self.every = ((every.unsqueeze(1) >> torch.arange(EDGES)) & 1).double()  # [512, 9]
        self.energy = self.energy_of(self.every.unsqueeze(0))

    def energy_of(self, graphs: Tensor) -> Energy:
        runs = graphs.shape[0]
        x, y, weight = (t.expand(runs, *t.shape[1:]) for t in (self.x, self.y, self.weight))
        return energy(predict(graphs.unflatten(-1, (NODES, NODES)), x, weight), y)

    def exact(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """E ||f(A) - y|| and -1/2 E ||f(A) - f(A')||, of all graphs."""
        log_p = torch.where(self.every.bool(), log_probs[:, 1], log_probs[:, 0]).sum(-1)
        p = log_p.exp()
        return p @ self.energy.misses[0], -0.5 * p @ self.energy.spreads[0] @ p


@pytest.fixture(scope="module")
def small() -> Small:
    return Small()


def scores_of(name: str, small: Small) -> Tensor:
    probs = torch.stack((1 - small.probs, small.probs), -1)
    return head(name, 2).scores_from_probs(probs).requires_grad_()


def estimates(name: str, small: Small, baseline: str, term: int) -> Tensor:
    """The estimated gradient of one term in the scores, many times: [DRAWS, E * width]."""
    generator = torch.Generator().manual_seed(1)
    scores = scores_of(name, small).detach().expand(DRAWS, -1, -1).clone().requires_grad_()
    log_probs = head(name, 2).log_probs(scores)
    drawn = torch.rand(DRAWS, GRAPHS, EDGES, generator=generator, dtype=torch.float64)
    graphs = (drawn < log_probs.detach()[..., 1].exp().unsqueeze(1)).double()
    found = small.energy_of(graphs)
    parts = Energy(found.misses, torch.zeros_like(found.spreads)), Energy(torch.zeros_like(found.misses), found.spreads)
    kept = Baseline(baseline)
    if baseline == "moving-average":
        before = torch.tensor([[found.misses.mean(), 0.0], [0.0, 4 / 3 * found.spreads.mean()]], dtype=torch.float64)
        kept.average = before[term].expand(DRAWS, 2).detach()  # from steps before
    surrogate = weighted_log_prob(kept.weights(parts[term]), graphs, log_probs)
    return torch.autograd.grad(surrogate.sum(), scores)[0].flatten(1)


@pytest.mark.parametrize(
    ("name", "baseline", "term"),
    [
        ("softmax", "leave-one-out", 0),
        ("softmax", "none", 1),
        ("sparsemax", "moving-average", 0),
        ("catnat-paper", "leave-one-out", 1),
        ("catnat-paper", "moving-average", 1),
    ],
)
def test_the_score_function_gradient_is_unbiased(name, baseline, term, small):
    scores = scores_of(name, small)
    (exact,) = torch.autograd.grad(small.exact(head(name, 2).log_probs(scores))[term], scores)
    found = estimates(name, small, baseline, term)
    error = found.std(0) / DRAWS**0.5
    assert ((found.mean(0) - exact.flatten()).abs() < 4.5 * error).all()
    assert (error < exact.abs().max() / 5).all()  # else anything would pass


def test_the_gradient_of_the_weights_is_unbiased(small):
    log_probs = head("softmax", 2).log_probs(scores_of("softmax", small)).detach()
    (exact,) = torch.autograd.grad(sum(small.exact(log_probs)), small.weight, retain_graph=True)
    generator = torch.Generator().manual_seed(2)
    drawn = torch.rand(DRAWS, GRAPHS, EDGES, generator=generator, dtype=torch.float64)
    weight = small.weight.detach().expand(DRAWS, -1, -1).clone().requires_grad_()
    x, y = small.x.expand(DRAWS, -1, -1, -1), small.y.expand(DRAWS, -1, -1)
    graphs = (drawn < log_probs[:, 1].exp()).double().unflatten(-1, (NODES, NODES))
    found = torch.autograd.grad(energy(predict(graphs, x, weight), y).score().sum(), weight)[0].flatten(1)
    error = found.std(0) / DRAWS**0.5
    assert ((found.mean(0) - exact.flatten()).abs() < 4.5 * error).all()
    assert (error < exact.abs().max() / 20).all()


def test_the_leave_one_out_baseline_is_the_mean_cost_without_the_graph():
    """Any other number leaves the gradient unbiased too, and its variance larger."""
    generator = torch.Generator().manual_seed(6)
    misses, apart = torch.rand(1, 5, generator=generator), torch.rand(1, 5, 5, generator=generator)
    spreads = (apart + apart.mT) * (1 - torch.eye(5))
    expected = []
    for m in range(5):
        others = [n for n in range(5) if n != m]
        miss = misses[0, m] - sum(misses[0, n] for n in others) / 4
        pairs = [spreads[0, n, k] for n in others for k in others if n != k]
        expected.append((miss - (sum(spreads[0, m, n] for n in others) / 4 - sum(pairs) / len(pairs))) / 5)
    found = Baseline("leave-one-out").weights(Energy(misses, spreads))
    torch.testing.assert_close(found[0], torch.stack(expected))


def test_the_energy_score_and_its_gradient_are_the_papers_formula():
    generator = torch.Generator().manual_seed(3)
    y = torch.randn(2, 3, 5, 4, generator=generator, requires_grad=True)
    target = torch.randn(2, 3, 4, generator=generator)
    found = energy(y, target).score()
    expected = []
    for run in range(2):
        terms = []
        for b in range(3):
            miss = sum((y[run, b, m] - target[run, b]).norm() for m in range(5)) / 5
            apart = sum((y[run, b, m] - y[run, b, n]).norm() for m in range(5) for n in range(5) if m != n)
            terms.append(miss - apart / (2 * 5 * 4))
        expected.append(sum(terms) / 3)
    torch.testing.assert_close(found, torch.stack(expected))
    upstream = torch.tensor([1.0, -2.0])
    ours, theirs = (torch.autograd.grad(value, y, upstream)[0] for value in (found, torch.stack(expected)))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_predictions_are_the_graph_convolution():
    generator = torch.Generator().manual_seed(4)
    graphs, x = torch.rand(2, 3, 5, 5, generator=generator), torch.randn(2, 4, 5, 3, generator=generator)
    weight = torch.randn(2, 3, 2, generator=generator)
    found = predict(graphs, x, weight)
    torch.testing.assert_close(found[1, 2, 0], (graphs[1, 0] @ x[1, 2] @ weight[1]).flatten())


def test_equal_graphs_cost_nothing_and_give_finite_gradients():
    y = torch.ones(1, 1, 3, 4, requires_grad=True)
    found = energy(y, torch.ones(1, 1, 4))
    assert found.score().item() == pytest.approx(0, abs=1e-3)
    (gradient,) = torch.autograd.grad(found.score().sum(), y)
    assert gradient.isfinite().all()


def test_an_edge_of_probability_zero_counts_for_nothing():
    scores = torch.tensor([[[5.0, -5.0], [0.1, 0.2]]], requires_grad=True)  # sparsemax: certain, and open
    log_probs = head("sparsemax", 2).log_probs(scores)
    assert log_probs[0, 0, 1] == -torch.inf
    value = weighted_log_prob(torch.tensor([[1.0, -2.0]]), torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]), log_probs)
    (gradient,) = torch.autograd.grad(value.sum(), scores)
    assert value.isfinite().all() and gradient.isfinite().all() and (gradient[0, 1] != 0).all()


@pytest.mark.parametrize("name", HEAD_NAMES)
def test_a_sum_over_edges_is_the_sum_over_graphs(name):
    torch.manual_seed(0)
    probs = torch.rand(2, 6, 1, dtype=torch.float64) * 0.8 + 0.1
    log_probs = head(name, 2).log_probs(head(name, 2).scores_from_probs(torch.cat((1 - probs, probs), -1)))
    graphs, weight = (torch.rand(2, 5, 6) < 0.5).double(), torch.randn(2, 5, dtype=torch.float64)
    plain = torch.distributions.Bernoulli(probs.squeeze(-1).unsqueeze(1)).log_prob(graphs).sum(-1)
    torch.testing.assert_close(weighted_log_prob(weight, graphs, log_probs), (weight * plain).sum(-1))
