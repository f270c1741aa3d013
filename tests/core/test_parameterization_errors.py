"""Every bad input is refused by a message that names the argument, what came and what was expected."""

from __future__ import annotations

import math

import numpy as np
import pytest

from catnat import Natural, Parameterization, Sigmoid, Tree
from catnat.core.parameterization import resolve


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_classes": 0}, ValueError, r"num_classes must be at least 1; got 0"),
        ({"num_classes": 2.5}, TypeError, r"num_classes must be a whole number of at least 1; got 2\.5"),
        ({"num_classes": True}, TypeError, r"num_classes must be a whole number of at least 1; got True"),
        (
            {"activation": "natrual"},
            ValueError,
            r"activation must be one of 'natural', 'sigmoid'; got 'natrual' .*'natural'",
        ),
        ({"activation": "softmax"}, ValueError, r"activation must be one of 'natural', 'sigmoid'; got 'softmax'"),
        ({"activation": Natural}, TypeError, r"activation must be 'natural', 'sigmoid', or a .* value; got <class"),
        ({"activation": None}, TypeError, r"activation must be 'natural', 'sigmoid', or a .* value; got None"),
        ({"tree": "chain"}, TypeError, r"tree must be a catnat\.Tree or None; got 'chain'"),
        ({"tree": Tree.chain(4)}, ValueError, r"tree must have num_classes = 5 classes; it has 4"),
        ({"center": "unifrom"}, ValueError, r"center must be one of 'uniform'; got 'unifrom' .*'uniform'"),
        ({"center": None}, TypeError, r"center must be 'uniform', a number or a sequence of numbers; got None"),
        ({"center": True}, TypeError, r"center must be 'uniform', a number or a sequence of numbers; got True"),
        ({"center": (0.0, 1.0)}, ValueError, r"center must hold num_classes - 1 = 4 values; got 2"),
        ({"center": math.nan}, ValueError, r"center must be finite; got nan"),
        ({"center": (0.0, 0.0, math.inf, 0.0)}, ValueError, r"center must be finite; got \(0\.0, 0\.0, inf, 0\.0\)"),
        (
            {"center": ("a", 0.0, 0.0, 0.0)},
            TypeError,
            r"center must be 'uniform', a number or a sequence of numbers; got",
        ),
        ({"center": np.zeros((4, 1))}, TypeError, r"center must be 'uniform', a number or a sequence of numbers; got"),
    ],
)
def test_bad_parameterization(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Parameterization(**{"num_classes": 5, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"amplitude": 0.0}, ValueError, r"amplitude must be a finite number above 0; got 0\.0"),
        ({"amplitude": -1}, ValueError, r"amplitude must be a finite number above 0; got -1"),
        ({"amplitude": math.inf}, ValueError, r"amplitude must be a finite number above 0; got inf"),
        ({"amplitude": math.nan}, ValueError, r"amplitude must be a finite number above 0; got nan"),
        ({"amplitude": "wide"}, TypeError, r"amplitude must be a number; got 'wide'"),
        ({"amplitude": True}, TypeError, r"amplitude must be a number; got True"),
        ({"saturation": "clipp"}, ValueError, r"saturation must be one of .*; got 'clipp' \(did you mean 'clip'\?\)"),
        ({"saturation": None}, ValueError, r"saturation must be one of 'clip', 'reflect', 'revive'; got None"),
        ({"floor": -1e-9}, ValueError, r"floor must be a finite number of at least 0; got -1e-09"),
        ({"floor": 0.5}, ValueError, r"floor must lie in \[0, 0\.5\).*; got 0\.5"),
        ({"floor": math.nan}, ValueError, r"floor must be a finite number of at least 0; got nan"),
        ({"floor": None}, TypeError, r"floor must be a number; got None"),
    ],
)
def test_bad_natural(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Natural(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("sigmiod", ValueError, r"parameterization must be one of 'natural', 'sigmoid'; got 'sigmiod' .*'sigmoid'"),
        (4, TypeError, r"parameterization must be 'natural', 'sigmoid', .* or a catnat\.Parameterization; got 4"),
        (Sigmoid, TypeError, r"parameterization must be .*; got <class"),
    ],
)
def test_bad_resolve(value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve(value, 5)  # type: ignore[arg-type]
