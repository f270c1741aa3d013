"""Both backends offer the same names with the same arguments, but for the differences in this table."""

from __future__ import annotations

import inspect

import pytest

import catnat.jax as cj
import catnat.torch as ct

RENAMED = {"dim": "axis", "target": "labels"}  # torch's word, JAX's word
# JAX has a key, which comes first, checks nothing at run time, and warns of nothing from inside a compiled program
DROPPED = {"generator", "validate_args", "warn"}
OWN = {  # what JAX adds: the argument's name and default
    "cross_entropy": {"where": None},
    "MovingAverage": {"value": ..., "seen": ...},  # the state itself, where torch has buffers
}
DEFAULTS = {  # as in optax
    ("cross_entropy", "reduction"): "none",
    ("CatnatCrossEntropyLoss", "reduction"): "none",
}
WHOLE = {
    "network_fisher": ["network", "parameters", "inputs", "score_fisher"],  # a function and its parameters apart
    "CatnatLinear": ["weight", "bias", "parameterization"],  # a pytree of its arrays; `init` makes one
}
LINEAR = {"catnat_linear_loss", "catnat_linear_sample"}  # of weights that are arguments; in torch they are a module's
RANDOM = {"monte_carlo_fisher"}  # draws by torch's global seed, so it has no generator to drop

NAMES = sorted(set(ct.__all__) & set(cj.__all__))


def arguments(thing: object) -> list[inspect.Parameter]:
    """Those of a function, or of a class's constructor."""
    found = inspect.signature(thing).parameters.values()  # type: ignore[arg-type]
    return [p for p in found if p.name not in ("self", "args", "kwargs")]


def expected(name: str) -> dict[str, object]:
    """JAX's arguments and defaults, by the rules above from torch's."""
    theirs = {p.name: p for p in arguments(getattr(ct, name))}
    found: dict[str, object] = {"key": inspect.Parameter.empty} if "generator" in theirs or name in RANDOM else {}
    for word, p in theirs.items():
        if word not in DROPPED:
            word = RENAMED.get(word, word)
            found[word] = DEFAULTS.get((name, word), p.default)
    return {**found, **OWN.get(name, {})}


def test_both_backends_have_the_same_names() -> None:
    assert set(ct.__all__) == set(cj.__all__) - LINEAR


@pytest.mark.parametrize("name", NAMES)
def test_arguments_and_defaults_are_the_same(name: str) -> None:
    ours = {p.name: p.default for p in arguments(getattr(cj, name))}
    if name in WHOLE:
        assert list(ours) == WHOLE[name]
        return
    wanted = expected(name)
    assert set(ours) == set(wanted)
    assert {n: d for n, d in ours.items() if wanted[n] is not ...} == {n: d for n, d in wanted.items() if d is not ...}


@pytest.mark.parametrize("name", NAMES)
def test_what_may_come_by_position_comes_in_the_same_order(name: str) -> None:
    if name in WHOLE:
        return

    def in_order(thing: object) -> list[str]:
        return [p.name for p in arguments(thing) if p.kind is p.POSITIONAL_OR_KEYWORD]

    wanted = [n for n in expected(name) if n in {"key", *(RENAMED.get(w, w) for w in in_order(getattr(ct, name)))}]
    ours = [n for n in in_order(getattr(cj, name)) if n not in OWN.get(name, {})]
    assert ours == wanted


def test_a_linear_layer_is_made_and_used_alike() -> None:
    theirs = {
        p.name: p.default for p in arguments(ct.CatnatLinear) if p.name not in {*DROPPED, "device", "dtype", "sparse"}
    }
    ours = {p.name: p.default for p in arguments(cj.CatnatLinear.init) if p.name != "key"}
    assert ours == theirs
    methods = {name for name, method in vars(cj.CatnatLinear).items() if callable(method) and name[0] != "_"}
    assert methods == {"scores", "log_probs", "loss", "sample", "mode", "distribution"} <= set(vars(ct.CatnatLinear))


def test_the_table_names_what_there_is() -> None:
    assert {*OWN, *WHOLE, *RANDOM, *(name for name, _ in DEFAULTS)} <= set(ct.__all__)
