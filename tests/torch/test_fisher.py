"""The paper's theory: Theorem 1, Corollary 1, Proposition 1, natural gradients, and the pull-back through a network."""

import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

import catnat
import catnat.torch as ct
from catnat_lab import reference
from tests.core.trees import KINDS, make_tree

A = 5.0
ACTIVATIONS = {
    "sigmoid": catnat.Sigmoid(),
    "natural": catnat.Natural(tail=0.2),
    "clip": catnat.Natural(amplitude=A, tail=0.0),
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
    scores = torch.cat((inside_scores(pi, 4), 4 * inside_scores(pi, 4)))
    dense = ct.fisher_matrix(log_probs(pi), scores)
    diagonal = ct.fisher_diagonal(scores, pi)
    assert (dense - torch.diag_embed(dense.diagonal(dim1=-2, dim2=-1))).abs().max() < 1e-12
    assert_close(dense.diagonal(dim1=-2, dim2=-1), diagonal, atol=1e-12, rtol=1e-9)
    assert_close(diagonal.numpy(), reference.fisher_diagonal(scores.numpy(), pi), atol=1e-13, rtol=1e-9)
    assert diagonal.sum() > 0


@grid("clip")
def test_natural_nodes_have_constant_information(pi):
    scores = inside_scores(pi, 4)
    assert_close(ct.fisher_diagonal(scores, pi), ct.reach(scores, pi) * (math.pi / A) ** 2)


def test_a_clipped_node_has_no_information():
    pi = catnat.Parameterization(4, ACTIVATIONS["clip"])
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
    assert_close(ct.fisher_diagonal(scores, 6, dim=1), ct.fisher_diagonal(scores.mT, 6).mT)


# -- masks -------------------------------------------------------------------------------------------------------


def test_a_masked_catnat_has_no_diagonal_fisher_matrix():
    pi = catnat.Parameterization(6)
    mask = torch.tensor([True, False, True, True, True, True])
    dense = ct.fisher_matrix(log_probs(pi, mask=mask), inside_scores(pi))
    assert (dense - torch.diag(dense.diagonal())).abs().max() > 1e-3


# -- the natural gradient ----------------------------------------------------------------------------------------


@ANY_TREE
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
@pytest.mark.parametrize("damping", [0.0, 0.1])
@pytest.mark.parametrize("saturated", [False, True])
def test_the_natural_gradient_solves_with_the_dense_fisher_matrix(tree, activation, damping, saturated):
    pi = catnat.Parameterization(6, activation, tree)
    scores = inside_scores(pi)
    if saturated:
        scores[-1] += 1.5 * A
    scores.requires_grad_()
    cost = torch.randn(6, dtype=torch.float64, generator=seeded(3))
    (plain,) = torch.autograd.grad(ct.catnat(scores, pi) @ cost, scores)
    through = ct.natural_gradient(scores, pi, damping=damping)
    assert through.equal(scores)
    (natural,) = torch.autograd.grad(ct.catnat(through, pi) @ cost, scores)
    dense = ct.fisher_matrix(log_probs(pi), scores.detach())
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


def natural_loss(scores):
    cost = torch.arange(1.0, 7.0, dtype=scores.dtype)
    return (ct.catnat(ct.natural_gradient(scores, 6, damping=0.1), 6) * cost).sum()


def test_the_natural_gradient_goes_through_every_transform():
    scores = torch.randn(3, 5, dtype=torch.float64, generator=seeded())
    leaf = scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad(natural_loss(leaf), leaf)
    direction = torch.randn(3, 5, dtype=torch.float64, generator=seeded(1))
    value, tangent = torch.func.jvp(natural_loss, (scores,), (direction,))
    assert_close((value, tangent), (natural_loss(scores), (expected * direction).sum()))
    assert_close(torch.func.jacfwd(natural_loss)(scores), expected)
    per_row = torch.func.vmap(torch.func.grad(natural_loss))(scores)
    assert_close(per_row, expected)
    second = torch.autograd.functional.hessian(natural_loss, scores[0])
    for both in (torch.func.hessian, lambda f: torch.func.jacrev(torch.func.jacrev(f))):
        assert_close(both(natural_loss)(scores[0]), second)
    assert second.abs().max() > 1e-3


def test_the_natural_gradient_stands_infinite_scores():
    scores = torch.tensor([torch.inf, 0.3, -torch.inf], requires_grad=True)
    through = ct.natural_gradient(scores, catnat.Parameterization(4, "sigmoid"))
    assert through.equal(scores)
    through[1].backward()
    assert scores.grad.isfinite().all()


def test_the_natural_gradient_compiles_with_numbers_that_change():
    torch.compiler.reset()

    def loss(scores, damping):
        return ct.catnat(ct.natural_gradient(scores, 6, damping=damping), 6) @ torch.arange(6.0)

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows, damping in ((2, 0.1), (5, 0.2)):
        scores = torch.randn(rows, 5, generator=seeded()).requires_grad_()
        found, expected = (torch.autograd.grad(f(scores, damping).sum(), scores) for f in (compiled, loss))
        assert_close(found, expected)


def test_damping_must_not_be_negative():
    with pytest.raises(ValueError, match="damping"):
        ct.natural_gradient(torch.zeros(3), 4, damping=-0.1)
