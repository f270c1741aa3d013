"""The paper's first figure is drawn, and the numbers printed beside it are true."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")

from catnat_lab import figure as demo
from catnat_lab.errors import UserError

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What one small run prints, and where it draws."""
    folder = tmp_path_factory.mktemp("demo") / "made" / "on the way"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert demo.run(folder, resolution=21) == folder / "landscapes.png"
    return printed.getvalue(), folder


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


def test_draws_a_figure_and_ends_with_its_path(run):
    printed, folder = run
    image = Path(printed.splitlines()[-1])
    assert image.parent == folder
    assert image.read_bytes().startswith(PNG)
    assert image.stat().st_size > 50_000


def test_prints_fisher_matrices(run):
    lines = run[0].splitlines()
    top = next(i for i, line in enumerate(lines) if "Fisher matrix" in line)
    first, second, third = (numbers(line) for line in lines[top : top + 3])
    softmax = torch.tensor([first[:3], second[:3], third])
    p = torch.tensor(demo.EXAMPLE)
    assert torch.allclose(softmax, torch.diag(p) - torch.outer(p, p), atol=1e-4)
    sigmoid, natural = (torch.tensor([first[i : i + 2], second[i : i + 2]]) for i in (3, 5))
    for matrix in (sigmoid, natural):
        assert (matrix.diagonal() > 0).all()
        assert torch.equal(matrix, torch.diag(matrix.diagonal()))
    assert not torch.equal(softmax, torch.diag(softmax.diagonal()))
    # Corollary 1 with A = 2 pi: a quarter of the probability of reaching the node
    assert torch.allclose(natural.diagonal(), torch.tensor([0.25, 0.25 * (1 - demo.EXAMPLE[0])]), atol=1e-4)


def test_counts_steps_from_every_start(run):
    rows = [line.split(")")[1].split() for line in run[0].splitlines() if re.match(r"  \(\d", line)]
    assert len(rows) == 6
    assert all(len(row) == 4 and 0 < int(steps) < demo.STEPS for row in rows for steps in row)
    # softmax knows no order of the classes, and neither does the target
    assert len({row[0] for row in rows}) == 1


def test_starts_and_minimum_are_the_same_distributions_for_every_head():
    p = torch.tensor([demo.START])
    for head in demo.heads():
        scores = head.scores_of(p)
        assert torch.allclose(head.log_probs(scores).exp(), p, atol=1e-6), head.name
        assert abs(float(demo.excess(head, torch.zeros_like(scores)))) < 1e-6, head.name


def test_descent_stays_in_the_slice_that_is_drawn():
    softmax = demo.heads()[0]
    path, losses = demo.descend(softmax, torch.tensor([demo.START]))
    assert softmax.plane is not None
    assert torch.allclose(path @ softmax.plane.T @ softmax.plane, path, atol=1e-5)
    assert (losses.diff(dim=0) < 1e-6).all()


@pytest.mark.parametrize("below", [".", "deeper"])
def test_an_unwritable_folder_is_refused_before_anything_is_printed(below, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("in the way")
    with pytest.raises(UserError, match="cannot write") as caught:
        demo.run(file / below, resolution=5)
    assert str(file) in str(caught.value) and not capsys.readouterr().out
