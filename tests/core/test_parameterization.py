"""Laws of `Parameterization`, `Natural` and `Sigmoid`."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import pickle
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catnat import Activation, Natural, Parameterization, Sigmoid, Tree
from catnat.core.parameterization import ACTIVATIONS as NAMED
from catnat.core.parameterization import DEFAULT_TAIL, check_activation, resolve
from catnat_lab import reference
from tests.core.arsinh import Arsinh
from tests.core.trees import KINDS, make_tree, trees

ACTIVATIONS: list[Activation] = [
    Sigmoid(),
    Natural(),
    Natural(tail=0.5),
    Natural(amplitude=0.7, tail=0.2),
    Natural(amplitude=100.0, tail=1e-6),
    Natural(tail=0.0),
    Natural(tail=0.0, floor=0.0),
    Natural(amplitude=0.7, tail=0.0),
    Natural(amplitude=100.0, tail=0.0, floor=1e-12),
    Arsinh(),
]


# -- the centre --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_uniform_centre_makes_zero_scores_uniform(kind: str, activation: Activation) -> None:
    for size in range(1, 71):
        pi = Parameterization(size, activation, make_tree(kind, size, seed=size))
        probabilities = reference.catnat(np.zeros(size - 1), pi)
        np.testing.assert_allclose(probabilities, 1 / size, rtol=1e-14)


@given(trees(70))
def test_uniform_centre_is_zero_exactly_where_both_sides_are_alike(tree: Tree) -> None:
    nodes = np.arange(1, tree.num_classes)
    alike = tree.leaf_counts[2 * nodes] == tree.leaf_counts[2 * nodes + 1]
    for activation in NAMED:
        centers = Parameterization(tree.num_classes, activation, tree).centers
        assert ((centers == 0) == alike).all()


@given(st.integers(1, 20), st.floats(-5, 5))
def test_a_number_is_the_centre_of_every_node(size: int, center: float) -> None:
    assert Parameterization(size, center=center).centers.tolist() == [center] * (size - 1)


@given(st.lists(st.floats(-5, 5), max_size=20))
def test_a_sequence_is_the_centre_node_by_node(centers: list[float]) -> None:
    size = len(centers) + 1
    for given_as in (centers, tuple(centers), np.array(centers)):
        pi = Parameterization(size, "sigmoid", center=given_as)  # type: ignore[arg-type]
        assert pi.centers.tolist() == centers
        assert pi == Parameterization(size, "sigmoid", center=tuple(centers))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@given(scores=st.lists(st.floats(-2, 2), min_size=4, max_size=4), shift=st.floats(-3, 3))
def test_the_centre_shifts_the_scores(activation: Activation, scores: list[float], shift: float) -> None:
    centered = reference.catnat(np.array(scores) + shift, Parameterization(5, activation, center=shift))
    plain = reference.catnat(np.array(scores), Parameterization(5, activation, center=0.0))
    np.testing.assert_allclose(centered, plain, rtol=1e-10, atol=1e-13)


# -- the activations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_inverse_undoes_the_activation(activation: Activation) -> None:
    probability = np.concatenate([np.linspace(1e-3, 1 - 1e-3, 101), 10.0 ** -np.arange(3, 8)])
    pi = Parameterization(probability.size + 1, activation, center=0.0)
    log_0, log_1, _, _ = reference.activation(activation.inverse(np.log(probability / (1 - probability)), np), pi)
    np.testing.assert_allclose(np.exp(log_1), probability, rtol=1e-9)
    np.testing.assert_allclose(np.exp(log_0), 1 - probability, rtol=1e-9)


@given(st.floats(0, 0.499), st.floats(0.1, 50))
def test_margin_is_the_distance_at_which_the_floor_is_met(floor: float, amplitude: float) -> None:
    margin = Natural(amplitude=amplitude, tail=0.0, floor=floor).margin
    unbounded = Natural(amplitude=amplitude, tail=0.0, floor=0.0)
    at_margin = reference.catnat(np.array([margin - amplitude / 2]), Parameterization(2, unbounded))
    assert at_margin[1] == pytest.approx(floor, rel=1e-6, abs=1e-15)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=9), st.floats(0.1, 50))
def test_edges_are_exact_in_two_parts(centers: list[float], amplitude: float) -> None:
    parts = Natural(amplitude=amplitude, tail=0.0).edges(np.array(centers))
    for lower, lower_rest, upper, upper_rest, center in zip(*(p.tolist() for p in parts), centers, strict=True):
        # fsum rounds once: the three numbers cancel to the last digit
        assert math.fsum([lower, lower_rest, -center, amplitude / 2]) == 0
        assert math.fsum([upper, upper_rest, -center, -amplitude / 2]) == 0
        assert lower + lower_rest == lower and upper + upper_rest == upper


def test_the_default_slope_at_the_centre_is_the_sigmoids() -> None:
    slopes = [reference.activation(np.zeros(1), Parameterization(2, a))[3] for a in NAMED]
    np.testing.assert_allclose(slopes, 0.5, rtol=1e-15)


def test_the_names_mean_what_they_say() -> None:
    assert Parameterization(5).activation == Parameterization(5, "natural").activation == Natural(tail=DEFAULT_TAIL)
    assert Parameterization(5, "sigmoid").activation == Sigmoid()
    assert Parameterization(5, "paper").activation == Natural(tail=0.0, floor=0.0)


def test_only_the_papers_has_a_floor() -> None:
    assert Natural(tail=0.0).floor == 1e-8 and Natural().floor is None


@given(st.floats(1e-6, 0.5), st.floats(0.1, 50))
def test_the_formula_of_the_papers_holds_between_the_joints(tail: float, amplitude: float) -> None:
    natural = Natural(amplitude=amplitude, tail=tail)
    x = np.linspace(-0.999, 0.999, 9) * natural.joint / natural.gain
    a = 1 / (1 + np.exp(-natural.logit(x, np)))
    np.testing.assert_allclose(a, (1 + np.sin(math.pi * x / amplitude)) / 2, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("amplitude", [1e-30, 1e30])
def test_the_largest_and_least_amplitudes_give_numbers(amplitude: float) -> None:
    for tail in (0.0, 1e-6, 0.05, 0.5):
        pi = Parameterization(5, Natural(amplitude=amplitude, tail=tail))
        for scores in (np.zeros(4), np.full(4, amplitude / 8), np.full(4, -1e3)):
            assert np.isfinite(np.stack(reference.activation(scores, pi))).all()


# -- a value -----------------------------------------------------------------------------------------------------

DIFFERENT = [
    Parameterization(5),
    Parameterization(6),
    Parameterization(5, "sigmoid"),
    Parameterization(5, "paper"),
    Parameterization(5, Arsinh()),
    Parameterization(5, Natural(tail=0.01)),
    Parameterization(5, Natural(amplitude=1.0)),
    Parameterization(5, Natural(tail=0.0)),
    Parameterization(5, Natural(tail=0.0, floor=1e-4)),
    Parameterization(5, tree=Tree.chain(5)),
    Parameterization(5, center=0.5),
    Parameterization(5, center=(0.5, 0.5, 0.5, 0.25)),
]


def test_any_difference_makes_them_unequal() -> None:
    for i, one in enumerate(DIFFERENT):
        for j, other in enumerate(DIFFERENT):
            assert (one == other) == (i == j)
    assert len(set(DIFFERENT)) == len(DIFFERENT)


def test_ways_to_say_the_same_are_equal_and_hash_alike() -> None:
    same = [
        Parameterization(5),
        Parameterization(num_classes=5, activation="natural", tree=None, center="uniform"),
        Parameterization(np.int64(5), Natural(), Tree.balanced(5)),  # type: ignore[arg-type]
        Parameterization(5, Natural(amplitude=2 * math.pi, tail=DEFAULT_TAIL)),
        resolve(5),
        resolve(np.int32(5)),  # type: ignore[arg-type]
    ]
    assert len(set(same)) == 1
    assert Natural(amplitude=6) == Natural(amplitude=6.0)
    assert Natural(tail=0) == Natural(tail=0.0, floor=1e-8)
    assert Parameterization(5, "paper") == Parameterization(5, Natural(tail=0.0, floor=0))


@pytest.mark.parametrize("pi", DIFFERENT, ids=range(len(DIFFERENT)))
def test_copies_are_equal_hash_alike_and_stay_frozen(pi: Parameterization) -> None:
    for twin in (copy.copy(pi), copy.deepcopy(pi), pickle.loads(pickle.dumps(pi)), dataclasses.replace(pi)):
        assert twin == pi and hash(twin) == hash(pi)
        assert twin.centers.tolist() == pi.centers.tolist()
        assert not twin.centers.flags.writeable


def test_a_value_from_another_process_hashes_like_one_made_here() -> None:
    # a model saved in one process and loaded in another; Python salts the hash of strings differently in each
    made = "catnat.Parameterization(5, tree=catnat.Tree.chain(5), center=(0.5, 0.0, 0.0, 0.0))"
    code = f"import pickle, sys, catnat; pi = {made}; sys.stdout.buffer.write(pickle.dumps((pi, pi.definition)))"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
    loaded, definition = pickle.loads(done.stdout)
    here = Parameterization(5, tree=Tree.chain(5), center=(0.5, 0.0, 0.0, 0.0))
    assert loaded == here and hash(loaded) == hash(here) and definition == here.definition


@pytest.mark.parametrize("value", [Natural(), Natural(tail=0.0), Parameterization(3)], ids=repr)
def test_no_field_can_be_set(value: object) -> None:
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)


def test_centres_cannot_be_written_to() -> None:
    for center in ("uniform", 0.5, (0.5, 0.5)):
        with pytest.raises(ValueError, match="read-only"):
            Parameterization(3, center=center).centers[0] = 1.0  # type: ignore[arg-type]


def test_resolve_hands_a_parameterization_through() -> None:
    pi = Parameterization(5)
    assert resolve(pi) is pi


@pytest.mark.parametrize("number", [np.float32(1), np.float16(1), np.int8(1), 1, np.float64(1)], ids=repr)
def test_a_centre_is_any_real_number(number: float) -> None:
    assert Parameterization(3, center=number) == Parameterization(3, center=1.0)
    assert Parameterization(3, center=(number, 0)) == Parameterization(3, center=(1.0, -0.0))


def test_a_pickle_of_a_balanced_parameterization_is_small_and_builds_no_tree() -> None:
    tracemalloc.start()
    written = pickle.dumps(Parameterization(20_000_000, "sigmoid", center=0.5))
    loaded = pickle.loads(written)
    assert repr(loaded) == "Parameterization(num_classes=20000000, activation=Sigmoid(), tree=balanced, center=0.5)"
    assert loaded.tree != Tree.chain(20_000_000) and loaded.tree == Tree.balanced(20_000_000)
    assert len(written) < 300 and tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


# -- an activation of the user's own -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Kinked(Activation):
    """z = rise x up to 1 on both sides, and twice as steep beyond."""

    rise: float = 1.0

    def logit(self, offset: Any, xp: Any) -> Any:
        return self.rise * (offset + xp.where(xp.abs(offset) > 1, offset - xp.sign(offset), 0.0))

    def slope(self, offset: Any, xp: Any) -> Any:
        return self.rise * xp.where(xp.abs(offset) > 1, 2.0, 1.0)

    def inverse(self, logit: Any, xp: Any) -> Any:
        z = logit / self.rise
        return xp.where(xp.abs(z) > 1, (z + xp.sign(z)) / 2, z)


class Flat(Kinked):
    def slope(self, offset: Any, xp: Any) -> Any:
        return 0.0 * offset


class Even(Kinked):
    def slope(self, offset: Any, xp: Any) -> Any:
        return self.rise  # of which only the middle is right


class Lost(Kinked):
    def slope(self, offset: Any, xp: Any) -> Any:
        return xp.nan * offset


class Mirrored(Kinked):
    def inverse(self, logit: Any, xp: Any) -> Any:
        return -super().inverse(logit, xp)


class Halfway(Kinked):
    def inverse(self, logit: Any, xp: Any) -> Any:
        return logit / self.rise


@dataclass(frozen=True)
class Bounded(Activation):
    """z = atanh(x): infinite at the ends of a range."""

    def logit(self, offset: Any, xp: Any) -> Any:
        return xp.arctanh(xp.clip(offset, -1.0, 1.0))

    def slope(self, offset: Any, xp: Any) -> Any:
        return 1 / (1 - xp.clip(offset, -1.0, 1.0) ** 2)

    def inverse(self, logit: Any, xp: Any) -> Any:
        return xp.tanh(logit)


@pytest.mark.parametrize("rise", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    ("wrong", "what"), [(Flat, "slope"), (Even, "slope"), (Lost, "slope"), (Mirrored, "inverse"), (Halfway, "inverse")]
)
def test_a_wrong_slope_or_inverse_is_refused(wrong: type[Kinked], what: str, rise: float) -> None:
    with pytest.raises(
        ValueError, match=rf"{wrong.__name__}\.{what} must be that of its logit: at an offset of -?[\d.]+"
    ):
        Parameterization(5, wrong(rise))


@pytest.mark.parametrize("right", [Kinked(), Kinked(1e-6), Kinked(1e6), Bounded(), Arsinh()], ids=repr)
def test_right_ones_pass_with_kinks_and_ends_too(right: Activation) -> None:
    check_activation(right)


def test_what_is_equal_has_one_number_and_all_else_another() -> None:
    kinds = [(6,), (7,), (6, "sigmoid"), (6, "natural", Tree.chain(6)), (6, "natural", None, 0.3)]
    first, again = ([Parameterization(*kind) for kind in kinds] for _ in range(2))
    assert [pi.number for pi in first] == [pi.number for pi in again]
    assert len({pi.number for pi in first}) == len(kinds)
