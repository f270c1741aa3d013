"""Every bad input to `Tree` is refused by a message that names the argument, what came and what was expected."""

from __future__ import annotations

import math

import numpy as np
import pytest

from catnat import Parameterization, Tree


@pytest.mark.parametrize("build", [Tree.balanced, Tree.chain])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, r"num_classes must be at least 1; got 0"),
        (-3, ValueError, r"num_classes must be at least 1; got -3"),
        (2.0, TypeError, r"num_classes must be a whole number of at least 1; got 2\.0"),
        ("4", TypeError, r"num_classes must be a whole number of at least 1; got '4'"),
        (True, TypeError, r"num_classes must be a whole number of at least 1; got True"),
        (None, TypeError, r"num_classes must be a whole number of at least 1; got None"),
    ],
)
def test_bad_num_classes(build: object, value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build(value)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], r"weights must be a sequence of one number a class; got shape \(0,\)"),
        ([[1.0, 2.0]], r"weights must be a sequence of one number a class; got shape \(1, 2\)"),
        (3.0, r"weights must be a sequence of one number a class; got shape \(\)"),
        (["a", "b"], r"weights must .*'a'"),
        ([1.0, -2.0], r"weights must be finite and at least 0; weights\[1\] is -2\.0"),
        ([math.nan, 1.0], r"weights must be finite and at least 0; weights\[0\] is nan"),
        ([1.0, 1.0, math.inf], r"weights must be finite and at least 0; weights\[2\] is inf"),
    ],
)
def test_bad_weights(weights: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree.huffman(weights)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ([0, 1, 2], r"nested must be a class id or a pair of subtrees everywhere; got \[0, 1, 2\]"),
        ([[0], 1], r"nested must be a class id or a pair .*; got \[0\]"),
        ([], r"nested must be a class id or a pair .*; got \[\]"),
        ([0, "1"], r"nested must be a class id or a pair .*; got '1'"),
        ("01", r"nested must be a class id or a pair .*; got '01'"),
        ([0, 1.0], r"nested must be a class id or a pair .*; got 1\.0"),
        ([False, True], r"nested must be a class id or a pair .*; got False"),
        ([0, None], r"nested must be a class id or a pair .*; got None"),
        ([[0, 1], 1], r"nested must hold every class id once; 1 stands twice"),
        ([[0, 1], 3], r"nested must hold the class ids 0\.\.2, each once; 2 is missing"),
        ([-1, 0], r"nested must hold the class ids 0\.\.1, each once; 1 is missing"),
        (7, r"nested must hold the class ids 0\.\.0, each once; 0 is missing"),
    ],
)
def test_bad_nesting(written: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree.from_nested(written)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([], r"class_places must be a non-empty sequence; got shape \(0,\)"),
        ([[1]], r"class_places must be a non-empty sequence; got shape \(1, 1\)"),
        (5, r"class_places must be a non-empty sequence; got shape \(\)"),
        ([[1], [2, 3]], r"class_places must be a sequence of whole numbers; got \[\[1\], \[2, 3\]\]"),
        ([2, 2], r"class_places must be 2 different places in \[1, 3\]; got \[2, 2\]"),
        ([0, 3], r"class_places must be 2 different places in \[1, 3\]; got \[0, 3\]"),
        ([2, 4], r"class_places must be 2 different places in \[1, 3\]; got \[2, 4\]"),
        ([1, 3], r"class_places do not describe a binary tree: \[1, 3\]"),
        ([2, 3, 5], r"class_places do not describe a binary tree: \[2, 3, 5\]"),
    ],
)
def test_bad_places(places: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree(places)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("places", "shown"),
    [
        ([2.5, 3.0], r"2\.5 in it"),
        ([2, 3.0], r"3\.0 in it"),
        ([True, False], r"True in it"),
        ([2, True], r"True in it"),
        ([np.True_, 2], r"np\.True_ in it"),
        (["2", "3"], r"'2' in it"),
        (np.array([2.0, 3.0]), r"dtype float64"),
        (np.array([True, False]), r"dtype bool"),
        ([2**70, 3], r"dtype object"),
    ],
)
def test_places_that_are_not_whole_numbers(places: object, shown: str) -> None:
    # they were cut off to whole numbers once
    with pytest.raises(TypeError, match=rf"^class_places must be a sequence of whole numbers; got {shown}$"):
        Tree(places)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("vectors", "error", "message"),
    [
        ([], ValueError, r"neither of them 0; got shape \(0,\)"),
        ([[]], ValueError, r"neither of them 0; got shape \(1, 0\)"),
        ([1.0, 2.0], ValueError, r"neither of them 0; got shape \(2,\)"),
        (np.zeros((2, 2, 2)), ValueError, r"neither of them 0; got shape \(2, 2, 2\)"),
        ([[1.0], [2.0, 3.0]], ValueError, r"\[num_classes, dimension\]; got a list: .*inhomogeneous"),
        ([["a"], ["b"]], TypeError, r"\[num_classes, dimension\]; got dtype <U1"),
        ([["1"], ["2"]], TypeError, r"\[num_classes, dimension\]; got dtype <U1"),
        ([[1j], [2j]], TypeError, r"\[num_classes, dimension\]; got dtype complex128"),
        (None, TypeError, r"\[num_classes, dimension\]; got dtype object"),
        ([[0.0, math.nan]], ValueError, r"vectors must be finite; vectors\[0, 1\] is nan"),
        ([[0.0], [-math.inf]], ValueError, r"vectors must be finite; vectors\[1, 0\] is -inf"),
    ],
)
def test_bad_vectors(vectors: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"^vectors must be .*{message.removeprefix('vectors must be ')}"):
        Tree.cluster(vectors)  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [-1, 5])
def test_there_is_no_path_to_a_class_that_is_not_there(k: int) -> None:
    with pytest.raises(IndexError, match=rf"\[0, 4\].*{k}"):
        Tree.balanced(5).path(k)


def test_no_message_prints_a_million_numbers() -> None:
    many = 10**6
    for build in (
        lambda: Tree(range(many)),
        lambda: Tree(range(1, many + 1)),
        lambda: Tree([[1], *[2] * many]),
        lambda: Tree.huffman(["a"] * many),
        lambda: Tree.from_nested([0] * many),
        lambda: Parameterization(many, tree=[2] * many),  # type: ignore[arg-type]
        lambda: Parameterization(many, center=[math.nan] * (many - 1)),
        lambda: Parameterization(many, center=["a"] * (many - 1)),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, ValueError)) as raised:
            build()
        assert len(str(raised.value)) < 300
