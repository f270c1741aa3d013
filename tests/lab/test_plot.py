"""Laws of the pictures: what the artists hold are the probabilities, matrices and paths that they are said to show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import catnat
import catnat.torch as ct
import catnat_lab.plot as cp

CORNERS = np.array([[0, 0], [1, 0], [0.5, np.sqrt(0.75)]])
TREES = [
    catnat.Tree.balanced(1),
    catnat.Tree.balanced(2),
    catnat.Tree.balanced(7),
    catnat.Tree.chain(6),
    catnat.Tree.from_nested([[3, 0], [[4, 1], 2]]),
    catnat.Tree.huffman(np.arange(1.0, 21.0)),
]


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def some_probs(num_classes: int) -> np.ndarray:
    weights = np.random.default_rng(num_classes).exponential(size=num_classes)
    return weights / weights.sum()


def branches(axes: plt.Axes) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """(upper end, lower end) of every line of a tree."""
    return [(tuple(upper), tuple(lower)) for upper, lower in (line.get_xydata() for line in axes.lines)]


# -- trees -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", TREES, ids=lambda tree: f"{tree.num_classes}-{tree.depth}")
def test_bars_are_probabilities_below_their_classes(shape: catnat.Tree) -> None:
    p = some_probs(shape.num_classes)
    axes = cp.tree(shape, p)
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], p, rtol=1e-12)
    middles = np.array([bar.get_x() + bar.get_width() / 2 for bar in axes.patches])
    assert sorted(middles.round(9)) == list(range(shape.num_classes))  # side by side
    if shape.num_classes <= cp.MOST_LABELLED:
        written = {text.get_text(): text.get_position()[0] for text in axes.texts}
        np.testing.assert_allclose([written[str(k)] for k in range(shape.num_classes)], middles)


@pytest.mark.parametrize("shape", TREES, ids=lambda tree: f"{tree.num_classes}-{tree.depth}")
def test_branches_make_a_binary_tree_without_crossings(shape: catnat.Tree) -> None:
    drawn = branches(cp.tree(shape))
    assert len(drawn) == 2 * shape.num_nodes
    below: dict[tuple[float, float], list[float]] = {}
    for upper, lower in drawn:
        assert upper[1] - lower[1] == pytest.approx(1)
        below.setdefault(upper, []).append(lower[0])
    for (x, _), children in below.items():
        assert len(children) == 2 and np.mean(children) == pytest.approx(x)
    leaves = {lower for _, lower in drawn} - set(below)
    depths = sorted(round(-y) for _, y in leaves)
    assert depths == sorted(len(shape.path(k)) for k in range(shape.num_classes)) or shape.num_classes == 1


@pytest.mark.parametrize("shape", TREES[1:5], ids=lambda t: str(t.num_classes))
def test_the_lit_path_is_the_path(shape: catnat.Tree) -> None:
    for k in range(shape.num_classes):
        axes = cp.tree(shape, lit=k, ax=plt.figure().subplots())
        turns = [
            int(line.get_xdata()[1] > line.get_xdata()[0]) for line in axes.lines if line.get_color() == cp.LIT
        ]  # drawn level by level
        assert turns == [bit for _, bit in shape.path(k)]


def test_numbers_on_a_tree_are_scores_and_branch_probabilities() -> None:
    p = (0.1, 0.2, 0.3, 0.4)
    pi = catnat.Parameterization(4, "sigmoid")
    words = [text.get_text() for text in cp.tree(pi, p).texts]
    assert words[:6] == ["0.3", "0.7", "0.33", "0.67", "0.43", "0.57"]
    scores = ct.scores_from_probs(torch.tensor(p, dtype=torch.float64), pi).tolist()
    assert words[6:9] == [f"s{i}\n{score:.2g}" for i, score in enumerate(scores, start=1)]
    assert "a(s1)" in [text.get_text() for text in cp.tree(pi).texts]


# -- activations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [0.5, 0.1, 0.01])
def test_a_line_is_the_activation_and_its_dots_are_where_the_tails_begin(tail: float) -> None:
    natural = catnat.Natural(amplitude=3.0, tail=tail)
    line, dots = cp.activation(natural).lines
    x, a = line.get_data()
    ones = torch.tensor(x)[:, None]
    expected = ct.catnat(ones, catnat.Parameterization(2, natural, center=0.0))[:, 1]
    np.testing.assert_allclose(a, expected, rtol=1e-10)
    assert a[0] < 0.01 and a[-1] > 0.99
    np.testing.assert_allclose(dots.get_ydata(), [tail, 1 - tail], rtol=1e-9)


def test_log_odds_and_information_are_those_of_the_probability() -> None:
    x = np.linspace(-4, 4, 401)
    for name in ("natural", "sigmoid"):
        of = {q: cp.activation(name, quantity=q, scores=x).lines[0].get_ydata() for q in cp.QUANTITIES}
        a = of["probability"]
        np.testing.assert_allclose(of["log-odds"], np.log(a / (1 - a)), atol=1e-9)
        slope = np.gradient(a, x)
        np.testing.assert_allclose(of["information"][1:-1], (slope**2 / a / (1 - a))[1:-1], atol=3e-3)


# -- Fisher matrices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["natural", "sigmoid"])
@pytest.mark.parametrize("num_classes", [2, 5, 20])
def test_the_fisher_matrix_of_a_catnat_is_diagonal(name: str, num_classes: int) -> None:
    p, pi = some_probs(num_classes), catnat.Parameterization(num_classes, name)
    matrix = np.asarray(cp.fisher(pi, p).images[0].get_array())
    scores = ct.scores_from_probs(torch.tensor(p), pi)
    assert matrix.shape == (num_classes - 1, num_classes - 1)
    np.testing.assert_allclose(matrix, np.diag(ct.fisher_diagonal(scores, pi)), atol=1e-14)


def test_the_fisher_matrix_of_softmax_is_dense_and_maps_share_a_limit() -> None:
    p = some_probs(4)
    axes = cp.fisher("softmax", p, limit=0.5)
    np.testing.assert_allclose(axes.images[0].get_array(), np.diag(p) - np.outer(p, p), atol=1e-14)
    assert axes.images[0].get_clim() == (-0.5, 0.5)


# -- the simplex -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["softmax", 3, catnat.Parameterization(3, "sigmoid")])
def test_paths_start_where_they_should_and_end_at_the_target(of: object) -> None:
    starts, target = [(0.6, 0.3, 0.1), (0.2, 0.2, 0.6)], np.array([0.5, 0.3, 0.2])
    axes = cp.simplex(of, starts, target, steps=400, rate=1.0)
    paths = [line.get_xydata() for line in axes.lines[:2]]
    assert [len(path) for path in paths] == [401, 401]
    for path, start in zip(paths, starts, strict=True):
        np.testing.assert_allclose(path[0], start @ CORNERS, atol=1e-12)
        np.testing.assert_allclose(path[-1], target @ CORNERS, atol=1e-6)


def test_one_step_is_a_step_of_gradient_descent_in_the_scores() -> None:
    pi = catnat.Parameterization(3, catnat.Natural(tail=0.05), catnat.Tree.from_nested([[2, 0], 1]))
    start, target = torch.tensor([0.6, 0.3, 0.1]).double(), torch.tensor([0.2, 0.2, 0.6]).double()
    scores = ct.scores_from_probs(start, pi).requires_grad_()
    (-(target * ct.log_catnat(scores, pi)).sum()).backward()
    expected = ct.catnat(scores.detach() - 0.3 * scores.grad, pi).numpy() @ CORNERS
    drawn = cp.simplex(pi, start, target, rate=0.3, steps=1).lines[0].get_xydata()
    np.testing.assert_allclose(drawn[1], expected, atol=1e-12)


# -- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cp.tree("natural", [0.5, 0.5]), TypeError, "parameterization must be the number of classes or a"),
        (lambda: cp.fisher("sigmoid", [0.5, 0.5]), TypeError, "write catnat.Parameterization"),
        (lambda: cp.tree(catnat.Tree.chain(4), [0.5, 0.5]), ValueError, "probs must hold 4 probabilities; got 2"),
        (lambda: cp.tree(catnat.Tree.chain(4), lit=4), IndexError, r"lit must lie in \[0, 3\]"),
        (lambda: cp.tree(2, [0.5, 0.6]), ValueError, "probs must be at least 0 and sum to 1"),
        (lambda: cp.tree(2, ["a", "b"]), TypeError, "probs must be a sequence of numbers"),
        (lambda: cp.tree(2, [[0.5, 0.5]]), ValueError, r"probs must be a row of finite numbers; got shape \(1"),
        (lambda: cp.tree(2, [0.5, 0.5], ax=3), TypeError, "ax must be a matplotlib Axes or None; got 3"),
        (lambda: cp.activation("natrual"), ValueError, "did you mean 'natural'"),
        (lambda: cp.activation(3), TypeError, "activation must be 'natural', .*or a catnat.Activation"),
        (lambda: cp.activation("natural", quantity="slope"), ValueError, "quantity must be one of"),
        (lambda: cp.fisher("softmax", [1.0, 0.0]), ValueError, "probs must be above 0"),
        (lambda: cp.fisher("softmax", [0.5, 0.5], limit=0), ValueError, "limit must be"),
        (
            lambda: cp.fisher(catnat.Parameterization(3), [0.5, 0.5]),
            ValueError,
            "probs must hold 3 probabilities",
        ),
        (lambda: cp.simplex(catnat.Parameterization(4)), ValueError, "parameterization must have 3 classes"),
        (lambda: cp.simplex(3, [[0.5, 0.5]]), ValueError, "starts must hold 3 probabilities; got 2"),
        (lambda: cp.simplex(3, [1.0, 0.0, 0.0]), ValueError, "starts must be above 0"),
        (lambda: cp.simplex(3, steps=1.5), ValueError, "steps must be a whole number"),
        (lambda: cp.simplex(3, rate=-1), ValueError, "rate must be"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_pictures_go_where_they_are_told() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    assert cp.tree(2, [0.5, 0.5], left) is left
    assert cp.fisher(2, [0.5, 0.5], right) is right
    assert cp.activation("natural") not in figure.axes


def test_without_matplotlib_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['matplotlib'] = None\nimport catnat_lab.plot as p\np.activation('natural')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: catnat_lab.plot needs matplotlib: pip install '.[plot]' in catnat's folder" in done.stderr


def test_a_certain_class_can_be_drawn_on_a_tree() -> None:
    axes = cp.tree(3, [1.0, 0.0, 0.0])
    assert [bar.get_height() for bar in axes.patches] == [1, 0, 0]
    assert {"s1\ninf", "s2\n0"} <= {text.get_text() for text in axes.texts}


def test_the_old_name_warns_and_gives_the_same_functions() -> None:
    sys.modules.pop("catnat.plot", None)
    with pytest.warns(DeprecationWarning, match=r"catnat\.plot is now catnat_lab\.plot"):
        import catnat.plot
    assert catnat.plot.tree is cp.tree and catnat.plot.LIT == cp.LIT
    with pytest.raises(AttributeError, match="trees"):
        _ = catnat.plot.trees
