"""A study keeps every outcome once, whatever is killed; a second conductor and a foreign database are refused."""

from __future__ import annotations

import math
import os
import shlex
import signal
import sqlite3
import sys
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution

from catnat_lab import search
from catnat_lab.errors import UserError, plain
from catnat_lab.executors import Here, begin, conduct
from catnat_lab.experiment import Finished, Job, Outcome, RunContext, key_of, settled
from catnat_lab.studies import Study, StudyError, command_line, without_secrets
from tests.lab.toy import CELLS, Toy, started, table

JOB = Job("cell", {"rate": 0.1, "seed": 1})


def outcome(value: float = 1.0) -> Outcome:
    return Outcome(value, {"loss": value}, {"curve": [value]})


def run(toy: Toy, study: Study) -> int:
    begin(toy, study)
    return conduct(toy, study, Here(RunContext(Path("."))), 5)


# -- what is kept --------------------------------------------------------------------------------------------------


def test_all_is_trained_once_and_kept_for_the_next_process(path: Path) -> None:
    with Study(path, conduct=True) as study:
        toy = Toy()
        assert run(toy, study) == len(toy.seen) == len(set(toy.seen)) == 2 * (3 * 2 + 4)
        found = table(study)
        assert {each.config["rate"] for cell in CELLS for each in study.finished(cell, stage="final")} == {0.1}
    with Study(path, conduct=True) as study:
        assert table(study) == found
        assert run(toy := Toy(), study) == 0 and toy.seen == []
    with Study(path) as study:  # to read alone
        assert table(study) == found and set(study.cells()) == set(CELLS)


def test_the_first_outcome_counts_and_one_that_is_no_number_is_the_worst(path: Path, study: Study) -> None:
    study.add(JOB, outcome(1.0))
    study.add(JOB, outcome(2.0))
    study.add(Job("cell", {"seed": 2.0, "rate": 1}), Outcome(math.nan, {"loss": math.nan}, {}))
    study.add(Job("cell", {"seed": 2, "rate": 1.0}), outcome(3.0))  # the same job
    study.close()
    with Study(path) as again:
        first, second = again.finished("cell")
        assert first == Finished(1.0, {"loss": 1.0}, {"curve": [1.0]}, JOB.config)
        assert second.value == math.inf and math.isnan(second.metrics["loss"])
        assert again.finished("cell", seed=1) == [first] and again.finished("cell", seed=7) == []
        assert again.finished("nothing") == []


@pytest.mark.parametrize("config", [{"a": [1]}, {"a": math.inf}, {1: 2}, {"a": {}}])
def test_a_config_that_is_not_plain_is_refused(config: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="config must hold"):
        key_of(config)


def test_optuna_reads_what_is_kept(path: Path, study: Study) -> None:
    study.add(JOB, outcome(1.0))
    study.add(Job("cell", {"rate": 0.2, "seed": 2, "note": "x"}), outcome(0.5))
    theirs = optuna.load_study(study_name="cell", storage=f"sqlite:///{path}")
    assert theirs.best_value == 0.5 and theirs.best_params == {"rate": 0.2, "seed": 2}


def test_a_second_name_of_a_file_is_the_same_study(path: Path, study: Study) -> None:
    path.with_name("link.db").symlink_to(path)
    with pytest.raises(StudyError, match="another process conducts"):
        Study(path.with_name("link.db"), conduct=True)


@pytest.mark.parametrize("attributes", [{}, {"config": [1]}, {"config": {"a": []}}])
def test_trials_of_others_do_no_harm(path: Path, study: Study, attributes: dict[str, Any]) -> None:
    study.add(JOB, outcome())
    theirs = optuna.load_study(study_name="cell", storage=f"sqlite:///{path}")
    theirs.add_trial(optuna.create_trial(value=0.0, user_attrs=attributes))
    theirs.add_trial(optuna.create_trial(state=optuna.trial.TrialState.FAIL, user_attrs=attributes | {"reason": "y"}))
    study.close()
    told: list[str] = []
    with Study(path, tell=told.append) as again:
        assert len(again.finished("cell")) == 1 and again.failed("cell") == {}
    assert told == ["cell: 1 rows of the database are left out, for they say no configuration"] * 2


def test_notes(path: Path, study: Study) -> None:
    assert study.note("a") is None
    assert study.settle_note("a", {"b": [1]}) == {"b": [1]} == study.settle_note("a", 3) == study.note("a")
    study.set_note("a", 4)
    study.close()
    with Study(path) as again:
        assert again.note("a") == 4 and again.cells() == []


# -- what goes wrong in training -------------------------------------------------------------------------------------


def test_a_job_that_fails_three_times_is_recorded_and_the_study_goes_on(path: Path) -> None:
    with Study(path, conduct=True) as study:
        toy = Toy(fails=(2,))
        begin(toy, study)
        conduct(toy, study, Here(RunContext(Path("."))), 1)
        assert sum(job.config["seed"] == 2 for job in toy.seen) == 2 * 3
        assert len(study.finished("one")) == len(study.finished("two")) == 3 * 2 + 3
        (reason,) = study.failed("one").values()
        assert "RuntimeError: seed 2" in reason and "Traceback" in reason
    with Study(path, conduct=True) as study:  # a later run tries it again
        assert run(Toy(), study) == 2 and study.failed("one") == {}


def test_a_search_that_fails_altogether_comes_to_an_end_in_one_line(study: Study) -> None:
    with pytest.raises(UserError, match="no run of a search has been finished"):
        run(Toy(fails=tuple(search.search_seeds(2))), study)


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError("no"), OSError(28, "No space left on device")])
def test_what_is_no_fault_of_a_job_ends_the_run_and_loses_nothing(study: Study, error: Any) -> None:
    class Broken(Toy):
        def train(self, jobs: Any, context: Any) -> Any:
            for i, found in enumerate(super().train(jobs, context)):
                if i == 2:
                    raise error
                yield found

    with pytest.raises(error if isinstance(error, type) else type(error)):
        run(Broken(), study)
    assert len(study.finished("one")) == 2
    assert run(Toy(), study) == 18


# -- settings --------------------------------------------------------------------------------------------------------


def test_settings_may_grow_where_they_are_allowed_to_and_not_change() -> None:
    before = {"heads": ["a"], "seeds": 3, "steps": 10}
    assert settled(before, {"heads": ["a", "b"], "seeds": 2, "steps": 10}, ("heads", "seeds")) == {
        "heads": ["a", "b"],
        "seeds": 3,
        "steps": 10,
    }
    with pytest.raises(UserError, match=r"\(heads, seeds may grow\); give another --output, .*: steps was 10, now 20"):
        settled(before, {"heads": ["a"], "seeds": 3, "steps": 20}, ("heads", "seeds"))
    with pytest.raises(UserError, match="heads was a, now b"):
        settled(before, {"heads": ["b"], "seeds": 3, "steps": 10}, ("heads", "seeds"))


@pytest.mark.parametrize("now", [["b"], ["b", "a"], ["c", "b", "a"]])
def test_a_list_may_be_a_part_of_what_a_study_has_or_more_in_any_order(now: list[str]) -> None:
    """What was there keeps its place, for the first kind of data is the one that rates are searched on."""
    assert settled({"heads": ["a", "b"]}, {"heads": now}, ("heads",)) == {"heads": ["a", "b", *now[:-2]]}
    with pytest.raises(UserError, match=r"\(heads may grow\); give another --output, .*: heads was a b, now a c"):
        settled({"heads": ["a", "b"]}, {"heads": ["a", "c"]}, ("heads",))


def test_a_study_of_another_experiment_is_refused(study: Study) -> None:
    study.set_note("kind", "catnat gsl")
    with pytest.raises(UserError, match=r"lab\.db holds a study of catnat gsl, not of toy"):
        begin(Toy(), study)


# -- searches --------------------------------------------------------------------------------------------------------


def test_tpe_proposes_the_same_for_the_same_results_and_learns() -> None:
    space = {"rate": FloatDistribution(1e-4, 1.0, log=True)}
    tried: list[Finished] = []
    for _ in range(25):
        job = search.proposed("cell", space, {"seed": 0}, tried)
        assert search.proposed("cell", space, {"seed": 0}, tried) == job
        assert 1e-4 <= job.config["rate"] <= 1
        tried.append(Finished(abs(math.log10(job.config["rate"] / 0.03)), {}, {}, job.config))
    late, early = ([trial.value for trial in some] for some in (tried[-8:], tried[:8]))
    assert sum(late) < sum(early)


def test_optuna_is_silent(study: Study, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    run(Toy(), study)
    search.proposed("cell", {"rate": FloatDistribution(0.1, 1.0, log=True)}, {}, [])
    assert capfd.readouterr() == ("", "") and not recwarn.list


# -- one conductor, and what is killed ---------------------------------------------------------------------------------


def test_a_second_conductor_is_refused_with_who_and_since_when(path: Path, study: Study) -> None:
    with pytest.raises(
        StudyError, match=rf"another process conducts this study: process {os.getpid()} on .+, since 20"
    ):
        Study(path, conduct=True)
    with Study(path) as reader:
        assert reader.cells() == []
    study.close()
    Study(path, conduct=True).close()


def killed_after(path: Path, jobs: int, how: int) -> None:
    with started(str(path), "0.01", "4", "here", str(path.parent)) as process:
        assert process.stdout is not None
        for _ in range(jobs):
            process.stdout.readline()
        process.send_signal(how)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """All that an undisturbed study comes to."""
    with Study(tmp_path_factory.mktemp("whole") / "lab.db", conduct=True) as study:
        run(Toy(), study)
        return table(study)


SLOW = [pytest.param(how, marks=pytest.mark.slow) for how in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("how", [signal.SIGKILL, *SLOW])
def test_a_killed_conductor_leaves_all_it_has_finished_and_the_rest_is_as_if_nothing_had_happened(
    path: Path, whole: list[tuple[Any, ...]], how: int
) -> None:
    killed_after(path, 7, how)
    with Study(path, conduct=True) as study:
        before = len(table(study))
        assert before >= 7
        assert run(Toy(), study) == len(whole) - before
        assert table(study) == whole


# -- databases -------------------------------------------------------------------------------------------------------


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


@cache
def many_outcomes() -> bytes:
    """A database of them."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "lab.db"
        with Study(path, conduct=True) as study:
            for seed in range(60):
                study.add(Job("cell", {"seed": seed}), Outcome(0.0, {}, {"curve": [1.0] * 300}))
        return path.read_bytes()


def filled(path: Path) -> bytearray:
    path.write_bytes(many_outcomes())
    return bytearray(many_outcomes())


def damaged(path: Path) -> None:
    content = filled(path)
    content[5 * 4096 : 20 * 4096] = b"\xa5" * (15 * 4096)
    path.write_bytes(content)


def truncated(path: Path) -> None:
    content = filled(path)
    path.write_bytes(content[: len(content) // 2])


def other_version(path: Path) -> None:
    filled(path)
    execute(path, "UPDATE alembic_version SET version_num = 'v2.4.0.a'")


@pytest.mark.parametrize("conducted", [True, False])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("rate,loss\n0.1,2.0\n"), "not an SQLite database"),
        (lambda path: path.write_bytes(b""), "not an SQLite database"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + b"\1" * 500), "damaged"),
        (lambda path: execute(path, "CREATE TABLE studies (name TEXT)"), "not one of Optuna's"),
        (damaged, "damaged"),
        (truncated, "damaged"),
        (other_version, "cannot be opened: The runtime optuna version"),
    ],
)
def test_what_is_no_study_is_refused_and_left_untouched(path: Path, make: Any, message: str, conducted: bool) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises(StudyError, match=message) as caught:
        Study(path, conduct=conducted)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert {entry.name for entry in path.parent.iterdir()} <= {path.name, f"{path.name}.lock"}


def test_a_folder_and_a_path_through_a_file_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for bad in (tmp_path, tmp_path / "file" / "lab.db", tmp_path / "file" / "deeper" / "lab.db"):
        for conducted in (True, False):
            with pytest.raises(StudyError) as caught:
                Study(bad, conduct=conducted)
            assert str(bad) in str(caught.value)
    assert (tmp_path / "file").read_text() == "x"


def test_folders_are_made_to_conduct_and_never_to_read(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "{b} %c#?" / "lab.db"
    with pytest.raises(StudyError, match="no such study"):
        Study(deep)
    assert list(tmp_path.iterdir()) == []
    with Study(deep, conduct=True) as study:
        study.add(JOB, outcome())
    with Study(f"{deep}") as study:
        assert study.cells() == ["cell"]


@pytest.mark.parametrize(
    "url",
    [
        "nosuch://host/db",
        "postgresql+nosuch://host/db",
        "postgresql://user:secret@127.0.0.1:1/db",
        "mysql://user:secret@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=u&password=secret",
        "postgresql://user:se@secret@127.0.0.1:1/db",
        "sqlite://",
        "sqlite:///:memory:",
        "://",
        "sqlite:////proc/none/lab.db",
    ],
)
def test_a_url_that_leads_nowhere_is_refused_in_one_line_without_its_password(url: str) -> None:
    for conducted in (True, False):
        with pytest.raises(UserError) as caught:
            Study(url, conduct=conducted)
        assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_a_read_only_folder_is_one_line(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(StudyError, match=r"Permission denied|cannot write"):
        Study(tmp_path / "lab.db", conduct=True)


# -- what must not be shown ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "catnat gsl --storage postgresql://me:hunter2@host/db --preset paper",
        "catnat gsl --storage=postgresql+psycopg2://me:hunter2@host:5432/db",
        "catnat gsl --storage postgresql://me:hun@hunter2@host/db",
        "catnat gsl --storage postgresql://host/db?user=me&password=hunter2&sslmode=require",
        "mysql://me:hunter2@host/db",
        "catnat gsl --storage postgresql+psycopg://me@corp:hunter2@host/db",
        "catnat gsl --storage postgresql://me:hun/hunter2@host/db",
        "catnat gsl --storage mssql+pyodbc:///?odbc_connect=host;PWD%3Dhunter2",
        "catnat gsl --storage 'postgresql://me:my hunter2@host/db' --seeds 3",
        "catnat gsl --storage postgresql://me:my hunter2@host/db",  # as nobody should have typed it
        "catnat gsl --storage 'postgresql://me:a\thunter2@host/db'",
        "catnat gsl --storage 'postgresql://host/db?user=me&p%61ssword=hun@hunter2'",
        "catnat gsl --storage 'postgresql://me:hu?hunter2@host/db' --output me@here",
        "postgresql://me:it's hunter2@host/db",
    ],
)
def test_passwords_are_left_out_of_texts_and_notes(study: Study, text: str) -> None:
    shown = without_secrets(text)
    assert "hunter2" not in shown and "***" in shown
    study.set_note("provenance", {"command": text, "more": [text]})  # as an older version wrote it
    assert "hunter2" not in str(study.note("provenance")) and "***" in str(study.note("provenance"))
    for harmless in (
        "a: b @ c, https://x.org/y?z=1",
        "catnat --ray ray://head:10001 --x b",
        "catnat gsl --storage postgresql://***@host/db --preset paper",  # of an older version
        "postgresql://host:1/db",
    ):
        assert without_secrets(harmless) == harmless


def test_the_command_line_is_kept_without_a_password_that_a_shell_would_quote(monkeypatch: pytest.MonkeyPatch) -> None:
    for secret in ("12 hunter2", "it's hunter2", "a\thunter2", "hun@hunter2"):
        monkeypatch.setattr(sys, "argv", ["catnat", "gsl", "--storage", f"postgresql://me:{secret}@host/db"])
        assert shlex.split(command_line()) == ["catnat", "gsl", "--storage", "postgresql://***"]


def test_a_terminal_obeys_nothing_that_a_database_holds() -> None:
    assert plain("a\x1b[31mb\nc\x9b0m") == "a?[31mb?c?0m"
