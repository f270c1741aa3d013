"""What the core's values print: short, and enough to make them again."""

from __future__ import annotations

import pytest

import catnat
from catnat import Natural, Parameterization, Sigmoid, Tree

ACTIVATIONS = [
    Sigmoid(),
    Natural(),
    Natural(amplitude=3.0, tail=0.01),
    Natural(tail=0.0),
    Natural(tail=0.0, floor=0.0),
    Natural(tail=0.0, floor=1e-6),
]


@pytest.mark.parametrize(
    "value",
    [
        *ACTIVATIONS,
        *(Tree.balanced(k) for k in (1, 2, 9)),
        Tree.chain(2),
        Tree.chain(6),
        Tree.from_nested([[[1, 3], 0], [2, 4]]),
    ],
)
def test_what_is_printed_makes_the_same_value(value: object) -> None:
    assert eval(repr(value), vars(catnat) | {"Tree": Tree}) == value
    assert len(repr(value)) < 60


def test_defaults_are_left_out() -> None:
    assert repr(Natural()) == "Natural(tail=0.1)"
    assert repr(Natural(tail=0.0)) == "Natural(tail=0.0)"


def test_a_tree_of_ones_own_is_printed_where_it_is_small() -> None:
    assert repr(Tree.from_nested([0, [[1, 2], 3]])) == "Tree.from_nested([0, [[1, 2], 3]])"
    assert repr(Tree.huffman(range(17))) == "<Tree of 17 classes, depth 8>"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, "activation=Natural(tail=0.1), tree=balanced"),
        ({"activation": "sigmoid", "tree": Tree.chain(4)}, "activation=Sigmoid(), tree=chain"),
        (
            {"activation": "paper", "tree": Tree.from_nested([0, [[1, 2], 3]]), "center": 0.5},
            "activation=Natural(tail=0.0, floor=0.0), tree=Tree.from_nested([0, [[1, 2], 3]]), center=0.5",
        ),
        ({"center": [1, 2, 3]}, "activation=Natural(tail=0.1), tree=balanced, center=(1.0, 2.0, 3.0)"),
    ],
)
def test_a_parameterization_says_what_it_is(given: dict, shown: str) -> None:
    assert repr(Parameterization(4, **given)) == f"Parameterization(num_classes=4, {shown})"


def test_many_centers_are_counted() -> None:
    assert repr(Parameterization(1000, center=[0.5] * 999)).endswith("center=<999 numbers>)")
