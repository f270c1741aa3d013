"""The paper's theory: Theorem 1, Corollary 1, Proposition 1, natural gradients, and the pull-back through a network."""

import math
from functools import partial

import pytest
import torch
from scipy import stats
from torch import distributions as D
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import catnat
import catnat.torch as ct
from catnat.core import reference
from tests.core.trees import KINDS, make_tree

A = 5.0
ACTIVATIONS = {
    "sigmoid": catnat.Sigmoid(),
    "clip": catnat.Natural(amplitude=A, tail=0.0),
    "revive": catnat.Natural(amplitude=A, tail=0.0, saturation="revive"),
    "reflect": catnat.Natural(amplitude=A, tail=0.0, saturation="reflect"),
}
SIZES = [2, 3, 6, 18]


def grid(*names):
    """Every tree with these activations."""
    cases = {
        f"{kind}-{k}-{name}": catnat.Parameterization(k, ACTIVATIONS[name], make_tree(kind, k))
        for kind in KINDS
        for k in SIZES
        for name in names
    }
    return pytest.mark.parametrize("pi", cases.values(), ids=cases)


ANY_TREE = pytest.mark.parametrize("tree", [make_tree(kind, 6) for kind in KINDS], ids=KINDS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def inside_scores(pi, *batch, seed=0):
    """Scores inside the natural range, the 2% at both ends left out."""
    uniform = torch.rand(*batch, pi.num_nodes, dtype=torch.float64, generator=seeded(seed))
    return (0.96 * uniform - 0.48) * A + torch.from_numpy(pi.centers.copy())


def log_probs(pi, **masking):
    return partial(ct.log_catnat, parameterization=pi, **masking)


# -- Theorem 1, Corollary 1, Proposition 1 -----------------------------------------------------------------------


@grid(*ACTIVATIONS)
def test_the_fisher_matrix_is_diagonal_and_is_the_formulas(pi):
    scores = inside_scores(pi, 4)
    if pi.activation != ACTIVATIONS["revive"]:  # whose gradient outside is no derivative: it depends on its sign
        scores = torch.cat((scores, 4 * scores))
    dense = ct.fisher_matrix(log_probs(pi), scores)
    diagonal = ct.fisher_diagonal(scores, pi)
    assert (dense - torch.diag_embed(dense.diagonal(dim1=-2, dim2=-1))).abs().max() < 1e-12
    assert_close(dense.diagonal(dim1=-2, dim2=-1), diagonal, atol=1e-12, rtol=1e-9)
    assert_close(diagonal.numpy(), reference.fisher_diagonal(scores.numpy(), pi), atol=1e-13, rtol=1e-9)
    assert diagonal.sum() > 0


@grid("clip", "revive", "reflect")
def test_natural_nodes_have_constant_information(pi):
    scores = inside_scores(pi, 4)
    if pi.activation.saturation == "reflect":
        scores = torch.cat((scores, scores + 7.3 * A))
    assert_close(ct.fisher_diagonal(scores, pi), ct.reach(scores, pi) * (math.pi / A) ** 2)


@pytest.mark.parametrize("saturation", ["clip", "revive"])
def test_a_clipped_node_has_no_information(saturation):
    pi = catnat.Parameterization(4, catnat.Natural(amplitude=A, tail=0.0, saturation=saturation))
    information = ct.fisher_diagonal(torch.tensor([0.0, 0.6 * A, -0.6 * A]), pi)
    assert information[0] > 0 and information[1:].tolist() == [0, 0]


@pytest.mark.parametrize("num_classes", SIZES)
def test_softmaxs_fisher_matrix_is_proposition_1(num_classes):
    logits = 2 * torch.randn(5, num_classes, dtype=torch.float64, generator=seeded())
    p = logits.softmax(-1)
    expected = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    assert_close(ct.softmax_fisher(logits), expected)
    assert_close(ct.fisher_matrix(partial(torch.log_softmax, dim=-1), logits), expected)
    assert_close(reference.softmax_fisher(logits.numpy()), expected.numpy())


@grid(*ACTIVATIONS)
def test_kl_is_half_the_squared_fisher_length_of_a_small_step(pi):
    scores = inside_scores(pi, 5)
    step = 1e-4 * torch.randn(scores.shape, dtype=torch.float64, generator=seeded(1))
    quadratic = (ct.fisher_diagonal(scores, pi) * step**2).sum(-1) / 2
    assert_close(ct.kl_divergence(scores, scores + step, pi), quadratic, rtol=0.02, atol=1e-15)


def test_dim_chooses_the_axis():
    scores = torch.randn(2, 5, 3, generator=seeded())
    assert_close(ct.fisher_diagonal(scores, dim=1), ct.fisher_diagonal(scores.mT).mT)


# -- masks -------------------------------------------------------------------------------------------------------


@ANY_TREE
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_a_pruned_catnat_keeps_a_diagonal_fisher_matrix(tree, activation):
    pi = catnat.Parameterization(6, activation, tree)
    scores = inside_scores(pi, 8)
    masks = torch.rand(8, 6, generator=seeded(2)) < 0.6
    masks[:, 0] |= ~masks.any(-1)
    diagonal = ct.fisher_diagonal(scores, pi, mask=masks)
    for row, mask, expected in zip(scores, masks, diagonal, strict=True):
        dense = ct.fisher_matrix(log_probs(pi, mask=mask, mask_mode="prune"), row)
        assert_close(dense, torch.diag(expected), atol=1e-12, rtol=1e-9)
    assert (diagonal == 0).any() and (diagonal > 0).any()


def test_a_renormalised_catnat_has_none():
    pi = catnat.Parameterization(6)
    mask = torch.tensor([True, False, True, True, True, True])
    dense = ct.fisher_matrix(log_probs(pi, mask=mask), inside_scores(pi))
    assert (dense - torch.diag(dense.diagonal())).abs().max() > 1e-3


# -- the natural gradient ----------------------------------------------------------------------------------------


@ANY_TREE
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
@pytest.mark.parametrize("damping", [0.0, 0.1])
@pytest.mark.parametrize("saturated", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_natural_gradient_solves_with_the_dense_fisher_matrix(tree, activation, damping, saturated, masked):
    pi = catnat.Parameterization(6, activation, tree)
    scores = inside_scores(pi)
    if saturated and pi.activation != ACTIVATIONS["revive"]:
        scores[-1] += 1.5 * A
    mask = torch.tensor([True, True, False, False, True, True]) if masked else None
    masking = {"mask": mask, "mask_mode": "prune"}
    scores.requires_grad_()
    cost = torch.randn(6, dtype=torch.float64, generator=seeded(3))
    (plain,) = torch.autograd.grad(ct.catnat(scores, pi, **masking) @ cost, scores)
    through = ct.natural_gradient(scores, pi, damping=damping, mask=mask)
    assert through.equal(scores)
    (natural,) = torch.autograd.grad(ct.catnat(through, pi, **masking) @ cost, scores)
    dense = ct.fisher_matrix(log_probs(pi, **masking), scores.detach())
    if damping:
        expected = torch.linalg.solve(dense + damping * torch.eye(5, dtype=torch.float64), plain)
    else:
        expected = torch.linalg.pinv(dense, hermitian=True, rtol=1e-12) @ plain
    assert_close(natural, expected, rtol=1e-6, atol=1e-9)
    assert plain.abs().max() > 1e-3


def test_the_natural_gradient_of_a_plain_step_does_not_depend_on_the_parameterization():
    # a small natural step changes the probabilities alike, whatever the coordinates: F^-1 is a metric's inverse
    probs = torch.tensor([0.1, 0.3, 0.15, 0.05, 0.4], dtype=torch.float64)
    cost = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0], dtype=torch.float64)
    moves = []
    for pi in (
        catnat.Parameterization(5),
        catnat.Parameterization(5, "sigmoid"),
        catnat.Parameterization(5, tree=make_tree("chain", 5), center=0.2),
    ):
        scores = ct.scores_from_probs(probs, pi).requires_grad_()
        (step,) = torch.autograd.grad(ct.catnat(ct.natural_gradient(scores, pi), pi) @ cost, scores)
        moves.append(torch.func.jvp(partial(ct.catnat, parameterization=pi), (scores,), (step,))[1])
    assert_close(moves[0], probs * (cost - probs @ cost))  # the replicator equation
    assert_close(moves[1], moves[0])
    assert_close(moves[2], moves[0])


def test_damping_must_not_be_negative():
    with pytest.raises(ValueError, match="damping"):
        ct.natural_gradient(torch.zeros(3), damping=-0.1)


# -- by draws ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["natural", "sigmoid", "softmax"])
def test_the_monte_carlo_fisher_matrix_is_unbiased(head):
    scores = torch.tensor([0.3, -0.7, 0.5, 0.1], dtype=torch.float64)
    if head == "softmax":
        distribution, exact = (lambda s: D.Categorical(logits=s)), ct.softmax_fisher(scores)
    else:
        distribution = partial(ct.CatnatCategorical, parameterization=head)
        exact = torch.diag(ct.fisher_diagonal(scores, head))
    torch.manual_seed(0)
    found = torch.stack([ct.monte_carlo_fisher(distribution, scores, 100) for _ in range(200)])
    error = found.std(0) / len(found) ** 0.5
    z = torch.where(error > 1e-12, (found.mean(0) - exact) / error.clamp(min=1e-12), 0.0)
    assert (2 * stats.norm.sf(z.abs().numpy()) > 1e-6).all()
    assert_close(found.mean(0), exact, atol=0.05, rtol=0)


class LargestTensor(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(t.numel() for t in tree_leaves(made) if isinstance(t, torch.Tensor))])
        return made


def test_the_monte_carlo_fisher_matrix_makes_no_square_table_of_its_draws():
    # 1e5 draws are little work, unless they cost 1e10 numbers
    draws = 1024  # more than are drawn at a time
    with LargestTensor() as largest:
        ct.monte_carlo_fisher(ct.CatnatCategorical, torch.zeros(3), draws)
    assert draws <= largest.numel < draws**2


# -- a network below ---------------------------------------------------------------------------------------------


def small_network(width):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, width)]
    return torch.nn.Sequential(*layers).double(), torch.randn(6, 3, dtype=torch.float64)


def brute_force(network, inputs, log_p_of):
    """The mean over inputs of E[grad log p grad log p^T] in all parameters, class by class."""
    total = 0
    for row in inputs:
        log_p = log_p_of(network(row.unsqueeze(0)))[0]
        for k in range(len(log_p)):
            gradients = torch.autograd.grad(log_p[k], list(network.parameters()), retain_graph=True)
            gradient = torch.cat([g.flatten() for g in gradients])
            total = total + log_p[k].exp().detach() * torch.outer(gradient, gradient)
    return total / len(inputs)


@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
def test_the_network_fisher_matrix_of_a_catnat_head_is_the_brute_force_one(activation):
    network, inputs = small_network(4)
    found = ct.network_fisher(network, inputs, partial(ct.fisher_diagonal, parameterization=activation))
    assert_close(found, brute_force(network, inputs, partial(ct.log_catnat, parameterization=activation)))
    dense = partial(ct.fisher_matrix, partial(ct.log_catnat, parameterization=activation))
    assert_close(ct.network_fisher(network, inputs, dense), found)  # nothing is lost with the cross terms


def test_the_network_fisher_matrix_of_a_softmax_head_needs_its_cross_terms():
    network, inputs = small_network(5)
    found = ct.network_fisher(network, inputs, ct.softmax_fisher)
    assert_close(found, brute_force(network, inputs, partial(torch.log_softmax, dim=-1)))
    without = ct.network_fisher(network, inputs, lambda s: ct.softmax_fisher(s).diagonal(dim1=-2, dim2=-1))
    assert (without - found).abs().max() > 1e-3


def test_the_network_fisher_matrix_leaves_frozen_parameters_out():
    network, inputs = small_network(4)
    whole = ct.network_fisher(network, inputs, ct.fisher_diagonal)
    for parameter in network[0].parameters():
        parameter.requires_grad_(False)
    trained = ct.network_fisher(network, inputs, ct.fisher_diagonal)
    assert_close(trained, whole[16:, 16:])  # the first layer has 3 * 4 + 4 parameters


# -- conditioning ------------------------------------------------------------------------------------------------


def test_condition_number_is_largest_by_smallest_eigenvalue_on_the_support():
    values = torch.tensor([4.0, 1.0, 2.0, 0.5], dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=seeded()))[0]
    turned = basis @ torch.diag(values) @ basis.T
    for matrix in (values, torch.diag(values), turned, 1e-5 * turned):
        assert_close(ct.condition_number(matrix), torch.tensor(8.0, dtype=torch.float64))
    with_zero = torch.cat((values, torch.zeros(1)))
    assert ct.condition_number(with_zero) == 8 and ct.condition_number(torch.diag(with_zero)) == 8
    assert_close(ct.condition_number(torch.stack((turned, turned @ turned))), torch.tensor([8.0, 64]).double())
    assert ct.condition_number(values, rtol=0.2) == 4


@pytest.mark.parametrize("num_classes", [2, 8, 64])
def test_condition_numbers_at_the_uniform_distribution(num_classes):
    assert_close(ct.condition_number(ct.softmax_fisher(torch.zeros(num_classes).double())).item(), 1.0)
    # in a full balanced tree the deepest nodes are reached with probability 2 / K
    assert_close(ct.condition_number(ct.fisher_diagonal(torch.zeros(num_classes - 1).double())).item(), num_classes / 2)
