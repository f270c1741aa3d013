"""Both backends offer the same names with the same arguments, but for what is on this list, each with a reason."""

from __future__ import annotations

import inspect

import pytest

import catnat.jax as cj
import catnat.torch as ct

# of names
ONLY_IN_JAX = {
    "catnat_linear_loss": "takes weights as arguments; in torch they are a module's",
    "catnat_linear_sample": "likewise",
}
# of arguments, everywhere
RENAMED = {"dim": "axis", "target": "labels"}  # torch's word, JAX's word
DROPPED = {
    "generator": "randomness comes from a key, the first argument",
    "validate_args": "a program checks nothing while it runs",
    "device": "an array is put on its device, not made there",
    "dtype": "an array is cast",
}
# of arguments, here and there: the name, and the default where it is fixed
OWN = {
    ("cross_entropy", "where"): "optax has it",
    ("CatnatLinear.loss", "where"): "likewise",
    ("MovingAverage", "value"): "the state itself, where torch has buffers",
    ("MovingAverage", "seen"): "likewise",
    ("MovingAverage", "skipped"): "likewise",
    ("CatnatLinear.sample", "sample_shape"): "a key is split less easily than a generator goes on",
    ("CatnatLinear.sample", "masking"): "masks go through to the function of the same name",
    ("CatnatLinear.log_probs", "masking"): "likewise",
    ("CatnatLinear.mode", "masking"): "likewise",
    ("CatnatLinear.distribution", "masking"): "likewise",
}
NOT_IN_JAX = {("CatnatLinear.distribution", "mask"): "it is in masking"}
# of methods
FREE_METHODS = {
    "extra_repr": "torch prints with it",
    "forward": "torch calls it; in JAX it is __call__",
    "reset_parameters": "torch's modules change; JAX makes another",
    "init": "makes the arrays that torch's constructor makes",
}

NAMES = sorted(set(ct.__all__) & set(cj.__all__) - {"CatnatLinear", "CategoricalLatent"})  # pytrees: see below
METHODS = ["scores", "log_probs", "loss", "log_prob", "sample", "topk", "mode", "distribution"]
PAIRS = {name: (getattr(ct, name), getattr(cj, name)) for name in NAMES}
PAIRS |= {f"CatnatLinear.{m}": (getattr(ct.CatnatLinear, m), getattr(cj.CatnatLinear, m)) for m in METHODS}
LATENT = ["argmax", "decode", "log_probs", "sample", "sample_prior"]
PAIRS |= {
    f"CategoricalLatent.{m}": (getattr(ct.CategoricalLatent, m), getattr(cj.CategoricalLatent, m)) for m in LATENT
}
PAIRS |= {"CatnatLinear": (ct.CatnatLinear, cj.CatnatLinear.init)}
PAIRS |= {"CategoricalLatent": (ct.CategoricalLatent, cj.CategoricalLatent.init)}


def arguments(thing: object) -> list[inspect.Parameter]:
    found = inspect.signature(thing).parameters.values()  # type: ignore[arg-type]
    return [p for p in found if p.name not in ("self", "args", "kwargs")]


def expected(name: str) -> dict[str, object]:
    """JAX's arguments and defaults, by the rules above from torch's."""
    theirs = {p.name: p for p in arguments(PAIRS[name][0])}
    has_key = "generator" in theirs or name in ("CatnatLinear", "CategoricalLatent")
    found: dict[str, object] = {"key": inspect.Parameter.empty} if has_key else {}
    for word, p in theirs.items():
        if word not in DROPPED and (name, word) not in NOT_IN_JAX:
            found[RENAMED.get(word, word)] = p.default
    return found


def test_both_backends_have_the_same_names() -> None:
    assert set(ct.__all__) == set(cj.__all__) - set(ONLY_IN_JAX)


@pytest.mark.parametrize("name", PAIRS)
def test_arguments_and_defaults_are_the_same(name: str) -> None:
    found = {p.name: p.default for p in arguments(PAIRS[name][1]) if (name, p.name) not in OWN}
    assert found == expected(name)


@pytest.mark.parametrize("name", PAIRS)
def test_what_may_come_by_position_comes_in_the_same_order(name: str) -> None:
    theirs, ours = (
        [p.name for p in arguments(thing) if p.kind is p.POSITIONAL_OR_KEYWORD and (name, p.name) not in OWN]
        for thing in PAIRS[name]
    )
    by_position = {"key", *(RENAMED.get(word, word) for word in theirs)}
    assert [word for word in ours if word in by_position] == [w for w in expected(name) if w in by_position]
    assert set(ours) <= by_position


def methods(of: type) -> set[str]:
    """What a class itself adds, methods and properties, where those who wrote it can change them."""
    kinds = (property, classmethod)
    found = {n for c in of.__mro__ if c.__module__.startswith("catnat") for n, m in vars(c).items()
             if n[0] != "_" and (callable(m) or isinstance(m, kinds))}  # fmt: skip
    return found - set(FREE_METHODS)


def test_a_linear_layer_is_used_alike() -> None:
    only_torch = {"weight", "bias", "in_features", "out_features"}  # attributes of JAX's, or their shapes
    assert methods(cj.CatnatLinear) == methods(ct.CatnatLinear) - only_torch == set(METHODS)


def test_latent_variables_are_used_alike() -> None:
    only_torch = {"distribution"}  # torch's own class
    assert methods(cj.CategoricalLatent) == methods(ct.CategoricalLatent) - only_torch == {*LATENT, "log_prior"}


def test_the_list_names_what_there_is() -> None:
    for name, word in OWN:
        assert word in {p.name for p in arguments(PAIRS[name][1])}, (name, word)
    for name, word in NOT_IN_JAX:
        assert word in {p.name for p in arguments(PAIRS[name][0])}, (name, word)
    every = {p.name for torchs, _ in PAIRS.values() for p in arguments(torchs)}
    assert set(RENAMED) | set(DROPPED) <= every
    assert set(ONLY_IN_JAX) <= set(cj.__all__)
