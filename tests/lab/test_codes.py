"""What `benchmarks.codes` says of a trained VAE's codes, against plain loops."""

from __future__ import annotations

import csv
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file

from benchmarks import codes
from catnat_lab.vae.digits import Digits
from catnat_lab.vae.networks import NETWORKS
from catnat_lab.vae.stack import Run, Stack

N, K = 3, 4


def kept(folder: Path, head: str, factor: float = 1.0) -> Path:
    """A model as `catnat vae` keeps it, with random weights; ``factor`` scales the last layer of its encoder."""
    stack = Stack([Run("grey", head, 0.0, 1)], NETWORKS["dense"](N, K), "sgd", torch.device("cpu"))
    views, (parted, _) = stack.views(), stack.parted
    with torch.no_grad():
        for view in views:
            view *= 3  # so that codes differ
        for view in views[parted - 2 : parted]:
            view *= factor
    path = folder / "models" / f"vae-mlp-grey-{N}x{K}-{head}.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file({"parameters": stack.parameters.detach()[0]}, path, metadata={"study": f"vae mlp grey {N}x{K} {head}"})
    return path


def digits(count: int) -> torch.Tensor:
    return torch.randint(256, (count, 784), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("head", ["softmax", "catnat-natural"])
def test_every_change_of_one_variable_is_tried(tmp_path: Path, head: str) -> None:
    stack, data, cell, name = codes.stack_in(kept(tmp_path, head))
    assert (data, cell, name) == ("grey", f"{N}x{K}", head)
    x = digits(4).float() / 255
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


def test_the_command_counts_wrong_variables_and_those_it_is_certain_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for head, factor in (("softmax", 1.0), ("catnat-natural", 1e6), ("catnat", 1e-6)):
        kept(tmp_path, head, factor)
    monkeypatch.setattr("sys.argv", ["codes", str(tmp_path), "--images", "6", "--output", str(tmp_path / "out")])
    with patch.object(codes, "load_digits", return_value=Digits(digits(20), digits(20), "made up")):
        codes.main()
    with (tmp_path / "out" / "codes.csv").open() as file:
        found = {row["head"]: row for row in csv.DictReader(file)}
    assert {row["images"] for row in found.values()} == {"6"}
    assert all(float(row["saved"]) > 0 and 0 < float(row["wrong"]) <= 1 for row in found.values())
    certain = [found[head]["certain"] for head in ("catnat-natural", "catnat")]
    assert certain == ["1", "0"]  # by scores of a million, and by scores near 0
    assert (tmp_path / "out" / "codes.json").exists() and "catnat-natural" in capsys.readouterr().out


def test_a_folder_without_models_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["codes", str(tmp_path)])
    with pytest.raises(SystemExit):
        codes.main()
