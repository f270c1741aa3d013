"""Every bad input is refused by a message that names the argument, what came and what was expected."""

from __future__ import annotations

import math

import numpy as np
import pytest

from catnat import Activation, Natural, Parameterization, Sigmoid, Tree
from catnat.core.parameterization import parts_of, resolve
from tests.core.arsinh import Arsinh


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_classes": 0}, ValueError, r"num_classes must be at least 1; got 0"),
        ({"num_classes": 2.5}, TypeError, r"num_classes must be a whole number of at least 1; got 2\.5"),
        ({"num_classes": True}, TypeError, r"num_classes must be a whole number of at least 1; got True"),
        (
            {"activation": "natrual"},
            ValueError,
            r"activation must be one of 'natural', 'sigmoid', 'paper'; got 'natrual' .*'natural'",
        ),
        (
            {"activation": "softmax"},
            ValueError,
            r"activation must be one of 'natural', 'sigmoid', 'paper'; got 'softmax'",
        ),
        (
            {"activation": Natural},
            TypeError,
            r"activation must be 'natural', .* a catnat\.Activation; got <class '.*Natural'>: write Natural\(\)$",
        ),
        (
            {"activation": Tree.chain(4)},
            TypeError,
            r"activation must .*; got Tree\.chain\(4\): write tree=",
        ),
        ({"activation": None}, TypeError, r"activation must be 'natural', .*, or a catnat\.Activation; got None"),
        ({"tree": "chain"}, TypeError, r"tree must be a catnat\.Tree or None; got 'chain'$"),
        ({"tree": [[0, 1], 2]}, TypeError, r"tree must be .*; got \[\[0, 1\], 2\]: write Tree\.from_nested\(\.\.\.\)$"),
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
        ({"center": np.complex64(1)}, TypeError, r"center must be 'uniform', a number .*; got np\.complex64"),
        ({"center": np.zeros((4, 1))}, TypeError, r"center must be 'uniform', a number or a sequence of numbers; got"),
    ],
)
def test_bad_parameterization(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Parameterization(**{"num_classes": 5, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"amplitude": 0.0}, ValueError, r"amplitude must lie in \[1e-30, 1e\+30\]; got 0\.0"),
        ({"amplitude": -1}, ValueError, r"amplitude must lie in \[1e-30, 1e\+30\]; got -1"),
        ({"amplitude": 1e308}, ValueError, r"amplitude must lie in \[1e-30, 1e\+30\]; got 1e\+308"),
        ({"amplitude": 1e-308}, ValueError, r"amplitude must lie in \[1e-30, 1e\+30\]; got 1e-308"),
        ({"amplitude": math.inf}, ValueError, r"amplitude must lie in \[1e-30, 1e\+30\]; got inf"),
        ({"amplitude": math.nan}, ValueError, r"amplitude must lie in \[1e-30, 1e\+30\]; got nan"),
        ({"amplitude": "wide"}, TypeError, r"amplitude must be a number; got 'wide'"),
        ({"amplitude": True}, TypeError, r"amplitude must be a number; got True"),
        ({"tail": 0.7}, ValueError, r"tail must be 0 or lie in \[1e-06, 0\.5\]; got 0\.7"),
        ({"tail": -0.1}, ValueError, r"tail must be 0 or lie in \[1e-06, 0\.5\]; got -0\.1"),
        ({"tail": 1e-9}, ValueError, r"tail must be 0 or lie in \[1e-06, 0\.5\]; got 1e-09"),
        ({"tail": math.nan}, ValueError, r"tail must be 0 or lie in \[1e-06, 0\.5\]; got nan"),
        ({"tail": False}, TypeError, r"tail must be a number; got False"),
        ({"tail": None}, TypeError, r"tail must be a number; got None"),
        ({"tail": "long"}, TypeError, r"tail must be a number; got 'long'"),
        ({"floor": 1e-6}, ValueError, r"floor goes with tail=0 only: with tail=0\.1 .*; got floor=1e-06"),
        ({"tail": 0.5, "floor": 0.0}, ValueError, r"floor goes with tail=0 only: with tail=0\.5 .*; got floor=0\.0"),
        ({"tail": 0.0, "floor": -1e-9}, ValueError, r"floor must be a finite number of at least 0; got -1e-09"),
        ({"tail": 0.0, "floor": 0.5}, ValueError, r"floor must lie in \[0, 0\.5\).*; got 0\.5"),
        ({"tail": 0.0, "floor": math.nan}, ValueError, r"floor must be a finite number of at least 0; got nan"),
        ({"tail": 0.0, "floor": "low"}, TypeError, r"floor must be a number; got 'low'"),
    ],
)
def test_bad_natural(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Natural(**arguments)  # type: ignore[arg-type]


def test_a_number_alone_is_a_tail() -> None:
    """As an amplitude 0.5 would be twelve times as steep, and an amplitude is no tail."""
    assert Natural(0.5) == Natural(tail=0.5)
    with pytest.raises(ValueError, match=r"tail must be 0 or lie in \[1e-06, 0\.5\]; got 3\.14"):
        Natural(math.pi)


MUST_BE = r"^parameterization must be the number of classes or a catnat\.Parameterization; got "


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, r"^num_classes must be at least 1; got 0$"),
        (-1, ValueError, r"^num_classes must be at least 1; got -1$"),
        (np.int64(0), ValueError, r"^num_classes must be at least 1; got 0$"),
        ("sigmoid", TypeError, MUST_BE + r"'sigmoid': write catnat\.Parameterization\(num_classes, 'sigmoid'\)$"),
        ("sigmiod", ValueError, r"^activation must be one of 'natural', .*; got 'sigmiod' .*'sigmoid'"),
        (Sigmoid(), TypeError, MUST_BE + r"Sigmoid\(\): write catnat\.Parameterization\(num_classes, Sigmoid\(\)\)$"),
        (
            Arsinh,
            TypeError,
            MUST_BE + r"<class '.*Arsinh'>: write catnat\.Parameterization\(num_classes, Arsinh\(\)\)$",
        ),
        (Activation, TypeError, MUST_BE + r"<class 'catn.*Activation'>$"),
        (int, TypeError, MUST_BE + r"<class 'int'>$"),
        (0.2, TypeError, MUST_BE + r"0\.2: write .*Natural\(tail=0\.2\)\), or the number of classes before a temp"),
        (
            np.float32(0.5),
            TypeError,
            MUST_BE + r".*0\.5.*: write catnat\.Parameterization\(num_classes, Natural\(tail=0\.5\)\)$",
        ),
        (10.0, TypeError, MUST_BE + r"10\.0$"),
        (Tree.chain(4), TypeError, MUST_BE + r"Tree\.chain\(4\): write catnat\.Parameterization\(4, tree=\.\.\.\)$"),
        (True, TypeError, MUST_BE + r"True$"),
        (np.False_, TypeError, MUST_BE + r".*False.*$"),
        (None, TypeError, MUST_BE + r"None: write catnat\.Parameterization\(num_classes, activation\)$"),
        ([3, 4], TypeError, MUST_BE + r"\[3, 4\]$"),
        (np.arange(4), TypeError, MUST_BE + r"array\(\[0, 1, 2, 3\]\)$"),  # targets in its place
    ],
)
def test_bad_resolve(value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (5, TypeError, r"^nvec must be a sequence of numbers of classes; got 5$"),
        ("34", TypeError, r"^nvec must be a sequence of numbers of classes; got '34'$"),
        (Parameterization(5), TypeError, r"^nvec must be a sequence of numbers of classes; got Parameterization"),
        ([], ValueError, r"^nvec must name at least one part; got none$"),
        ([3, "sigmoid"], TypeError, MUST_BE + r"'sigmoid': write"),
        ([3, 0], ValueError, r"^num_classes must be at least 1; got 0$"),
    ],
)
def test_bad_nvec(value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parts_of(value)  # type: ignore[arg-type]


def test_an_activation_without_one_of_its_methods_cannot_be_made() -> None:
    class Half(Activation):
        def logit(self, offset: object, xp: object) -> object:
            return offset

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


def test_a_tree_in_the_place_of_the_classes():
    with pytest.raises(TypeError, match=r"num_classes must be a whole number .*a tree goes by its name: tree="):
        Parameterization(Tree.balanced(4))  # type: ignore[arg-type]
