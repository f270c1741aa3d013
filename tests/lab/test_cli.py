"""The command line as a user meets it: what it writes, what it refuses, and that it goes on after a kill."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import tyro

from catnat_lab.cli import main
from catnat_lab.commands.options import COMMANDS, Rl, Vae
from catnat_lab.commands.studies import bars, device_of, remarks
from catnat_lab.executors import NOW
from catnat_lab.experiment import Job
from catnat_lab.studies import Study, command_line

SIX = "[[0,1],[2,[3,[4,5]]]]"
SMOKE = ["gsl", "--preset", "smoke", "--device", "cpu"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "catnat_lab", *map(str, arguments)]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The folder of one finished smoke study, and what it printed."""
    folder = tmp_path_factory.mktemp("study")
    done = subprocess.run(command(*SMOKE, "--output", folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ": 1 of 10 steps\n" in done.stderr and ": 10 of 10 steps\n" in done.stderr
    assert "━" not in done.stderr, "a log has lines and no bars"
    assert "trains far too little to compare heads" in done.stderr
    assert "run again" not in done.stderr, "a new study has nothing to keep"
    return folder, done.stdout


def values(folder):
    with (folder / "values.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_study_writes_its_table_its_page_and_where_they_come_from(study):
    folder, printed = study
    assert printed.strip().splitlines()[-1] == f"report: {folder / 'report.html'}"
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 4 and "catnat-paper" in page
    told = (folder / "report.md").read_text()
    assert "catnat-paper" in told
    assert told.splitlines()[2].startswith("**Set aside: the preset smoke")  # before any verdict
    facts = json.loads((folder / "provenance.json").read_text())
    assert {"command", "commit", "torch", "processor", "seconds"} <= set(facts)
    rows = values(folder)
    finals = [row for row in rows if row["stage"] == "final"]
    assert len(finals) == 5 * 2 and len([row for row in rows if row["stage"] == "optimal"]) == 2
    assert all(float(row["es_paper"]) == pytest.approx(2 * float(row["es"]), rel=1e-4) for row in finals)


def test_a_smaller_study_is_not_compared_with_the_paper(study):
    folder, printed = study
    text = (folder / "report.md").read_text()
    others = text.replace("smaller than in the paper", "").replace("catnat-paper", "")
    assert "disagree" not in printed + text and "paper" not in others
    assert "**Against softmax**" in text and text.splitlines()[4] in " ".join(printed.split()).replace("*", "\\*")


def test_a_finished_study_runs_again_in_no_time_and_says_the_same(study, capsys):
    """With the origin that it had, where it now runs elsewhere; and its report can be written again alone."""
    folder, printed = study
    before, page = values(folder), (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    assert main(["report", str(folder)]) == 0 and (folder / "report.html").read_bytes() == page
    capsys.readouterr()
    with Study(folder / "study.db", conduct=True) as opened:
        facts = opened.note("gsl provenance")
        opened.set_note("gsl provenance", facts | {"processor": "another"})
    try:
        assert main([*SMOKE, "--output", str(folder)]) == 0
        assert json.loads((folder / "provenance.json").read_text())["processor"] == "another"
    finally:
        with Study(folder / "study.db", conduct=True) as opened:
            opened.set_note("gsl provenance", facts)
    told = capsys.readouterr()
    assert values(folder) == before and told.out.split("report:")[0] == printed.split("report:")[0]
    assert f"finished jobs that this study keeps, and does not run again: {len(before)}\n" in told.err


def test_on_a_terminal_there_are_bars(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich: this is one
    monkeypatch.setenv("COLUMNS", "80")
    with bars() as step:
        step("final seeds, Asterix, catnat-sigmoid, whose name is longer than a line may be", 1, 2)
    told = capsys.readouterr().err
    assert "━" in told and "1/2" in told and "1 of 2 steps" not in told
    lines = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", told).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= 80 and any("1/2" in line and "…" in line and "left" in line for line in lines)


def test_what_somebody_wrote_beside_a_study_s_origin_stays_with_it() -> None:
    facts, written = {"command": "catnat gsl", "commit": "abc", "date": "today"}, {"left out": "a cell"}
    assert remarks(facts | written, facts | {"seconds": "3"}) == written
    assert remarks(facts | written | {"commit": "of another study"}, facts) == {}


def test_a_page_is_made_of_published_numbers_alone(study, tmp_path, capsys):
    folder, _ = study
    published, output = tmp_path / "published", tmp_path / "page"
    shutil.copytree(folder, published, ignore=shutil.ignore_patterns("study.db"))
    assert main(["report", str(published)]) == 2  # it would write over what was made of the whole study
    assert "say by --output where its page is to be written" in capsys.readouterr().err
    assert main(["report", str(published), "--output", str(output)]) == 0
    told, whole = ((place / "report.md").read_text().splitlines() for place in (output, folder))
    means = [
        re.findall(r"\d+\.\d+", " ".join([line for line in text if line.startswith("|")][:8])) for text in (told, whole)
    ]
    assert [*map(float, means[0])] == pytest.approx([*map(float, means[1])], abs=0.0011, rel=1e-3)  # of six digits
    assert values(output) == values(folder)
    assert (output / "report.html").read_text().count("<svg") == 2  # of the four two need curves or graphs
    assert any("made of the study's numbers alone" in line for line in told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gsl", "--heads", "softmax", "hardmax"], "head must be one of softmax, sparsemax"),
        (["gsl", "--rates", "-0.1"], "rate must be positive and at most 1000; got -0.1"),
        (["gsl", "--thetas", "1.5"], "theta must lie in (0, 1); got 1.5"),
        (["gsl", "--device", "tpu"], "device must be auto, cpu, cuda or cuda:N; got 'tpu'"),
        (["gsl", "--device", "cpu:7"], "device must be auto, cpu, cuda or cuda:N; got 'cpu:7'"),
        (["gsl", "--device", "cuda:99"], "device must be one that is there"),
        (["gsl", "--stacked", "0"], "stacked must be at least 1; got 0"),
        (["gsl", "--storage", "nonsense://x"], "nonsense"),
        (["va"], "there is no command 'va'; one of demo, gsl, vae"),
        (["report", "nowhere"], "nowhere: there is no such study, neither folder nor database"),
    ],
)
def test_bad_input_is_one_line_and_code_2_and_nothing_is_written(arguments, message, tmp_path, capsys):
    folder = tmp_path / "made"
    assert main([*arguments, "--output", str(folder)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and message in captured.err
    assert not captured.out and not folder.exists()


def test_a_folder_that_cannot_be_written_is_one_line_and_code_2(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("in the way")
    assert main([*SMOKE, "--output", str(file / "below")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and str(file) in captured.err
    assert file.read_text() == "in the way"


def test_a_foreign_database_is_left_as_it_is(tmp_path, capsys):
    database = tmp_path / "study.db"
    database.write_bytes(b"not a database, but somebody's")
    assert main([*SMOKE, "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert database.read_bytes() == b"not a database, but somebody's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.db"]


def test_a_report_of_no_study_is_refused(tmp_path, capsys):
    Study(tmp_path / "study.db", conduct=True).close()
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no study of gsl, vae, rl, minatar" in capsys.readouterr().err


def finished(folder) -> int:
    with Study(folder / "study.db") as opened:
        return sum(len(opened.finished(cell)) for cell in opened.cells())


KILLED_WITH_THE_SIXTH_RUN = """
import os, signal, sys
from catnat_lab.cli import main
from catnat_lab.studies import Study
add, kept = Study.add, []
def add_and_die(study, job, outcome):
    add(study, job, outcome)
    kept.append(job)
    if len(kept) == 6:
        os.kill(os.getpid(), signal.SIGKILL)
Study.add = add_and_die
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_to_the_same_table(study, tmp_path, capsys):
    arguments = [*SMOKE, "--stacked", "1", "--output", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", KILLED_WITH_THE_SIXTH_RUN, *arguments], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert finished(tmp_path) == 6
    assert main(arguments) == 0
    assert "does not run again: 6\n" in capsys.readouterr().err
    expected, found = values(study[0]), values(tmp_path)
    assert [row["seed"] for row in found] == [row["seed"] for row in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for key, value in theirs.items():
            if key in ("head", "stage", "rate", "seed"):
                assert ours[key] == value
            else:  # another stacking may round otherwise
                assert float(ours[key]) == pytest.approx(float(value), rel=0.02, abs=1e-3) if value else not ours[key]


def test_a_second_process_on_a_study_is_refused(tmp_path, capsys):
    with Study(tmp_path / "study.db", conduct=True):
        assert main([*SMOKE, "--output", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert f"another process conducts this study: process {os.getpid()} on" in told and told.count("\n") == 1


def test_a_password_is_written_nowhere(study, tmp_path, monkeypatch, capsys):
    folder, _ = study
    shutil.copytree(folder, tmp_path / "study")
    typed = ["catnat", "gsl", "--storage", "postgresql://me:hunter2@host/db?password=hunter2"]
    monkeypatch.setattr(sys, "argv", typed)
    with Study(tmp_path / "study" / "study.db", conduct=True) as opened:  # as an older version wrote it
        opened.set_note("gsl provenance", opened.note("gsl provenance") | {"command": " ".join(typed)})
    assert main([*SMOKE, "--output", str(tmp_path / "study")]) == 0
    told = capsys.readouterr()
    assert "hunter2" not in told.out + told.err
    for path in (tmp_path / "study").rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), path


def test_help_a_typo_and_the_version_answer_without_a_framework(capsys):
    program = """
import sys
from catnat_lab.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
heavy = {"torch", "jax", "optuna", "scipy", "matplotlib", "sqlalchemy"} & set(sys.modules)
sys.exit(99 if heavy else code)
"""
    for arguments, code in ((["--help"], 0), (["gsl", "--hlep"], 2), (["gls"], 2), (["--version"], 0)):
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    assert main(["rl", "sweep"]) == 2
    assert "the command is catnat rl-sweep" in capsys.readouterr().err


def test_help_that_nobody_reads_on_is_no_traceback():
    read, written = os.pipe()
    os.close(read)
    done = subprocess.run(command("--help"), stdout=written, stderr=subprocess.PIPE, text=True, check=False)
    os.close(written)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_status_of_a_study(study, tmp_path, capsys):
    folder, _ = study
    shutil.copytree(folder, tmp_path / "study")
    assert main(["status", str(tmp_path / "study")]) == 0
    told = capsys.readouterr().out
    assert "a study of catnat gsl" in told and "running: nothing; all that was asked for is done\n" in told
    assert f"finished: {finished(folder)} jobs\n" in told
    with Study(tmp_path / "study" / "study.db", conduct=True) as opened:
        opened.fail(
            Job("gsl theta*=0.5 softmax", {"stage": "final", "rate": 0.1, "seed": 77}), "Traceback\nKeyError: 1"
        )
        assert main(["status", str(tmp_path / "study" / "study.db")]) == 0
    told = capsys.readouterr().out
    assert "rate: not known before a job of this stage is finished\n" in told
    assert f"running: process {os.getpid()} on" in told and "failed: gsl theta*=0.5 softmax 1" in told
    with Study(tmp_path / "study" / "study.db", conduct=True) as opened:  # as a killed command leaves it
        opened.set_note(NOW, {"left": 5, "finished": finished(folder) - 2})
    assert main(["status", str(tmp_path / "study")]) == 0
    told = capsys.readouterr().out
    assert "running: nothing; at least 3 jobs are left\nto continue: catnat " in told
    assert main(["status", str(tmp_path / "nothing")]) == 2
    assert "there is no such study" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_preset_that_is_for_a_gpu_says_so_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for name, preset, told in (("auto", "paper", True), ("auto", "quick", False), ("cpu", "paper", False)):
        assert device_of(name, preset).type == "cpu"
        assert capsys.readouterr().err.startswith(f"the preset {preset} is for a GPU, and there is none") == told


def test_a_wrong_place_begins_no_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gsl", "--preset", "smoke", "--on", "proceses:2", "--output", str(tmp_path / "study")]) == 2
    assert "on must be here, processes:N, ray or ray:ADDRESS; got 'proceses:2'" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("command", "tree", "told"),
    [
        ("gsl", "[", "must end in a tree"),
        *((c, "[[0,1],[2,[3,[4,5]]]]", "has a tree of 6") for c in ("vae", "rl-sweep")),
    ],
)
def test_a_tree_that_does_not_fit_begins_no_study(
    command: str, tree: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would stand in the study for good, and could never be trained."""
    out = tmp_path / "study"
    assert main([command, "--preset", "smoke", "--heads", "softmax", f"catnat{tree}", "--output", str(out)]) == 2
    assert told in capsys.readouterr().err and not out.exists()


def test_the_command_of_a_study_can_be_given_to_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["catnat", "rl-minatar", "--heads", "softmax", "catnat[[0,1],2]", "--output", "a folder"]
    monkeypatch.setattr("sys.argv", typed)
    assert shlex.split(command_line()) == typed and "'catnat[[0,1],2]'" in command_line()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["vae", "--stepps", "5"], ["Unrecognized options: --stepps", "--steps INT", "catnat vae --help"]),
        (["rl-minatar", "--stepps", "5"], ["--steps INT Of every final run", "catnat rl-minatar --help"]),
        (["rl_minatar", "--stepps", "5"], ["--steps INT Of every final run", "catnat rl-minatar --help"]),
        (["vae", "--rates", "0.1", "abc"], ["parsing --rates", "['0.1', 'abc']", "--rates [FLOAT ...]"]),
        (["gsl", "--seeds", "1.5"], ["parsing --seeds: no type matching INT", "['1.5']", "--seeds INT"]),
        (["rl", "--minutes", "soon"], ["parsing --minutes: no type matching FLOAT", "['soon']"]),
        (["vae", "--preset", "huge"], ["invalid choice 'huge' for argument '--preset'", "'smoke', 'quick', 'paper'"]),
        (["rl-minatar", "--storage"], ["Missing value for argument '--storage'", "catnat rl-minatar --help"]),
        (["--foo"], ["Unrecognized options: --foo"]),
        ([], ["Expected one of {demo, gsl, vae"]),
    ],
)
def test_a_wrong_option_is_told_in_words_of_its_command(given, told, capsys):
    with pytest.raises(SystemExit) as end:
        main(given)
    error = " ".join(capsys.readouterr().err.replace("│", "").split())
    assert end.value.code == 2 and all(part in error for part in told), error
    assert "NoneType" not in error and "rl-watch --help" not in error


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_no_type_of_python_s(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0 and text.startswith(f"usage: catnat {name} ")
    assert "None" not in text


def test_what_is_given_comes_as_what_it_is():
    given = ["--output", "a", "--storage=b", "--heads", "softmax", "catnat", "--rates", "0.1", "-2e3", "--seeds", "-1"]
    read = tyro.cli(Vae, args=given)
    assert (read.output, read.storage, read.heads) == (Path("a"), "b", ("softmax", "catnat"))
    assert (read.rates, read.seeds) == ((0.1, -2000.0), -1) and isinstance(read.seeds, int)
    assert tyro.cli(Vae, args=["--heads"]).heads == ()
    assert tyro.cli(Rl, args=["--minutes", "2"]).minutes == 2.0
    left_out = tyro.cli(Vae, args=[])
    assert left_out.output is left_out.storage is left_out.heads is left_out.rates is left_out.seeds is None
