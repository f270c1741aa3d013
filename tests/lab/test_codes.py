"""What `benchmarks.codes` says of a trained VAE's codes, against plain loops."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks import codes
from catnat_lab.vae.data import images_of
from catnat_lab.vae.digits import Digits
from catnat_lab.vae.networks import NETWORKS
from catnat_lab.vae.stack import Run, Stack

N, K = 3, 4


def kept(folder: Path, head: str, data: str = "grey") -> Path:
    """A model as `catnat vae` keeps it, with random weights."""
    stack = Stack([Run(data, head, 0.0, 1)], NETWORKS["dense"](N, K), "sgd", torch.device("cpu"))
    parameters = 3 * stack.parameters.detach()[0]  # so that codes differ
    path = folder / "models" / f"vae-mlp-{data}-{N}x{K}-{head}.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file({"parameters": parameters}, path, metadata={"study": f"vae mlp {data} {N}x{K} {head}"})
    return path


IMAGES = Digits(*torch.randint(256, (2, 20, 784), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)), "")


@pytest.mark.parametrize("head", ["softmax", "catnat-paper"])
def test_every_change_of_one_variable_is_tried(tmp_path: Path, head: str) -> None:
    stack, table, cell = codes.stack_in(kept(tmp_path, head))
    assert (table, cell, stack.runs[0].head) == ("mlp", f"{N}x{K}", head)
    x = IMAGES.test[:4].float() / 255
    probs, saved = codes.savings(stack, x)
    weights = [view.detach()[0] for view in stack.views()[stack.parted[0] :]]

    def spent(image: torch.Tensor, chosen: list[int]) -> float:
        h = torch.nn.functional.one_hot(torch.tensor(chosen), K).float().flatten()
        for i in range(0, len(weights), 2):
            weight, bias = weights[i : i + 2]
            h = (torch.relu(h) if i else h) @ (weight if weight.shape[0] == len(h) else weight.T) + bias.flatten()
        return float(torch.nn.functional.binary_cross_entropy_with_logits(h, image, reduction="sum"))

    for image, chosen, gains in zip(x, probs.argmax(-1).tolist(), saved, strict=True):
        for variable in range(N):
            for k in range(K):
                other = [*chosen[:variable], k, *chosen[variable + 1 :]]
                gain = spent(image, chosen) - spent(image, other)
                assert float(gains[variable, k]) == pytest.approx(gain, abs=2e-2)


def test_wrong_variables_and_certain_mistakes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two images of three variables: what one change saves, and how probable its class is."""
    saved, probs = torch.zeros(2, N, K), torch.zeros(2, N, K)
    saved[0, 0, 1], probs[0, 0, 1] = 1.1, 0.0009  # wrong, and certain
    saved[0, 1, 1], probs[0, 1, 1] = 1.1, 0.0011  # wrong, but it may be drawn
    saved[0, 2, 1], probs[0, 2, 1] = 0.9, 0.0  # not wrong
    saved[1, 0, 1:3], probs[1, 0, 1:3] = torch.tensor([3.0, 2.0]), torch.tensor([0.0, 0.2])  # the second may be drawn
    saved[1, 1, 1:3], probs[1, 1, 1:3] = torch.tensor([3.0, 0.5]), torch.tensor([0.0, 0.2])  # the second is no better
    monkeypatch.setattr(codes, "savings", lambda stack, x: (probs, saved))
    data, cell, head, count, nats, wrong, certain = codes.measured(kept(tmp_path, "softmax"), IMAGES, 2)
    assert (data, cell, head, count) == ("grey", f"{N}x{K}", "softmax", 2)
    assert (nats, wrong, certain) == pytest.approx(((1.1 + 3.0) / 2, 4 / 6, 2 / 6))


@pytest.mark.parametrize("data", ["grey", "binary", "bernoulli"])
def test_images_are_those_of_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(codes, "savings", lambda stack, x: (seen.append(x), torch.zeros(2, len(x), N, K))[1])
    codes.measured(kept(tmp_path, "softmax", data), IMAGES, 4)
    (pixels,), grey = seen, images_of(IMAGES, ["grey"], split_test=True).test[0, :4] / 255
    assert torch.equal(pixels, grey) is (data == "grey")
    assert torch.equal(pixels, (grey > 0.5).float()) is (data == "binary")
    assert bool(((pixels == 0) | (pixels == 1)).all()) is (data != "grey")


def test_the_command_writes_a_line_per_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for head in ("softmax", "catnat"):
        kept(tmp_path, head)
    monkeypatch.setattr("sys.argv", ["codes", str(tmp_path), "--images", "6", "--output", str(tmp_path / "out")])
    monkeypatch.setattr(codes, "load_digits", lambda folder: IMAGES)
    codes.main()
    with (tmp_path / "out" / "codes.csv").open() as file:
        found = {row["head"]: row for row in csv.DictReader(file)}
    assert {row["images"] for row in found.values()} == {"6"}
    assert all(float(row["saved"]) > 0 and 0 < float(row["wrong"]) <= 1 for row in found.values())
    assert (tmp_path / "out" / "codes.json").exists() and "softmax" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "no model in .*models; `catnat vae` keeps them there"),
        (["--images", "0"], "--images must be at least 1; got 0"),
        (["--digits", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: list[str], told: str
) -> None:
    if given:
        kept(tmp_path, "softmax")
    monkeypatch.setattr("sys.argv", ["codes", str(tmp_path), *given])
    with pytest.raises(SystemExit):
        codes.main()
    assert re.search(told, capsys.readouterr().err)
