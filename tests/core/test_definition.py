"""`Parameterization.definition`: numbers that two have in common if, and only if, they are one function."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

from catnat import Activation, Natural, Parameterization, Sigmoid, Tree
from catnat_lab import reference
from tests.core.arsinh import Arsinh
from tests.core.trees import KINDS, make_tree


@dataclass(frozen=True)
class Scaled(Activation):
    """z = scale (x - C)."""

    scale: float

    def logit(self, offset: Any, xp: Any) -> Any:
        return self.scale * offset

    def slope(self, offset: Any, xp: Any) -> Any:
        return self.scale * xp.ones_like(offset)

    def inverse(self, logit: Any, xp: Any) -> Any:
        return logit / self.scale


def cell(steepness: float) -> Activation:
    """As a notebook's cell that is run again: another class of the same name, of which nothing but its code tells."""

    @dataclass(frozen=True)
    class Steep(Scaled):
        scale: float = 2.0

        def logit(self, offset: Any, xp: Any) -> Any:
            return steepness * offset

        def slope(self, offset: Any, xp: Any) -> Any:
            return steepness * xp.ones_like(offset)

        def inverse(self, logit: Any, xp: Any) -> Any:
            return logit / steepness

    return Steep()


ZOO = [
    Sigmoid(),
    Natural(),
    Natural(tail=0.5),
    Natural(tail=0.5, amplitude=3.0),
    Natural(tail=1e-6),
    Natural(amplitude=3.0),
    Natural(tail=0.0),
    Natural(tail=0.0, floor=0.0),
    Natural(tail=0.0, floor=1e-4),
    Arsinh(),
    Scaled(2.0),
    Scaled(2.01),
    cell(2.0),  # the same function as Scaled(2.0)
    cell(3.0),
]
TREES = [make_tree(kind, size, seed) for size in (4, 5) for kind in KINDS for seed in (0, 1)]


def zoo() -> list[Parameterization]:
    found = [Parameterization(1), Parameterization(2), Parameterization(2, tree=Tree.chain(2))]
    for tree, activation in product(dict.fromkeys(TREES), ZOO):
        nodes = tree.num_nodes
        centers = "uniform", 0.0, -0.0, 0.5, (0.5,) * nodes, (0.0,) * nodes, (0.5,) * (nodes - 1) + (0.25,)
        found += [Parameterization(nodes + 1, activation, tree, center) for center in centers]
    return found


def values(pi: Parameterization) -> np.ndarray:
    """log p of every class for scores near the centre, near the ends of the range, and far out."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(12, 4)) * np.repeat([0.3, 1.5, 3.0, 50.0], 3)[:, None]
    found = reference.log_catnat(scores[:, : pi.num_nodes], pi)
    return np.pad(np.maximum(found, -1e4), ((0, 0), (0, 5 - pi.num_classes)), constant_values=1.0).ravel()


def test_definitions_are_equal_if_and_only_if_the_functions_are() -> None:
    groups: dict[tuple[float, ...], list[np.ndarray]] = {}
    for pi in zoo():
        groups.setdefault(tuple(pi.definition.values()), []).append(values(pi))
    for same in groups.values():
        np.testing.assert_allclose(same, np.broadcast_to(same[0], (len(same), 60)), rtol=1e-9, atol=1e-9)
    each = np.stack([same[0] for same in groups.values()])
    for i, one in enumerate(each[:-1]):
        apart = np.abs(each[i + 1 :] - one) > 1e-9 * np.maximum(1, np.abs(one))
        assert apart.any(-1).all(), list(groups)[i]
    assert len(groups) > 200 and max(map(len, groups.values())) >= 3


@pytest.mark.parametrize("activation", ZOO, ids=repr)
def test_a_definition_is_numbers_that_survive_as_whole_numbers(activation: Activation) -> None:
    for center in ("uniform", 0.1, (0.1, 0.2, 0.3, 0.4)):
        pi = Parameterization(5, activation, Tree.chain(5), center)
        numbers = np.array(list(pi.definition.values()))
        assert numbers.dtype == np.float64 and np.isfinite(numbers).all()
        assert dict(zip(pi.definition, numbers.view(np.int64).view(np.float64), strict=True)) == pi.definition
        again = Parameterization(5, activation, Tree(pi.tree.class_places.tolist()), center)  # type: ignore[union-attr]
        assert again.definition == pi.definition


def test_the_sigmoid_by_two_names() -> None:
    for tree in TREES:
        one, other = (Parameterization(tree.num_classes, a, tree) for a in ("sigmoid", Natural(tail=0.5)))
        assert one.definition == other.definition and one != other


def test_minus_zero_is_zero_to_the_last_bit() -> None:
    found = [Parameterization(4, Natural(tail=zero, floor=zero), center=zero).definition for zero in (0.0, -0.0)]
    one, other = (np.array(list(numbers.values())).view(np.int64).tolist() for numbers in found)
    assert one == other
