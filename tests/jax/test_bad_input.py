"""Bad arguments of the public functions: the message names the argument, what came and what was wanted."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat.jax as cj
from catnat import Natural, Parameterization, Tree

K = 6
PI = Parameterization(K)
X = jnp.zeros((4, K - 1))
IDS = jnp.zeros(4, jnp.int32)
KEY = jax.random.key(0)
ALL = np.ones((4, K), bool)

TAKES_MASK: dict[str, Callable[..., object]] = {
    "catnat": cj.catnat,
    "log_catnat": cj.log_catnat,
    "log_prob": lambda x, pi, **k: cj.log_prob(x, IDS, pi, **k),
    "sample": lambda x, pi, **k: cj.sample(KEY, x, pi, **k),
    "mode": cj.mode,
    "entropy": cj.entropy,
    "kl_divergence": lambda x, pi, **k: cj.kl_divergence(x, x, pi, **k),
}
ALSO = {
    "reach": cj.reach,
    "kl_divergence q": lambda x, pi: cj.kl_divergence(X, x, pi),
    "cross_entropy": lambda x, pi: cj.cross_entropy(x, IDS, pi),
}
takes_mask = pytest.mark.parametrize("call", TAKES_MASK.values(), ids=TAKES_MASK.keys())
takes_scores = pytest.mark.parametrize("call", {**TAKES_MASK, **ALSO}.values(), ids={**TAKES_MASK, **ALSO}.keys())


# -- scores ------------------------------------------------------------------------------------------------------


@takes_scores
def test_good_scores_are_taken(call: Callable[..., object]) -> None:
    call(X, PI)


@pytest.mark.parametrize("width", [K, K - 2, 0])
@takes_scores
def test_scores_of_the_wrong_width(call: Callable[..., object], width: int) -> None:
    wanted = rf"scores must .*{K - 1}.*{K} classes; got {width} .*shape \(4, {width}\)|equally wide"
    with pytest.raises(ValueError, match=wanted):
        call(jnp.zeros((4, width)), PI)
    with pytest.raises(ValueError, match=wanted):  # shapes are known to a trace as well
        jax.jit(lambda x: call(x, PI))(jnp.zeros((4, width)))


@takes_scores
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (np.zeros((4, K - 1), np.int32), TypeError, r"scores must be floating point; got int32"),
        (np.zeros((4, K - 1), bool), TypeError, r"scores must be floating point; got bool"),
        (np.zeros((4, K - 1), np.complex64), TypeError, r"scores must be floating point; got complex64"),
        (np.float32(0), ValueError, r"scores must have at least one dimension; got a scalar"),
        ([0.0] * (K - 1), TypeError, r"scores must be a jax\.Array or a numpy\.ndarray; got list"),
        (0.0, TypeError, r"scores must be a jax\.Array or a numpy\.ndarray; got float"),
        (None, TypeError, r"scores must be a jax\.Array or a numpy\.ndarray; got NoneType"),
    ],
    ids=["integers", "bool", "complex", "scalar", "list", "number", "None"],
)
def test_scores_that_are_none(call: Callable[..., object], wrong: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(wrong, PI)


@takes_scores
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            "natural",
            TypeError,
            r"parameterization must be .*; got 'natural': write catnat\.Parameterization\(num_classes",
        ),
        ("natrual", ValueError, r"activation must be one of .*; got 'natrual' \(did you mean 'natural'\?\)"),
        (Natural(), TypeError, r"parameterization must be .*: write catnat\.Parameterization\(num_classes, Natural\("),
        (True, TypeError, r"parameterization must be .*; got True"),
        (5.0, TypeError, r"parameterization must be .*; got 5\.0"),
        (0, ValueError, r"num_classes must be at least 1; got 0"),
        (None, TypeError, r"parameterization must be .*Parameterization; got None"),
        ([PI], TypeError, r"parameterization must be .*Parameterization; got \["),
        (Tree.chain(K), TypeError, r"parameterization must be .*Parameterization; got Tree.chain\(6\): write .*tree="),
    ],
)
def test_unknown_parameterization(call: Callable[..., object], wrong: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(X, wrong)


@pytest.mark.parametrize("name", ["catnat", "log_catnat", "reach", "cross_entropy", "scores_from_probs"])
@pytest.mark.parametrize("axis", [2, -3])
def test_axis_out_of_range(name: str, axis: int) -> None:
    arguments = {"cross_entropy": (X, IDS), "scores_from_probs": (jnp.ones((4, K)),)}.get(name, (X,))
    with pytest.raises(IndexError, match=rf"axis must lie in \[-2, 1\] for (scores|probs); got {axis}"):
        getattr(cj, name)(*arguments, PI, axis=axis)


def test_kl_of_different_widths() -> None:
    with pytest.raises(ValueError, match=r"p_scores and q_scores must be equally wide; got \(4, 5\) and \(4, 3\)"):
        cj.kl_divergence(X, jnp.zeros((4, 3)), PI)


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
@takes_scores
def test_scores_of_a_dtype_that_we_do_not_compute_in(call: Callable[..., object], dtype: type) -> None:
    wanted = rf"scores must be float16, bfloat16, float32 or float64; got {jnp.dtype(dtype).name}"
    with pytest.raises(TypeError, match=wanted):
        call(X.astype(dtype), PI)
    with pytest.raises(TypeError, match=wanted.replace("scores", "probs")):
        cj.scores_from_probs(jnp.ones(K, dtype), PI)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: cj.sample(X, K), r"missing .* It takes key, scores, parameterization, .*; key is one random key"),
        (lambda: cj.draw(KEY, X), r"It takes key, scores, .*parameterization is the number of classes"),
        (lambda: cj.log_catnat(X, K, activation="sigmoid"), r"'activation'. It takes .*classes, or catnat.Parameter"),
        (lambda: cj.entropy(X, num_classes=K), r"'num_classes'. .*parameterization is the number of classes"),
        (lambda: cj.CatnatCategorical(X, num_classes=K), r"'num_classes'. It takes scores, parameterization, probs"),
        (lambda: cj.Catnat(K, activation="paper"), r"'activation'. It takes parameterization, axis;"),
        (lambda: cj.CatnatLinear.init(KEY, K), r"It takes key, in_features, parameterization"),
    ],
)
def test_a_call_that_misses_an_argument_is_told_how_to_write_it(call: Callable[[], object], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        call()


def test_told_functions_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(cj.log_catnat)) is cj.log_catnat


# -- masks -------------------------------------------------------------------------------------------------------


@takes_mask
@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (ALL[:, 1:], ValueError, r"mask .*6.*; got .*\(4, 5\)"),
        (ALL.astype(np.float32), TypeError, r"mask must be a boolean .*True where a class is allowed; got float32"),
        (ALL.astype(np.uint8), TypeError, r"mask must be a boolean .*; got uint8"),
        ([True] * K, TypeError, r"mask must be a boolean array.*; got list"),
        (ALL[:3], ValueError, r"mask must broadcast .*\(4,\).*; got shape \(3, 6\)"),
        (np.array(True), ValueError, r"mask must .*; got"),
        (ALL & (np.arange(4) != 2)[:, None], ValueError, r"mask must allow .* every row; row \(2,\) allows none"),
        (~ALL[0], ValueError, r"mask must allow at least one class in every row; it allows none"),
    ],
    ids=["narrow", "float", "uint8", "list", "batch", "scalar", "empty row", "empty"],
)
def test_bad_masks(call: Callable[..., object], mask: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(X, PI, mask=mask)


@takes_mask
def test_a_mask_has_one_meaning(call: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=r"'mask_mode'\. It takes .*mask"):
        call(X, PI, mask=ALL, mask_mode="prune")


@pytest.mark.parametrize("call", [cj.reach, cj.fisher_diagonal, cj.natural_gradient])
def test_what_is_said_of_single_nodes_takes_no_mask(call: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=r"'mask'\. It takes scores, parameterization"):
        call(X, PI, mask=ALL)


# -- class ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1, K, 1000])
@pytest.mark.parametrize("pi", [PI, Parameterization(K, "sigmoid", Tree.chain(K))], ids=["balanced", "chain"])
def test_ids_out_of_range_are_an_error_or_under_jit_nan(wrong: int, pi: Parameterization) -> None:
    index = jnp.array([0, wrong, 2, 3])
    for mask in (None, ALL):
        with pytest.raises(IndexError, match=rf"index must lie in \[0, {K - 1}\] for {K} classes; got {wrong}"):
            cj.log_prob(X, index, pi, mask=mask)
        found = jax.jit(lambda k, m=mask: cj.log_prob(X, k, pi, mask=m))(index)
        assert np.isnan(found).tolist() == [False, True, False, False]
    with pytest.raises(IndexError, match=rf"labels must lie in \[0, {K - 1}\] .*; got {wrong}"):
        cj.cross_entropy(X, index, pi)
    found = jax.jit(lambda k: cj.cross_entropy(X, k, pi, reduction="none"))(index)
    assert np.isnan(found).tolist() == [False, True, False, False]


@pytest.mark.parametrize("dtype", [np.float32, bool, np.complex64])
def test_index_of_no_integers(dtype: type) -> None:
    with pytest.raises(TypeError, match=rf"index must be an integer array of class ids; got {np.dtype(dtype)}"):
        cj.log_prob(X, np.zeros(4, dtype), PI)


def test_index_that_is_a_list_or_does_not_broadcast() -> None:
    with pytest.raises(TypeError, match=r"index must be an integer array of class ids; got list"):
        cj.log_prob(X, [0, 1, 2, 3], PI)
    with pytest.raises(ValueError, match=r"index must .*\(4,\).*; got .*\(3,\)"):
        cj.log_prob(X, IDS[:3], PI)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint8, np.uint32])
def test_any_integer_dtype_is_an_index(dtype: type) -> None:
    ids = np.array([0, 1, 5, 3])
    assert jnp.array_equal(cj.log_prob(X, ids.astype(dtype), PI), cj.log_prob(X, ids, PI))
    assert jnp.array_equal(cj.cross_entropy(X, ids.astype(dtype), PI), cj.cross_entropy(X, ids, PI))


# -- cross-entropy and probabilities -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (IDS[:3], ValueError, r"labels must hold one class id a row, shape \(4,\).*; got int32 of shape \(3,\)"),
        (IDS[:, None], ValueError, r"labels must hold one class id a row, .* of shape \(4, 1\)\. .*axis=1"),
        (np.int32(0), ValueError, r"labels must hold one class id a row, shape \(4,\).* of shape \(\)"),
        (jnp.zeros((4, K - 1)), ValueError, r"labels must hold one value a class: 6 .*; got 5 .*\(4, 5\)"),
        (jnp.zeros((3, K)), ValueError, r"labels must have the scores' batch shape \(4,\); got \(3,\)"),
        (jnp.zeros(4), TypeError, "labels must hold integers if they hold class ids; got float32"),
        (np.float32(0), ValueError, r"labels must have at least one dimension; got a scalar"),
        (np.zeros(4, bool), TypeError, r"labels must be an integer .*; got bool"),
        ([0, 1, 2, 3], TypeError, r"labels must be .*; got list"),
    ],
    ids=["short", "extra axis", "scalar id", "narrow", "batch", "float ids", "scalar", "bool", "list"],
)
def test_bad_labels(labels: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        cj.cross_entropy(X, labels, PI)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reduction": "meen"}, ValueError, r"reduction must be one of 'none', 'mean', 'sum'; got 'meen' \(did you"),
        ({"label_smoothing": -0.1}, ValueError, r"label_smoothing must lie in \[0, 1\]; got -0\.1"),
        ({"label_smoothing": float("nan")}, ValueError, r"label_smoothing must lie in \[0, 1\]; got nan"),
        ({"weight": np.ones(K - 1)}, ValueError, r"weight must .*6.*; got"),
        ({"weight": np.ones((2, K))}, ValueError, r"weight must .*6.*; got"),
        ({"weight": [1.0] * K}, TypeError, r"weight must be a jax\.Array or a numpy\.ndarray; got list"),
        ({"where": np.ones(3, bool)}, ValueError, r"where must have the scores' batch shape \(4,\); got \(3,\)"),
        ({"where": np.ones(4)}, TypeError, r"where must be a boolean array; got float64|float32"),
        ({"where": [True] * 4}, TypeError, r"where must be a jax\.Array or a numpy\.ndarray; got list"),
        ({"where": ALL[:, 1:]}, ValueError, r"6.*; got .*\(4, 5\)"),
        ({"where": ALL & False}, ValueError, r"at least one class in every row"),
    ],
)
def test_bad_settings_of_the_loss(options: dict[str, object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        cj.cross_entropy(X, IDS, PI, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("probs", "error", "message"),
    [
        (jnp.ones((4, K - 1)), ValueError, r"probs must hold one value a class: 6 .*; got 5 .*\(4, 5\)"),
        (jnp.ones((4, 0)), ValueError, r"probs must hold one value a class: 6 .*; got 0 .*\(4, 0\)"),
        (np.float32(1), ValueError, r"probs must have at least one dimension; got a scalar"),
        (jnp.ones((4, K), jnp.int32), TypeError, r"probs must be floating point; got int32"),
        ([1.0] * K, TypeError, r"probs must be a jax\.Array or a numpy\.ndarray; got list"),
        (jnp.array([0.5, -0.25, 0.7, 0, 0, 0]), ValueError, r"probs must be finite and at least 0; it holds -0\.25"),
    ],
    ids=["narrow", "none", "scalar", "integer", "list", "negative"],
)
def test_bad_probs(probs: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        cj.scores_from_probs(probs, PI)  # type: ignore[arg-type]


@pytest.mark.parametrize("draw", [cj.sample, cj.straight_through, cj.gumbel_softmax], ids=lambda f: f.__name__)
def test_what_is_no_key_is_told_so(draw) -> None:
    scores = jnp.zeros((2, 3))
    for wrong, came in [
        (0, "int"),
        (scores, r"float32 of shape \(2, 3\)"),
        (jax.random.split(jax.random.key(0)), "shape"),
        (np.zeros(2, np.int32), r"int32 of shape \(2,\)"),
        (np.zeros((2, 2), np.uint32), r"uint32 of shape \(2, 2\)"),
    ]:
        with pytest.raises(TypeError, match=f"key, the first argument, must be one random key.*got.*{came}"):
            draw(wrong, scores, 4)
    with pytest.raises(TypeError, match=r"sample_shape must be a tuple of whole numbers, as \(100,\); got 5"):
        cj.sample(jax.random.key(0), scores, 4, sample_shape=5)
