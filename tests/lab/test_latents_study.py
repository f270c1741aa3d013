"""The study of latents: it does what its rule says, goes on where it was stopped, and needs little to run."""

from __future__ import annotations

import gzip
import math
import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from catnat_lab.latents import __main__ as command
from catnat_lab.latents import records
from catnat_lab.latents.heads import HEADS
from catnat_lab.latents.records import Group, Job, Results
from catnat_lab.latents.report import answer, lines, report
from catnat_lab.latents.rule import FIRST, RATES, Rule, best, dropped, next_group
from catnat_lab.latents.train import Cell, Run, train

SRC = Path(__file__).resolve().parents[2] / "src"
CELL = Cell(16, 8, "reinmax")
Bound = Callable[[Job], float]


def conducted(rule: Rule, bound: Bound, done: Results | None = None) -> tuple[Results, list[Group]]:
    """What a study comes to whose runs have these bounds."""
    found, groups = dict(done or {}), []
    while (group := next_group(rule, found)) is not None:
        assert not set(group.jobs) & set(found)  # nothing is run twice
        groups.append(group)
        for job in group.jobs:
            searches = job.stage in ("coarse", "full")
            found[job] = {"validation": bound(job)} if searches else {"test": bound(job), "train": bound(job) - 5}
    return found, groups


def bowl(at: float, heads: dict[str, float] | None = None) -> Bound:
    """The best rate is near this one; heads may be so much worse; seeds differ by hundredths."""

    def bound(job: Job) -> float:
        apart = math.log2(job.run.rate / at) ** 2
        return 100 + apart + (heads or {}).get(job.run.head, 0.0) + 0.01 * math.sin(job.run.seed)

    return bound


# -- the rule ------------------------------------------------------------------------------------------------------

ONE = Rule(sizes=((16, 8),), estimators=("reinmax",))


def test_a_search_grows_at_its_end_and_no_further_than_twice() -> None:
    for at, expected in ((0.001, RATES), (0.0001, (0.000125, 0.00025, *RATES)), (0.004, (*RATES, 0.004, 0.008))):
        done, _ = conducted(Rule(sizes=((16, 8),), estimators=("reinmax",), stages=("coarse",)), bowl(at))
        for head in HEADS:
            tried = sorted({job.run.rate for job in done if job.run.head == head})
            assert tried == pytest.approx(expected)


def test_finals_are_at_the_best_rate_of_full_length_runs() -> None:
    def bound(job: Job) -> float:
        return bowl(0.001 if job.stage == "coarse" else 0.0007)(job)

    done, groups = conducted(ONE, bound)
    finals = [job.run for job in done if job.stage == "final"]
    assert Counter(run.head for run in finals) == dict.fromkeys(HEADS, 16)
    assert {run.rate for run in finals} == {0.000707}
    assert {run.seed for run in finals} == set(range(1, 17))
    assert not {0, 1001} & {run.seed for run in finals}  # no final run was looked at in the search
    assert {run.head for group in groups[:4] for run in group.runs if group.stage == "final"} <= set(FIRST)
    assert {(job.stage, job.run.head) for job in done if job.stage in ("control", "again")} == {
        (stage, head) for stage in ("control", "again") for head in FIRST
    }


def test_a_lower_rate_is_tried_where_the_lowest_is_best() -> None:
    done, _ = conducted(ONE, lambda job: bowl(0.001 if job.stage == "coarse" else 0.0002)(job))
    assert {job.run.rate for job in done if job.stage == "full"} == {0.001, 0.000707, 0.0005, 0.00025}
    assert {job.run.rate for job in done if job.stage == "final"} == {0.00025}


def test_hopeless_heads_are_dropped_and_those_of_the_question_are_not() -> None:
    worse = {"haar": 5.5, "hybrid": 4.5, "catnat": 9.0}
    done, _ = conducted(ONE, bowl(0.001, worse))
    assert dropped(ONE, done, CELL) == ["haar"]
    assert {job.run.head for job in done if job.stage == "final"} == set(HEADS) - {"haar"}


def test_a_hopeless_estimator_keeps_the_two_heads_of_the_question() -> None:
    rule = Rule(sizes=((16, 8),), estimators=("reinmax", "straight-through"))
    far, near = (Cell(16, 8, name) for name in ("straight-through", "reinmax"))
    done, _ = conducted(rule, lambda job: bowl(0.001)(job) + 10.5 * (job.cell == far))
    assert set(dropped(rule, done, far)) == set(HEADS) - set(FIRST)
    assert not dropped(rule, done, near)


def test_a_setting_with_a_lost_run_is_out() -> None:
    def bound(job: Job) -> float:
        return math.nan if (job.run.rate, job.run.seed) == (0.001, 1001) else bowl(0.001)(job)

    done, _ = conducted(Rule(sizes=((16, 8),), estimators=("reinmax",), stages=("coarse",)), bound)
    choice = best(ONE, done, "coarse", CELL, "softmax")
    assert choice is not None and choice[0] in (0.0005, 0.002)


# -- the report ----------------------------------------------------------------------------------------------------


def finals(rule: Rule, ahead: float, *, lost: int = 0, count: int = 6) -> Results:
    """Final runs of softmax and of catnat so many nats ahead, by ReinMax, at the first sizes."""
    found: Results = {}
    for size in rule.sizes[:count]:
        for head, level in (("softmax", 100.0), ("catnat", 100.0 - ahead)):
            for seed in range(1, rule.final_seeds + 1):
                gone = head == "catnat" and seed <= lost
                test = math.nan if gone else level + 0.2 * math.sin(7.0 * seed + len(head))
                found[Job("final", Cell(*size, "reinmax"), Run(head, 1e-3, 1.0, seed))] = {"test": test, "train": test}
    return found


@pytest.mark.parametrize(
    ("ahead", "lost", "verdict"),
    [(1.0, 0, "helps"), (-1.0, 0, "harms"), (0.4, 0, "level"), (1.0, 1, "helps"), (1.0, 2, "level: lost 2")],
)
def test_verdicts(ahead: float, lost: int, verdict: str) -> None:
    found = lines(Rule(), finals(Rule(), ahead, lost=lost), ["reinmax"], ["catnat"])
    assert [line.verdict for line in found] == [verdict] * 6
    assert all(line.found.difference == pytest.approx(-ahead, abs=0.2) for line in found)


def test_holm_counts_the_cells_that_are_still_to_come() -> None:
    one, six = (lines(Rule(), finals(Rule(), 0.1, count=count), ["reinmax"], ["catnat"]) for count in (1, 6))
    assert one[0].found.p == pytest.approx(min(1.0, six[0].found.p))
    assert 0 < one[0].found.p < 1  # else there would be nothing to see


def test_an_answer_waits_for_all_sizes() -> None:
    assert answer(["helps"] * 5, Rule()) == "not yet"
    assert answer(["helps"] * 4 + ["level"] * 2, Rule()) == "ahead"
    assert answer(["helps"] * 5 + ["harms"], Rule()) == "mixed"
    assert answer(["harms"] * 4 + ["level"] * 2, Rule()) == "behind"
    assert answer(["level"] * 6, Rule()) == "mixed"


def test_a_report_can_be_made_of_nothing_and_of_all() -> None:
    assert "No cell is finished" in report({})
    done, _ = conducted(ONE, bowl(0.001, {"catnat": -2.0}))
    told = report(done, ONE)
    assert "helps" in told and "| reinmax | catnat | 1 | 0 | 0 | 0 |" in told
    assert "| control | 16x8 |" in told and "| again | 16x8 |" in told


# -- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    folder.mkdir()
    draw = torch.Generator().manual_seed(0)
    for name, count in (("train-images-idx3-ubyte", 220), ("t10k-images-idx3-ubyte", 30)):
        pixels = torch.randint(0, 256, (count * 784,), generator=draw, dtype=torch.uint8)
        header = struct.pack(">4i", 0x803, count, 28, 28)
        (folder / f"{name}.gz").write_bytes(gzip.compress(header + pixels.numpy().tobytes()))
    return folder


def arguments(digits: Path, output: Path, *more: str) -> list[str]:
    chosen = ["--estimators", "reinmax", "--sizes", "2x4", "--device", "cpu", "--rehearse"]
    return ["run", "--digits", str(digits), "--output", str(output), *chosen, *more]


def test_a_killed_study_goes_on_and_runs_nothing_twice(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[Cell, Run, int]] = []
    real = train

    def counted(runs: Sequence[Run], cell: Cell, setting: Any, *rest: Any) -> Any:
        if len(trained) > 50 and not killed:
            killed.append(True)
            raise KeyboardInterrupt
        found = real(runs, cell, setting, *rest)
        trained.extend((cell, run, setting.epochs) for run in runs)
        return found

    killed = [True]  # first a study that is not
    monkeypatch.setattr(command, "REHEARSAL", replace(command.REHEARSAL, heads=FIRST))
    monkeypatch.setattr(command, "train", counted)
    assert command.main(arguments(digits, tmp_path / "whole")) == 0
    whole, all_runs = records.read(tmp_path / "whole"), Counter(trained)
    trained.clear()
    killed.clear()
    with pytest.raises(KeyboardInterrupt):
        command.main(arguments(digits, tmp_path / "stopped"))
    first = len(records.read(tmp_path / "stopped"))
    assert 0 < first < len(whole)
    assert command.main(arguments(digits, tmp_path / "stopped")) == 0
    assert Counter(trained) == all_runs and set(all_runs.values()) == {1}
    assert records.read(tmp_path / "stopped") == whole


def test_no_group_is_begun_that_would_end_too_late(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments(digits, tmp_path / "runs", "--seconds", "5")) == 0
    assert "no time for coarse 2x4 reinmax, 90 runs" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_a_search_looks_at_no_test_image_and_a_final_run_at_all_training_images(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, dict[str, int]]] = []

    def looked(runs: Sequence[Run], cell: Cell, setting: Any, images: Tensor, judged: dict[str, Tensor], _: Any) -> Any:
        seen.append((len(images), {name: len(some) for name, some in judged.items()}))
        return [{name: 100.0 + run.rate for name in judged} | {"curve": ""} for run in runs]

    monkeypatch.setattr(command, "train", looked)
    assert command.main(arguments(digits, tmp_path / "runs")) == 0
    search, final = (180, {"validation": 20, "train": 180}), (200, {"test": 30, "train": 200})
    assert [search in seen, final in seen, len({str(each) for each in seen})] == [True, True, 2]
    stages = Counter(job.stage for job in records.read(tmp_path / "runs"))
    assert stages["final"] == len(HEADS) * 2


def test_wrong_sizes_are_told(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [each if each != "2x4" else "9x9" for each in arguments(digits, tmp_path / "runs")]
    assert command.main(given) == 2
    assert "no cell has the sizes ['9x9']" in capsys.readouterr().err


def test_training_needs_torch_and_numpy_alone() -> None:
    """The machine with the GPU may have nothing else."""
    blocked = ["tyro", "rich", "optuna", "scipy", "safetensors", "sqlalchemy", "entmax", "pandas", "matplotlib", "jax"]
    code = f"import sys\nfor name in {blocked}: sys.modules[name] = None\nimport catnat_lab.latents.__main__"
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
