"""The places where people draw Gumbel-softmax samples train, with every head that their study names."""

import importlib
import math

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("place", ["dreams", "messages", "pixels", "router", "speech", "springs"])
def test_a_place_trains(place: str) -> None:
    pytest.importorskip("mlxtend" if place == "pixels" else "gymnasium")
    train = importlib.import_module(f"benchmarks.places.{place}").train
    for head in ("softmax", "natural", *["place"] * (place == "pixels")):
        found = train(head, 0.003, 1, steps=3)
        assert len(found) == 2 and all(map(math.isfinite, found))
        assert train(head, 0.003, 1, steps=3) == found  # its seed says all
