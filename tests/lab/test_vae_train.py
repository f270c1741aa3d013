"""Training: what is learned, what a kill loses, what is refused; and the study's command from end to end."""

from __future__ import annotations

import gzip
import json
import math
import shlex
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
import tyro

from catnat_lab.cli import main
from catnat_lab.commands.options import Vae
from catnat_lab.commands.studies import vae_settings
from catnat_lab.errors import UserError
from catnat_lab.executors import Here, begin, conduct
from catnat_lab.experiment import Job, RunContext
from catnat_lab.files import read
from catnat_lab.search import by_rate
from catnat_lab.studies import Study
from catnat_lab.vae import report as vae_results
from catnat_lab.vae.digits import Digits, as_pixels, images_of
from catnat_lab.vae.study import SOURCE, Autoencoders, preset, study_name
from catnat_lab.vae.train import Outcome, Plan, Run, checkpoint_of, seed_of, train
from tests.lab.vae_cases import Kill, bars, fake_digits

PLAN = Plan(variables=2, classes=4, steps=6, batch=20, samples=4)
RUNS = [Run("grey", "softmax", 0.002, 1), Run("grey", "catnat-paper", 0.002, 1)]


def trained(folder: Path | None = None, plan: Plan = PLAN, runs: list[Run] = RUNS) -> list[Outcome]:
    saved = None if folder is None else checkpoint_of(folder, runs, plan)
    return train(runs, plan, bars(), ("grey",), saved=saved)


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained()
    kill = Kill(monkeypatch, at=5)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    kill.steps = 10
    again = trained(tmp_path)
    assert kill.steps == 12  # four steps were kept, two were left
    assert [o.metrics for o in again] == [o.metrics for o in whole]
    assert [o.record for o in again] == [o.record for o in whole]
    checkpoint_of(tmp_path, RUNS[::-1], PLAN).path.unlink()  # the same runs in any order
    assert not list(tmp_path.iterdir())


def test_the_noise_has_the_seed_that_it_always_had() -> None:
    """Else a study that goes on would have other numbers; another cell or other neighbours have another one."""
    assert seed_of(PLAN, RUNS[:1]) == 34382183515899688
    others = [seed_of(replace(PLAN, classes=5), RUNS[:1]), seed_of(PLAN, RUNS)]
    assert len({34382183515899688, *others}) == 3


def test_a_broken_checkpoint_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkpoint_of(tmp_path, RUNS, PLAN).path
    path.write_bytes(b"half a file")
    with pytest.raises(UserError, match=f"{path.name} is not a whole checkpoint"):
        trained(tmp_path)


def test_validation_and_test_images_are_not_trained_on() -> None:
    train_rows, test_rows = (torch.arange(*ends).to(torch.uint8).repeat(784, 1).T for ends in ((216,), (216, 246)))
    marked = Digits(train_rows, test_rows, "")
    kept = images_of(marked, ("grey", "binary"), False)
    first = [part[0, :, 0].tolist() for part in (kept.train, kept.validation, kept.test)]
    assert first == [list(range(198)), list(range(198, 216)), list(range(216, 246))]
    assert set(kept.train[1].unique().tolist()) == {0, 255} and (kept.train[0, :, 0] > 127).equal(
        kept.train[1, :, 0] > 0
    )
    halved = images_of(marked, ("bernoulli",), True)
    parts = [part[0, :, 0].tolist() for part in (halved.train, halved.validation, halved.test)]
    assert parts[0] == list(range(216)) and len(parts[1]) == len(parts[2]) == 15
    assert sorted(parts[1] + parts[2]) == list(range(216, 246)) and parts[1] != sorted(parts[1])
    assert halved.drawn.tolist() == [True]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"table": "rmsprop"}, "table must be one of adam, sgd, mlp; got 'rmsprop'"),
        ({"cells": ("10",)}, "cells must be VARIABLESxCLASSES, such as 20x16, .* got '10'"),
        ({"cells": ("10x1",)}, "got '10x1'"),
        ({"heads": ("softmax", "softmax")}, "heads must hold at least one value, each once"),
        ({"heads": ("entmax",)}, "head must be one of .* got 'entmax'"),
        ({"data": ("colour",)}, "data must be of grey, binary, bernoulli; got 'colour'"),
        ({"rates": (0.0,)}, "rates must be positive"),
        ({"seeds": 1}, "seeds must be at least 2; got 1"),
        ({"steps": 0}, "steps must be at least 1; got 0"),
        ({"refined": 3}, "refined must be even"),
        ({"widen": -1}, "widen must be at least 0; got -1"),
        ({"baseline": "none"}, "baseline must be one of constant, leave-one-out; got 'none'"),
        ({"baseline": "leave-one-out"}, "baseline goes with the table mlp alone; got 'leave-one-out' with adam"),
    ],
)
def test_bad_settings_are_told(changed: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(preset("smoke", "adam"), **changed)  # type: ignore[arg-type]


def test_drawn_images_are_drawn_anew_with_their_greys_as_probabilities() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).expand(2, 20_000, 3)
    found = as_pixels(images, torch.tensor([True, False]), any_drawn=True)
    assert set(found[0].unique().tolist()) == {0.0, 1.0} and found[1].equal(images[1] / 255)
    torch.testing.assert_close(found[0].mean(0), torch.tensor([0.0, 0.2, 1.0]), atol=0.02, rtol=0)


def test_a_batch_larger_than_the_data_is_told() -> None:
    with pytest.raises(UserError, match="batch must be at most the 220 training images; got 500"):
        trained(None, replace(PLAN, batch=500))


def write_idx(folder: Path) -> Path:
    digits = fake_digits()
    for name, images in (("train-images-idx3-ubyte.gz", digits.train), ("t10k-images-idx3-ubyte.gz", digits.test)):
        header = struct.pack(">IIII", 2051, len(images), 28, 28)
        (folder / name).write_bytes(gzip.compress(header + images.numpy().tobytes()))
    return folder


@pytest.mark.parametrize(
    "folder",
    ["adam", "mlp", "collapse", "collapse-floors", "sgd", "sgd-softmax/rate-0.01", "sgd-long"],
)
def test_the_command_of_a_published_study_is_still_its_own(folder: str, tmp_path: Path) -> None:
    published = Path(__file__).parents[2] / "results" / "vae" / folder
    command = json.loads(read(published / "provenance.json"))["command"]
    options = tyro.cli(Vae, args=shlex.split(command)[2:])
    bare = [Vae(table=options.table, preset="paper")] if folder in ("adam", "mlp", "sgd") else []
    shutil.copy(published / "study.db", tmp_path)
    with Study(tmp_path / "study.db", conduct=True) as study:
        for given in (options, *bare):
            experiment = Autoencoders(vae_settings(given), fake_digits())
            assert not experiment.grown(begin(experiment, study)).left(study)


def test_without_a_search_its_settings_may_differ(tmp_path: Path) -> None:
    plan = replace(preset("smoke", "mlp"), rates=(0.001,), refined=0)
    with Study(tmp_path / "study.db", conduct=True) as study:
        begin(Autoencoders(replace(plan, steps=5), fake_digits()), study)  # nothing is finished, so it binds nobody
        begin(Autoencoders(plan, fake_digits()), study)
        study.add(Job("a cell", {"seed": 1}), Outcome(0.0, {}, {}, {}))
        other = replace(plan, search_steps=99, search_seeds=7, ratio=2, searched=("2x4",))
        begin(Autoencoders(other, fake_digits()), study)
        with pytest.raises(UserError, match="steps was 6, now 7"):
            begin(Autoencoders(replace(plan, steps=7), fake_digits()), study)
        with pytest.raises(UserError, match="search_steps was 99, now 5"):  # two rates are searched
            begin(Autoencoders(replace(plan, rates=(0.001, 0.01), search_steps=5), fake_digits()), study)
        begin(Autoencoders(replace(other, rates=(0.001, 0.01)), fake_digits()), study)
        with pytest.raises(UserError, match="search_steps was 99, now 5"):  # they were searched
            begin(Autoencoders(replace(other, search_steps=5), fake_digits()), study)


class Landscape(Autoencoders):
    """In place of training: a bound with its minimum at one rate."""

    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        for job in jobs:
            value = abs(math.log(job.config["rate"] / 0.0003))
            yield job, Outcome(value, dict.fromkeys(vae_results.METRICS, value), {"curve": {}}, {})


def test_the_grid_is_widened_while_the_best_rate_is_at_its_end(tmp_path: Path) -> None:
    plan = replace(preset("smoke", "sgd"), heads=("softmax",), rates=(0.001, 0.002), refined=0)
    name = study_name("sgd", "grey", "4x4", "softmax")

    def tried(widen: int) -> tuple[list[float], set[float]]:
        experiment = Landscape(replace(plan, widen=widen), fake_digits())
        with Study(tmp_path / "study.db", conduct=True) as study:
            begin(experiment, study)  # it may grow
            study.settle_note(SOURCE, {"source": "bars"})
            conduct(experiment, study, Here(RunContext(tmp_path)), 5)
            final = {trial.config["rate"] for trial in study.finished(name, stage="final")}
            return sorted(by_rate(study.finished(name, stage="coarse"))), final

    def told() -> str:
        with Study(tmp_path / "study.db") as study:
            return next(text for text in vae_results.remarks_of(vae_results.load(study)) if "Chosen" in text)

    assert tried(0) == ([0.001, 0.002], {0.001})
    assert told() == "Chosen rates. 4x4: softmax 0.001 (the end of its grid)."
    assert tried(1) == ([0.0005, 0.001, 0.002], {0.001})  # a line that was trained keeps its rate
    assert "softmax 0.001 (the end of its grid, a search that went on later: 0.0005)" in told()
    (tmp_path / "study.db").unlink()
    assert tried(4) == ([0.000125, 0.00025, 0.0005, 0.001, 0.002], {0.00025})  # no fourth: the best is inside
    (tmp_path / "study.db").unlink()
    plan = replace(plan, refined=2, ratio=1.2)
    assert tried(4)[1] == {0.000274}  # refined around the best of the wider grid
    with Study(tmp_path / "study.db") as study:
        assert list(by_rate(study.finished(name, stage="refined"))) == [0.000228, 0.000274]  # and around no other


@pytest.mark.slow
def test_a_study_runs_reports_goes_on_and_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "digits").mkdir()
    digits = write_idx(tmp_path / "digits")
    command = ["vae", "--preset", "smoke", "--device", "cpu", "--digits", str(digits)]
    command += ["--heads", "softmax", "catnat-paper", "--output", str(tmp_path / "study")]
    assert main(command) == 0
    told = capsys.readouterr()
    assert "final seeds" in told.err and "catnat-paper" in told.out and "holds more" not in told.err
    page = (tmp_path / "study" / "report.html").read_text()
    assert "Learning curves" in page and "Reconstructions" in page
    assert not list((tmp_path / "study" / "checkpoints").glob("*"))
    with Study(tmp_path / "study" / "study.db") as study:
        first = vae_results.load(study)
    assert main(command) == 0  # nothing is trained again
    with Study(tmp_path / "study" / "study.db") as study:
        assert vae_results.load(study).trials == first.trials
    data = ["grey", "bernoulli"]
    grown = ["--seeds", "3", "--cells", "4x4", "2x4", "--data", *data]
    assert main([*command, *grown]) == 0  # it may grow,
    with Study(tmp_path / "study" / "study.db") as study:
        now = vae_results.load(study)
    for place, trials in first.trials.items():
        assert all(trial in now.trials[place] for trial in trials)
        final = now.stage(place, "final")
        assert [t.config["seed"] for t in final] == [1, 2, 3] and len({t.config["rate"] for t in final}) == 1
    assert {place[:2] for place, found in now.trials.items() if found} == {(d, c) for d in data for c in ("4x4", "2x4")}
    capsys.readouterr()
    assert main(command) == 0  # a smaller one goes on with all of it,
    told = capsys.readouterr()
    assert "0 steps" not in told.err
    assert "goes on with all of it: cells 4x4 2x4 (asked: 4x4); " in told.err
    assert main([*command, "--steps", "7"]) == 2  # but it may not change
    assert "steps was 6, now 7" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "study")]) == 0


@pytest.mark.slow
def test_a_study_stopped_among_its_final_runs_goes_on_at_their_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "digits").mkdir()
    command = [
        "vae",
        "--table",
        "mlp",
        "--preset",
        "smoke",
        "--device",
        "cpu",
        "--stacked",
        "16",
    ]  # all final runs in one
    command += ["--digits", str(write_idx(tmp_path / "digits")), "--output"]

    def final(name: str) -> dict[str, list[dict[str, float]]]:
        with Study(tmp_path / name / "study.db") as study:
            found = vae_results.load(study)
        return {place[2]: [trial.metrics for trial in found.stage(place, "final")] for place in found.trials}

    with monkeypatch.context() as patch:
        counted = Kill(patch, at=10**9)
        assert main([*command, str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        Kill(patch, at=counted.steps - 2)
        assert main([*command, str(tmp_path / "stopped")]) == 130
    assert not any(final("stopped").values())
    assert main([*command, str(tmp_path / "stopped")]) == 0
    assert final("stopped") == final("whole")
    assert all("nll" in metrics for found in final("whole").values() for metrics in found)


def test_the_papers_tables_are_all_there() -> None:
    counts = {"adam": 72, "sgd": 72, "mlp": 27}
    for table, count in counts.items():
        paper = vae_results.paper_of(table)
        settings = preset("paper", table)
        assert len(paper) == count
        theirs = [head for head in settings.heads if head != "catnat"]  # the default is not theirs
        assert all(place in paper for place in product(settings.data, settings.cells, theirs))
    assert vae_results.paper_of("adam")["grey", "10x8", "softmax"] == (100.9, 0.5, False)
