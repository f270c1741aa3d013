"""A linear layer read along single paths is the layer with all its scores: values, gradients, draws."""

from __future__ import annotations

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import catnat.jax as cj
from catnat import Natural, Parameterization, Tree
from catnat.jax import _dispatch, _eager, _plan, _wide
from catnat.jax._dispatch import plan_for
from catnat.jax._wide import LinearWalk
from tests.core.trees import make_tree
from tests.jax.cases import close
from tests.thinned import thinned

WIDTH, ROWS = 6, 11
CENTER = tuple(np.linspace(-1, 1, 12).tolist())
PARAMETERIZATIONS = {
    "natural-13": Parameterization(13),
    "natural-16": Parameterization(16),
    "sigmoid-huffman": Parameterization(13, "sigmoid", make_tree("huffman", 13)),
    "paper-cluster": Parameterization(13, "paper", make_tree("cluster", 13)),
    "natural-cluster-16": Parameterization(16, "natural", make_tree("cluster", 16)),
    "tail-chain": Parameterization(13, Natural(tail=0.01), make_tree("chain", 13)),
    "center-nested": Parameterization(13, Natural(amplitude=3.0), make_tree("nested", 13), center=CENTER),
    "center-paper": Parameterization(13, Natural(tail=0.0), make_tree("nested", 13), center=CENTER),
    "paper-center": Parameterization(13, Natural(tail=0.0), center=0.5),
    "one": Parameterization(1),
    "two": Parameterization(2, "sigmoid"),
}
some_parameterizations = [pytest.mark.parametrize("name", thinned(PARAMETERIZATIONS, turn)) for turn in range(3)]
with_and_without_bias = pytest.mark.parametrize("bias", thinned([True, False]))
TOLERANCES = {np.float32: 2e-5, jnp.bfloat16: 1e-2, np.float16: 2e-3}


def make(pi, dtype=np.float64, rows=ROWS, scale=1.0):
    """A layer, its input and labels."""
    rng = np.random.default_rng(pi.num_classes)
    shapes = ((pi.num_nodes, WIDTH), (pi.num_nodes,), (rows, WIDTH))
    weight, bias, x = (jnp.asarray(scale * rng.normal(size=shape), dtype) for shape in shapes)
    return weight, bias, x, rng.integers(0, pi.num_classes, rows)


def by_all_scores(weight, bias, x, labels, pi, class_weight=None, ignore_index=-100, reduction="mean"):
    """The loss from log p of all classes, in float64."""
    weight, x = (jnp.asarray(a, jnp.float64) for a in (weight, x))
    scores = x @ weight.T if bias is None else x @ weight.T + jnp.asarray(bias, jnp.float64)
    keep = labels != ignore_index
    ids = np.where(keep, labels, 0)
    own = np.where(keep, 1.0 if class_weight is None else class_weight[ids], 0.0)
    found = jnp.take_along_axis(cj.log_catnat(scores, pi), ids[..., None], -1)[..., 0]
    loss = -own * jnp.where(own == 0, 0, found)
    return {"none": loss, "sum": loss.sum(), "mean": loss.sum() / own.sum()}[reduction]


def weighted_sum(value):
    return (value * jnp.linspace(-1, 2, value.size, dtype=value.dtype).reshape(value.shape)).sum()


def compare(pi, settings, dtype=np.float64, tolerance=1e-11, scale=1.0, bias=True):
    with jax.enable_x64(True):
        weight, b, x, labels = make(pi, dtype, scale=scale)
        labels[::4] = settings.get("ignore_index", labels[::4])
        arrays = (weight, b if bias else None, x)

        def with_gradients(loss):
            def total(arrays):
                value = loss(*arrays, labels, pi, **settings)
                return weighted_sum(value.astype(jnp.float64)), value

            gradients, value = jax.jit(jax.grad(total, has_aux=True))(arrays)
            return value, gradients

        found, wanted = with_gradients(cj.catnat_linear_loss), with_gradients(by_all_scores)
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} <= {jnp.dtype(dtype)}
        close(found, wanted, tolerance)


@some_parameterizations[0]
@with_and_without_bias
def test_it_is_the_cross_entropy_of_all_scores(name, bias):
    compare(PARAMETERIZATIONS[name], {"reduction": "none"}, bias=bias)


@pytest.mark.parametrize(
    ("reduction", "ignore_index", "weighs"),
    thinned(product(["none", "mean", "sum"], [-100, 3], [False, True]), every=12),
)
def test_settings_are_those_of_cross_entropy(reduction, ignore_index, weighs):
    class_weight = np.linspace(0, 2, 13) if weighs else None
    settings = {"reduction": reduction, "ignore_index": ignore_index, "class_weight": class_weight}
    compare(PARAMETERIZATIONS["sigmoid-huffman"], settings)


# what the dtype's inputs give in float64, so only the rounding of results is left in 16 bits
@some_parameterizations[2]
@pytest.mark.parametrize("dtype", thinned(TOLERANCES, 2))
def test_every_dtype_is_computed_in_float32_or_more(name, dtype):
    compare(PARAMETERIZATIONS[name], {}, dtype=dtype, tolerance=TOLERANCES[dtype], scale=0.3)


@pytest.mark.slow
def test_many_rows_of_16_bits_add_up_in_float32(monkeypatch):
    # 3000 times 0.5, row by row, ends at 128 where a bfloat16 is added to
    monkeypatch.setattr(_wide, "AT_ONCE", 1)
    plan = plan_for(Parameterization(2, "sigmoid"), np.dtype(np.float32))
    weight, x = jnp.zeros((1, 1), jnp.bfloat16), jnp.ones((3000, 1), jnp.bfloat16)
    gradient = jax.grad(lambda w: -LinearWalk(w, None, plan).log_prob(x, jnp.zeros(3000, int)).sum())(weight)
    np.testing.assert_allclose(np.asarray(gradient, np.float64), 1500, rtol=0.004)


@pytest.mark.parametrize(
    "at_once", thinned([1, 4 * 4 * WIDTH, 5 * 4 * WIDTH, 10**6], 1)
)  # 1, 4, 5 or all 11 rows at a time
def test_rows_come_in_blocks_of_any_size(monkeypatch, at_once):
    pi = PARAMETERIZATIONS["natural-13"]
    monkeypatch.setattr(_wide, "AT_ONCE", at_once)
    with jax.enable_x64(True):
        plan = plan_for(pi, np.dtype(np.float64))
        weight, bias, x, labels = make(pi)
        found, wanted = (
            jax.jit(jax.value_and_grad(lambda arrays, of=of: weighted_sum(of(*arrays))))((weight, bias, x))
            for of in (
                lambda w, b, x: -LinearWalk(w, b, plan).log_prob(x, jnp.asarray(labels)),
                lambda *arrays: by_all_scores(*arrays, labels, pi, reduction="none"),
            )
        )
        close(found, wanted, 1e-11)


@pytest.mark.parametrize("kind", thinned(["balanced", "chain", "huffman", "nested", "cluster"], 1))
def test_paths_that_no_table_holds_are_climbed(monkeypatch, kind):
    tree = make_tree(kind, 29)
    index = jnp.arange(29)
    table = _eager.paths(index, _plan.Plan(Parameterization(29, tree=tree), np.dtype(np.float32)))
    monkeypatch.setattr(_plan, "MAX_PATH_TABLE", 0)
    plan = _plan.Plan(Parameterization(29, tree=tree), np.dtype(np.float32))
    assert plan.has_paths == (kind in ("balanced", "cluster"))
    found = _eager.paths(index, plan)
    on_path = tree.paths != 0
    assert (np.ones_like(on_path) if found.on_path is None else np.asarray(found.on_path)).tolist() == on_path.tolist()
    for one in (table, found):
        signed = np.where(one.turns_right, one.nodes + 1, -(np.asarray(one.nodes) + 1))
        assert (np.where(on_path, signed, 0) == tree.paths).all()


@pytest.mark.slow
def test_many_classes_on_a_huffman_tree():
    size = 10**5
    pi = Parameterization(size, tree=Tree.huffman(1 / np.arange(1.0, size + 1)))
    weight = jax.random.normal(jax.random.key(0), (size - 1, 4))
    x = jax.random.normal(jax.random.key(1), (3, 4))
    labels = np.array([0, 77_777, size - 1])
    gradient = jax.grad(lambda w: cj.catnat_linear_loss(w, None, x, labels, pi, reduction="sum"))(weight)
    wanted = [
        -sum(_log_turn(pi, node, bit, weight, row) for node, bit in pi.tree.path(int(k)))
        for k, row in zip(labels, x, strict=True)
    ]
    found = cj.catnat_linear_loss(weight, None, x, labels, pi, reduction="none")
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    touched = {node - 1 for k in labels for node, _ in pi.tree.path(int(k))}
    assert set(np.flatnonzero(np.asarray(gradient).any(1)).tolist()) == touched


def _log_turn(pi, node, bit, weight, row):
    score = np.float64(np.asarray(weight[node - 1], np.float64) @ np.asarray(row, np.float64))
    z = pi.activation.logit(score - pi.centers[node - 1], np)
    return -np.logaddexp(0, -z if bit else z)


# -- transformations ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_transformations_see_the_same_function():
    pi = PARAMETERIZATIONS["center-nested"]
    with jax.enable_x64(True):
        weight, bias, x, labels = make(pi, rows=12)
        loss = partial(cj.catnat_linear_loss, parameterization=pi, reduction="none")
        all_scores = partial(by_all_scores, pi=pi, reduction="none")
        wanted = all_scores(weight, bias, x, labels)
        close(jax.jit(loss)(weight, bias, x, labels), wanted, 1e-11)
        close(loss(weight, bias, x.reshape(3, 4, -1), labels.reshape(3, 4)), wanted.reshape(3, 4), 1e-11)
        close(jax.vmap(loss, (None, None, 0, 0))(weight, bias, x, labels), wanted, 1e-11)
        layers = jnp.stack((weight, 2 * weight))  # an ensemble
        close(jax.vmap(loss, (0, None, None, None))(layers, bias, x, labels)[0], wanted, 1e-11)
        _, rows = lax.scan(lambda _, row: (None, loss(weight, bias, *row)), None, (x, labels))
        close(rows, wanted, 1e-11)
        # gradients of what is mapped, and by forward mode over reverse mode
        mapped = jax.grad(lambda w: jax.vmap(loss, (None, None, 0, 0))(w, bias, x, labels).sum())(weight)
        close(mapped, jax.grad(lambda w: all_scores(w, bias, x, labels).sum())(weight), 1e-11)
        for second in (jax.jacfwd, jax.jacrev):
            hessian = jax.jit(second(jax.grad(lambda x: loss(weight, bias, x, labels).sum())))(x)
            close(hessian, jax.jit(jax.hessian(lambda x: all_scores(weight, bias, x, labels).sum()))(x), 1e-9)


def test_nothing_as_large_as_all_gathered_rows_is_kept():
    pi = Parameterization(2**12)
    rows, width = 4096, 64  # gathered: 4096 x 12 x 64 numbers, 12 MiB; a block of them is smaller
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((pi.num_nodes, width), (rows, width))]
    labels = jax.ShapeDtypeStruct((rows,), jnp.int32)
    kept = jax.eval_shape(
        lambda w, x, k: jax.vjp(lambda w, x: cj.catnat_linear_loss(w, None, x, k, pi), w, x)[1], *shapes, labels
    )
    largest = max(leaf.size for leaf in jax.tree.leaves(kept))
    assert largest <= rows * width


# -- labels that are not there -----------------------------------------------------------------------------------


def test_a_label_out_of_range_is_an_error_or_nan_without_a_gradient():
    pi = Parameterization(5)
    weight, bias, x, _ = make(pi, np.float32)
    loss = partial(cj.catnat_linear_loss, parameterization=pi, reduction="none")
    labels = np.arange(ROWS)
    with pytest.raises(IndexError, match=r"labels must lie in \[0, 4\].*got 10"):
        loss(weight, bias, x, labels)
    found = jax.jit(loss)(weight, bias, x, labels)
    assert np.isnan(found[5:]).all() and np.isfinite(found[:5]).all()
    gradient = jax.jit(jax.grad(lambda x: loss(weight, bias, x, labels).sum()))(x)
    assert not np.asarray(gradient[5:]).any() and np.isfinite(gradient).all()


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"weight": np.zeros((4, 3), np.float32)}, ValueError, r"weight must have shape .*width of x = 2.*\(4, 3\)"),
        ({"weight": np.zeros((3, 2), np.float32)}, ValueError, r"weight must have num_classes - 1 = 4 rows.*\(3, 2\)"),
        ({"weight": np.zeros(4, np.float32)}, ValueError, r"weight must have shape"),
        ({"weight": np.zeros((4, 2), int)}, TypeError, r"weight must be floating point; got int"),
        ({"bias": np.zeros(5, np.float32)}, ValueError, r"bias must have one number a row of weight, shape \(4,\)"),
        ({"x": [1.0, 2.0]}, TypeError, r"x must be a jax.Array"),
        ({"labels": np.zeros(4, int)}, ValueError, r"labels must hold one class id a row, shape \(3,\)"),
        ({"labels": np.zeros(3)}, TypeError, r"labels must be an integer array"),
        ({"class_weight": np.zeros(4)}, ValueError, r"class_weight must hold one value a class: 5"),
        ({"reduction": "avg"}, ValueError, r"reduction must be one of"),
    ],
    ids=lambda v: str(list(v)) if isinstance(v, dict) else "",
)
def test_bad_input(change, error, message):
    given = {
        "weight": np.zeros((4, 2), np.float32),
        "bias": None,
        "x": np.zeros((3, 2), np.float32),
        "labels": np.zeros(3, int),
        "parameterization": Parameterization(5),
    }
    with pytest.raises(error, match=message):
        cj.catnat_linear_loss(**(given | change))


# -- draws -------------------------------------------------------------------------------------------------------


@some_parameterizations[1]
@with_and_without_bias
def test_a_key_draws_what_it_draws_from_all_scores(name, bias):
    pi = PARAMETERIZATIONS[name]
    with jax.enable_x64(True):
        weight, b, x, _ = make(pi, rows=40)
        key = jax.random.key(0)
        scores = x @ weight.T + (b if bias else 0)
        found = cj.catnat_linear_sample(key, weight, b if bias else None, x, pi, sample_shape=(3, 5))
        wanted = cj.sample(key, scores, pi, sample_shape=(3, 5))
    assert found.shape == (3, 5, 40) and found.dtype == jnp.int32
    assert (found == wanted).all()


def test_draws_from_a_deep_tree():
    pi = Parameterization(100, "sigmoid", Tree.chain(100))
    weight, bias, x, _ = make(pi, np.float32)
    key = jax.random.key(1)
    found = cj.catnat_linear_sample(key, weight, bias, x, pi)
    assert (found == cj.sample(key, x @ weight.T + bias, pi)).all()


def test_the_key_comes_first():
    with pytest.raises(TypeError, match="key, the first argument"):
        cj.catnat_linear_sample(jnp.zeros((4, 2)), jax.random.key(0), None, jnp.zeros((3, 2)), 5)


# -- a head ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", thinned(["natural-13", "sigmoid-huffman", "center-nested", "two"], 1))
def test_a_head_of_many_classes_reads_paths_and_answers_as_one_of_few(name, monkeypatch):
    pi = PARAMETERIZATIONS[name]
    with jax.enable_x64(True):
        weight, bias, x, labels = make(pi)
        labels[2], key = 1, jax.random.key(0)
        class_weight = np.linspace(0.5, 2, pi.num_classes)

        def answers(head):
            loss, gradient = jax.value_and_grad(
                lambda head: head.loss(x, labels, weight=class_weight, ignore_index=1, reduction="sum")
            )(head)
            several = head.log_prob(x, np.stack((labels, labels[::-1])))
            return loss, gradient, head.loss(x, labels), head.log_prob(x, labels), several, head.sample(key, x)

        head = cj.CatnatLinear(weight, bias, pi)
        few = answers(head)
        with monkeypatch.context() as many:
            many.setattr(_dispatch, "PATH_FROM", 2)
            many.setattr(cj.CatnatLinear, "scores", None)  # nobody asks for all scores
            close(answers(head), few, 1e-11)
            with pytest.raises(IndexError, match="index must lie in"):
                head.log_prob(x, labels + 100)
            with pytest.raises(ValueError, match=r"index must broadcast with the batch \(11,\) of x"):
                head.log_prob(x, labels[:3])
    with pytest.raises(ValueError, match="weight must have shape"):
        head.loss(x[:, :2], labels)


@some_parameterizations[2]
def test_the_likeliest_classes_are_found_by_all_scores_or_by_a_beam(name):
    pi = PARAMETERIZATIONS[name]
    with jax.enable_x64(True):
        weight, bias, x, _ = make(pi)
        head, k = cj.CatnatLinear(weight, bias, pi), min(3, pi.num_classes)
        best = np.sort(head(x), -1)[:, ::-1][:, :k]
        for beam in (None, pi.num_classes):
            found = head.topk(x, k, beam=beam)
            close(found.log_probs, best)
            close(jnp.take_along_axis(head(x), found.classes, -1), best)
            assert (head.mode(x, beam=beam) == found.classes[:, 0]).all()
        narrow = head.topk(x.reshape(1, ROWS, -1), k, beam=k)
        assert narrow.classes.shape == (1, ROWS, k)
        close(jnp.take_along_axis(head(x)[None], narrow.classes, -1), narrow.log_probs)
    for k, beam, message in [(0, None, "k must lie in"), (pi.num_classes + 1, None, "k must lie in"), (1, 0, "beam")]:
        with pytest.raises(ValueError, match=message):
            head.topk(x, k, beam=beam)
