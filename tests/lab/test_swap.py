"""The stranger's swap: a stack of runs is the runs, every head learns, and the sentences follow the numbers."""

from __future__ import annotations

import csv
import gzip
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import swap
from benchmarks.swap import DEFAULT, HEADS, JUDGE, PM, Row, Setting, Split, Task
from catnat_lab.errors import UserError

CPU = torch.device("cpu")
SMALL = Task("digits", (64, 12, 10), 1, 8, (Setting("Adam", 1e-2), Setting("SGD", 0.1)))


# ---------------------------------------------------------------- training


@pytest.mark.parametrize("setting", SMALL.settings, ids=str)
def test_a_stacked_step_is_the_step_of_every_run_alone(setting: Setting) -> None:
    heads, seeds = list(HEADS.values()), (3, 8)
    starts = [swap.start(SMALL.sizes, seed) for seed in seeds]
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.random((len(seeds), 8, 64), np.float32))
    y = torch.from_numpy(random.integers(0, 10, (len(seeds), 8)))

    def step(layers: swap.Layers, heads: Sequence, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = [part for layer in layers for part in layer]
        optimiser = {"Adam": torch.optim.Adam, "SGD": torch.optim.SGD}[setting.optimiser](parts, lr=setting.rate)
        losses = swap.torch_losses(layers, heads, x, y)
        losses.sum().backward()
        optimiser.step()
        return losses

    together = swap.torch_layers(swap.stack(starts), len(heads), CPU)
    losses = step(together, heads, x, y)
    for h, head in enumerate(heads):
        for s, first in enumerate(starts):
            alone = swap.torch_layers(swap.stack([first]), 1, CPU)
            loss = step(alone, [head], x[s : s + 1], y[s : s + 1])
            torch.testing.assert_close(losses[h, s], loss[0, 0])
            for stacked, single in zip(together, alone, strict=True):
                for a, b in zip(stacked, single, strict=True):
                    torch.testing.assert_close(a.grad[h, s], b.grad[0, 0], rtol=1e-4, atol=1e-6)
                    if setting.optimiser == "SGD":  # Adam's first step is the gradient's sign: noise where it is 0
                        torch.testing.assert_close(a[h, s], b[0, 0])


def test_jax_has_the_same_losses_and_gradients_as_torch() -> None:
    jax = pytest.importorskip("jax")
    pytest.importorskip("optax")
    first = swap.start(SMALL.sizes, 5)
    x, y = np.random.default_rng(0).random((8, 64), np.float32), np.arange(8)
    layers = swap.torch_layers(swap.stack([first]), 1, CPU)
    loss = swap.torch_losses(layers, [HEADS[DEFAULT]], torch.from_numpy(x)[None], torch.from_numpy(y)[None])
    loss.sum().backward()
    value, gradients = jax.value_and_grad(swap.jax_loss)(first, HEADS[DEFAULT], x, y)
    np.testing.assert_allclose(value, loss.item(), rtol=1e-5)
    for ours, theirs in zip(layers, gradients, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(b, a.grad[0, 0], rtol=1e-4, atol=1e-6)


def test_a_mapped_run_in_jax_is_the_run_alone() -> None:
    pytest.importorskip("jax")
    pytest.importorskip("optax")
    split, seeds = swap.small_digits(), (0, 4)
    x, y = (part[:40] for part in split.train)
    starts = [swap.start(SMALL.sizes, seed) for seed in seeds]
    orders = np.stack([swap.order(len(x), SMALL.batch, 1, seed) for seed in seeds])
    train = swap.jax_training("SGD", HEADS[DEFAULT])
    together = train(swap.stack(starts), orders, x, y, 0.1)
    for s, first in enumerate(starts):
        alone = train(swap.stack([first]), orders[s : s + 1], x, y, 0.1)
        for stacked, single in zip(together, alone, strict=True):
            for a, b in zip(stacked, single, strict=True):
                np.testing.assert_allclose(a[s], b[0], rtol=1e-4, atol=1e-6)


def test_a_run_that_is_not_a_number_says_so_and_harms_no_other() -> None:
    rate = 1e30  # far beyond what softmax survives
    alone = swap.train_torch(SMALL, Setting("SGD", rate), [None], (0, 1), swap.small_digits(), CPU)
    assert all(math.isnan(accuracy) for accuracy, _ in alone[0])
    first = swap.stack([swap.start(SMALL.sizes, seed) for seed in (0, 1)])
    first[0][0][0, 0, 0] = np.nan  # one seed of two
    layers = swap.torch_layers(first, len(HEADS), CPU)
    losses = swap.torch_losses(layers, list(HEADS.values()), torch.ones(2, 8, 64), torch.zeros(2, 8, dtype=torch.long))
    losses.sum().backward()
    assert losses[:, 0].isnan().all() and losses[:, 1].isfinite().all()
    assert all(part.grad[:, 1].isfinite().all() for layer in layers for part in layer)


def test_every_epoch_sees_every_image_once_in_an_order_of_its_own() -> None:
    epochs = np.stack(swap.order(count=20, batch=4, epochs=3, seed=1)).reshape(3, 20)
    assert (np.sort(epochs) == np.arange(20)).all()
    assert (epochs[0] != epochs[1]).any()
    full = swap.order(count=22, batch=4, epochs=1, seed=1)
    assert [len(ids) for ids in full] == [4] * 5  # what fills no batch is left out
    kept = swap.order(count=22, batch=4, epochs=2, seed=1, last=True)
    assert [len(ids) for ids in kept] == [4, 4, 4, 4, 4, 2] * 2
    assert all(sorted(np.concatenate(kept[i : i + 6])) == list(range(22)) for i in (0, 6))


# ---------------------------------------------------------------- sentences


def made_up(default: Sequence[float], judge: Sequence[float], backend: str = "torch", rate: float = 0.1) -> list[Row]:
    others = {"softmax": [0.97] * len(judge), JUDGE: judge, DEFAULT: default, "catnat-paper": [0.1] * len(judge)}
    return [
        Row("digits", backend, "SGD", rate, head, seed, accuracy, None if head == "softmax" else 0.25)
        for head, accuracies in others.items()
        for seed, accuracy in enumerate(accuracies)
    ]


def test_differences_are_paired_by_seed() -> None:
    (found,) = swap.findings(made_up([0.90, 0.93, 0.96], [0.91, 0.92, 0.94]))
    assert found.difference == pytest.approx(0.02 / 3)
    assert found.error == pytest.approx(np.std([-0.01, 0.01, 0.02], ddof=1) / math.sqrt(3))
    assert not found.broken
    assert str(found) == f"digits, torch, SGD 0.1: +0.67 {PM} 0.88 points, +0.8 standard errors: kept."


@pytest.mark.parametrize(
    ("default", "judge", "below", "lost"),
    [
        ([0.90, 0.91, 0.92], [0.92, 0.92, 0.92], True, ()),  # 1 point below, error 0.58
        ([0.91, 0.93, 0.91], [0.92, 0.92, 0.92], False, ()),  # a third of a point below, error 0.67
        ([0.92, 0.92, 0.92], [0.92, 0.92, 0.92], False, ()),  # a tie without any spread
        ([0.91, 0.91, 0.91], [0.92, 0.92, 0.92], True, ()),
        ([0.99, 0.19, 0.99], [0.92, 0.20, 0.92], False, (1,)),  # above on the whole, but a seed is lost
        ([0.99, 0.99, math.nan], [0.92, 0.92, 0.92], False, (2,)),
        ([0.93, 0.93, math.nan], [0.92, 0.92, 0.11], False, ()),  # the sigmoid lost it too
        ([math.nan] * 3, [0.92] * 3, False, (0, 1, 2)),
    ],
)
def test_the_rule(default: list[float], judge: list[float], below: bool, lost: tuple[int, ...]) -> None:
    rows = made_up(default, judge)
    (found,) = swap.findings(rows)
    assert (found.below, found.lost, found.broken) == (below, lost, below or bool(lost))
    told = swap.report(rows)
    assert ("Verdict: kept in all 1 settings" in told) == (not found.broken)
    assert ("Verdict: broken in 1 of 1 settings: digits, torch, SGD 0.1" in told) == found.broken
    assert (f"{len(lost)} seeds lost" in told) == bool(lost)


def test_the_report_is_computed_from_the_rows() -> None:
    assert f"| {DEFAULT} | 1 of 2 NaN |" in swap.report(made_up([math.nan, 0.9], [0.9, 0.9]))
    rows = [
        *made_up([0.94, 0.96], [0.93, 0.93]),
        *made_up([0.94, 0.94], [0.93, 0.97], rate=0.5),
        *made_up([0.95, 0.96], [0.93, 0.93], "jax"),
    ]
    told = swap.report(rows)
    assert "| digits, torch | SGD 0.1 | SGD 0.5 |" in told
    assert f"| {DEFAULT} | 95.00 {PM} 1.00 (94.0) | 94.00 {PM} 0.00 (94.0) |" in told
    assert (
        "below catnat-sigmoid by more than a standard error in 0 of 3 settings, and above by more than one in 2" in told
    )
    assert "Were the two equal, 0.8 would be" in told  # a quarter of three: Student's t, one degree of freedom
    assert "catnat-paper: 6 of 6 runs lost; nodes beyond the natural range: 25% to 25%" in told
    assert "the rule broken in 3 of 3 settings" in told  # the paper's head
    assert f"{DEFAULT} minus softmax, by setting: -3.00 to -1.50 points" in told
    assert "at most 0.50 points apart" in told
    assert "Verdict: kept in all 3 settings." in told


# ---------------------------------------------------------------- files


def write_idx(folder: Path, count: int, labels: int) -> None:
    random = np.random.default_rng(0)
    for name in ("train", "t10k"):
        pixels = random.integers(0, 256, count * 784, np.uint8).tobytes()
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, count, 28, 28) + pixels)
        classes = struct.pack(">2I", 0x801, labels) + random.integers(0, 10, labels, np.uint8).tobytes()
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(classes))


def test_mnist_is_read_with_its_labels(tmp_path: Path) -> None:
    write_idx(tmp_path, 12, 12)
    split = swap.mnist(tmp_path)
    for x, y in (split.train, split.test):
        assert x.shape == (12, 784) and x.dtype == np.float32 and x.min() >= 0 and 0.9 < x.max() <= 1
        assert y.shape == (12,) and y.dtype == np.int64 and y.max() < 10


def test_labels_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path, 12, 11)
    with pytest.raises(UserError, match="a label per image, 12; it has 11"):
        swap.mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"no labels at all"))
    with pytest.raises(UserError, match="expected IDX, magic number 0x00000801"):
        swap.mnist(tmp_path)


def test_the_command_records_all_runs_and_hides_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, output = tmp_path / "private", tmp_path / "results"
    folder.mkdir()
    write_idx(folder, 12, 12)
    task = Task("mnist", (784, 8, 10), 1, 4, SMALL.settings)
    monkeypatch.setitem(swap.TASKS, "mnist", task)
    given = ["--tasks", "mnist", "--backend", "torch", "--seeds", "2", "--tails", "0.2", "--sgd", "0.5", "1"]
    monkeypatch.setattr("sys.argv", ["swap", *given, "--digits", str(folder), "--output", str(output)])
    swap.main()
    with (output / "swap.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["task", "backend", "optimiser", "rate", "head", "seed", "accuracy", "beyond"]
    assert len(rows) == 2 * (len(HEADS) + 1) * 2 and {row["rate"] for row in rows} == {"0.5", "1.0"}
    assert {row["head"] for row in rows} == {*HEADS, "tail 0.2"}
    facts = json.loads((output / "swap.json").read_text())
    assert "--digits FOLDER" in facts["command"] and "private" not in json.dumps(facts)
    assert "commit" in facts and "tail" in facts["default"]
    assert "Verdict:" in (output / "swap.md").read_text()


def test_every_seed_may_have_a_split_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[tuple[int, ...], Split]] = []
    monkeypatch.setattr(swap, "run", lambda *given: seen.append((tuple(given[3]), given[4])) or [])
    monkeypatch.setattr(swap, "report", lambda rows: "")
    common = ["swap", "--backend", "torch", "--sgd", "0.1", "--seeds", "3", "--tasks"]
    monkeypatch.setattr("sys.argv", [*common, "digits", "--own-splits"])
    swap.main()
    assert [seeds for seeds, _ in seen] == [(0,), (1,), (2,)]
    images = [{row.tobytes() for half in (split.train, split.test) for row in half[0]} for _, split in seen]
    assert images[0] == images[1] == images[2]  # the same digits
    tested = [{row.tobytes() for row in split.test[0]} for _, split in seen]
    assert all(0.4 < len(a & b) / len(a) < 0.6 for a, b in combinations(tested, 2))  # parted independently
    monkeypatch.setattr("sys.argv", [*common, "mnist", "--own-splits", "--digits", "here"])
    with pytest.raises(SystemExit):
        swap.main()


def test_a_last_batch_and_momentum_are_those_of_a_plain_loop() -> None:
    random = np.random.default_rng(0)
    x, y = random.random((10, 64), np.float32), random.integers(0, 10, 10)
    task, seed = replace(SMALL, batch=4, epochs=10, last=True, momentum=0.9), 3
    layers: list[torch.nn.Module] = []
    for weight, bias in swap.start(task.sizes, seed):
        linear = torch.nn.Linear(*weight.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight.T))
            linear.bias.copy_(torch.from_numpy(bias))
        layers += [*([torch.nn.ReLU()] if layers else []), linear]
    model = torch.nn.Sequential(*layers)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for ids in swap.order(10, task.batch, task.epochs, seed, last=True):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.from_numpy(x[ids])), torch.from_numpy(y[ids])).backward()
        optimiser.step()
    test = random.random((2000, 64), np.float32)
    split = swap.Split((x, y), (test, model(torch.from_numpy(test)).argmax(-1).numpy()))  # right is what the loop says
    ((accuracy, _),) = swap.train_torch(task, Setting("SGD", 0.05), [HEADS["softmax"]], [seed], split, CPU)[0]
    assert accuracy > 0.99
    for other in (replace(task, momentum=0.8), replace(task, last=False)):
        ((accuracy, _),) = swap.train_torch(other, Setting("SGD", 0.05), [HEADS["softmax"]], [seed], split, CPU)[0]
        assert accuracy < 0.95
