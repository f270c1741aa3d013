"""Compiled operators: where they lie, what is loaded, and what happens where none can be had or none is wanted."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from runpy import run_module

import pytest
import torch

import catnat
from catnat._native import build
from catnat.torch import _cpu, _dispatch
from catnat.torch._cpu import build as torch_build

GENUINE = b"what the compiler made"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text("#!/bin/sh\n" + textwrap.dedent(text))
    path.chmod(0o755)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's cache, and a compiler that makes `GENUINE` and notes every call."""
    compiler = script(
        tmp_path, "compiler", f"echo call >> {tmp_path}/calls; test $1 = -c || printf '{GENUINE.decode()}' > library.so"
    )
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(catnat._native, "_wanted", True)
    build._private_folder.cache_clear()
    yield tmp_path / "cache/catnat"
    build._private_folder.cache_clear()


def operator() -> build.Operator:
    return build.Operator("test", build.HERE / "loops.cpp", [], [], [])


def loaded() -> tuple[bytes, Path] | None:
    """What a new process would load, and from where."""
    return build.load.__wrapped__(operator, lambda path: (Path(path).read_bytes(), Path(os.path.realpath(path))))


def calls(cache: Path) -> int:
    return len((cache.parents[1] / "calls").read_text().split())


def test_it_is_made_once_and_then_found(cache: Path) -> None:
    found = loaded()
    assert found is not None and found[0] == GENUINE and found[1].parent == cache
    assert loaded() == found and calls(cache) == 3  # two parts compiled, and linked
    assert {path.name for path in cache.iterdir()} == {"lock", found[1].name, found[1].name + ".json"}
    (cache / "lock").unlink()
    cache.chmod(0o500)  # nothing may be written
    assert loaded() == found and not (cache / "lock").exists()
    cache.chmod(0o700)


def test_another_compiler_or_version_makes_another(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = loaded()
    monkeypatch.setenv("CXX", os.environ["CXX"] + " -pipe")
    build.load.__wrapped__(operator, str)
    monkeypatch.setattr(build, "LOOPS_FLAGS", ["-O2"])
    build.load.__wrapped__(operator, str)
    assert first is not None and len(list(cache.glob("*.so"))) == 3


# -- what somebody else has put there ----------------------------------------------------------------------------


def test_a_planted_library_is_not_loaded(cache: Path) -> None:
    found = loaded()
    assert found is not None
    found[1].write_bytes(b"planted")
    assert loaded() == found
    for record in ("", "null", "[]", json.dumps({"made_of": {}, "sha256": ""})):
        (cache / (found[1].name + ".json")).write_text(record)
        assert loaded() == found
    assert calls(cache) == 3 * 6


def test_no_link_is_followed(cache: Path, tmp_path: Path) -> None:
    found = loaded()
    assert found is not None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(GENUINE)
    found[1].unlink()
    found[1].symlink_to(elsewhere)
    assert loaded() == found and calls(cache) == 6  # made anew, in the link's place
    assert not found[1].is_symlink() and elsewhere.read_bytes() == GENUINE
    found[1].unlink()
    os.mkfifo(found[1])  # which would be waited for
    assert loaded() == found


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_lock_that_is_none_is_left_alone_and_the_folder_gives_way_to_a_private_one(
    kind: str, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (cache / "lock/inside" if kind == "folder" else cache).mkdir(parents=True)
    if kind == "link":
        (cache / "lock").symlink_to(victim)
    with caplog.at_level(logging.WARNING, logger="catnat"):
        first, second = loaded(), loaded()
    assert first is not None and first == second and first[1].parent.name.startswith("catnat-")
    assert sum("folder of its own" in record.getMessage() for record in caplog.records) == 1
    assert victim.read_text() == "precious" and [path.name for path in cache.iterdir()] == ["lock"]
    assert stat.S_IMODE(first[1].parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("link", ["cache", "cache/catnat"])
def test_a_folder_that_is_a_link_of_the_user_s_is_used(
    link: str, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "elsewhere").mkdir(0o755)
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING, logger="catnat"):
        first, second = loaded(), loaded()
    assert first is not None and first == second and first[1].is_relative_to(tmp_path / "elsewhere")
    assert calls(cache) == 3 and "folder of its own" not in caplog.text
    assert stat.S_IMODE(first[1].parent.stat().st_mode) == 0o700


@as_root
@pytest.mark.parametrize("whose", ["link", "target"])
def test_a_link_of_or_to_another_user_gives_way_to_a_private_folder(whose: str, cache: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    cache.parent.mkdir()
    cache.symlink_to(theirs)
    os.chown({"link": cache, "target": theirs}[whose], 65534, 65534, follow_symlinks=False)
    found = loaded()
    assert found is not None and found[1].parent.name.startswith("catnat-") and not list(theirs.iterdir())


def test_a_build_removes_what_nobody_has_loaded_for_long(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, used = loaded(), []
    for flag in ("-pipe", "-g"):
        monkeypatch.setattr(build, "LOOPS_FLAGS", [flag])
        used.append(loaded())
    assert old is not None and used[0] is not None and len(list(cache.glob("*.so"))) == 3
    (cache / "notes").write_text("mine")
    for path in cache.iterdir():
        os.utime(path, (0, 0))
    assert loaded() == used[1]  # which says that it is in use
    monkeypatch.setattr(build, "LOOPS_FLAGS", ["-O1"])
    new = loaded()
    assert new is not None
    kept = {name for _, path in (used[1], new) for name in (path.name, path.name + ".json")}
    assert {path.name for path in cache.iterdir()} == {"lock", "notes", *kept}


@as_root
def test_what_belongs_to_another_user_is_not_used(cache: Path) -> None:
    found = loaded()
    assert found is not None
    os.chown(found[1], 65534, 65534)
    assert loaded() == found and found[1].stat().st_uid == 0  # made anew
    os.chown(cache, 65534, 65534)
    private = loaded()
    assert private is not None and private[0] == GENUINE and private[1].parent != cache


def test_the_folder_is_closed_to_others_whatever_the_umask(cache: Path) -> None:
    before = os.umask(0)
    try:
        found = loaded()
        assert found is not None
        for path in (cache.parent, cache):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in cache.iterdir())
        cache.chmod(0o777)  # as an earlier version left it
        assert loaded() == found and stat.S_IMODE(cache.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_a_relative_cache_is_no_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = loaded()
    assert found is not None and found[1].parent == tmp_path / "home/.cache/catnat"
    assert not list((tmp_path / "current").iterdir())
    monkeypatch.setenv("HOME", "nowhere")
    found = loaded()
    assert found is not None and found[1].parent.name.startswith("catnat-")
    assert not list((tmp_path / "current").iterdir())


# -- what an accident has left -----------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, 5])
def test_a_damaged_library_is_made_anew(cache: Path, left: int) -> None:
    found = loaded()
    assert found is not None
    os.truncate(found[1], left)
    assert loaded() == found and calls(cache) == 6
    (cache / (found[1].name + ".json")).unlink()
    assert loaded() == found and calls(cache) == 9


def test_what_a_killed_compiler_left_is_removed(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = os.environ["CXX"]
    slow = script(tmp_path, "slow", "touch started; sleep 60")
    code = "from tests.torch.test_cpu_build import loaded; loaded()"
    environment = {**os.environ, "CXX": str(slow), "CATNAT_COMPILE": "1"}
    running = subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True)
    try:
        for _ in range(600):
            if list(cache.glob("work-*/started")):
                break
            time.sleep(0.1)
        assert list(cache.glob("work-*/started"))
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    monkeypatch.setenv("CXX", good)
    assert loaded() is not None and not list(cache.glob("work-*"))


@pytest.mark.parametrize("broken", ["absent", "failing", "producing rubbish"])
def test_without_a_working_compiler_one_line_is_logged(
    broken: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = {
        "absent": tmp_path / "nowhere",
        "failing": script(tmp_path, "fails", "echo 'error: no such header' >&2; exit 1"),
        "producing rubbish": Path(os.environ["CXX"]),
    }[broken]
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(build, "load", build.load.__wrapped__)  # as in a new process
    with caplog.at_level(logging.WARNING, logger="catnat"):
        assert torch_build.load() is None
    said = [record.getMessage() for record in caplog.records if "slower" in record.getMessage()]
    assert len(said) == 1 and "\n" not in said[0]


# -- the operator itself -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled() -> Path:
    module = torch_build.load()
    if module is None:
        pytest.skip("there is no C++ compiler, or none is wanted")
    return Path(module.__file__)


@pytest.mark.slow
def test_processes_build_it_once_and_survive_damage(compiled: Path, tmp_path: Path) -> None:
    text = f"echo call >> {tmp_path}/calls; case $1 in -c) sleep 1;; *) cp {compiled} library.so;; esac"
    env = {**os.environ, "CXX": str(script(tmp_path, "compiler", text)), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    code = "import torch, catnat.torch as ct; print(ct.log_catnat(torch.zeros(7), 8).exp().tolist() == [0.125] * 8)"

    def run() -> None:
        running = [
            subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in "ab"
        ]
        assert [process.communicate()[0].strip() for process in running] == ["True", "True"]
        assert [process.returncode for process in running] == [0, 0]

    run()
    assert len((tmp_path / "calls").read_text().split()) == 3  # one compiles twice and links, for all
    (library,) = (tmp_path / "cache/catnat").glob("*.so")
    os.truncate(library, 5000)  # to run it would be a bus error
    run()
    assert len((tmp_path / "calls").read_text().split()) == 6 and library.stat().st_size > 5000


def test_who_goes_without_loads_nothing(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def served_by(pi: catnat.Parameterization) -> type:
        x = torch.zeros(2, pi.num_nodes)
        return type(_dispatch.walk_for(_dispatch.plan_for(pi, x.dtype, x), x))

    pi = catnat.Parameterization(6)
    monkeypatch.setattr(catnat._native, "_wanted", None)
    for said, wanted in (("1", True), ("", True), ("0", False), ("off", False)):
        monkeypatch.setenv("CATNAT_COMPILE", said)
        catnat.clear_caches()
        assert (served_by(pi) is _cpu.CompiledWalk) == wanted
        catnat.compile_operators(True)
        assert served_by(pi) is _cpu.CompiledWalk  # a call goes before the environment
        catnat.compile_operators(False)
        assert served_by(pi) is not _cpu.CompiledWalk
        monkeypatch.setattr(catnat._native, "_wanted", None)


def test_building_ahead_prints_where(
    compiled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_module("catnat.torch.build", run_name="__main__")
    assert Path(capsys.readouterr().out.strip()) == compiled
    monkeypatch.setattr(catnat._native, "_wanted", False)
    with pytest.raises(SystemExit) as ended:
        run_module("catnat.torch.build", run_name="__main__")
    assert "CATNAT_COMPILE" in str(ended.value.code)


def test_the_first_compile_says_how_to_go_without(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="catnat"):
        loaded()
    (said,) = (record.getMessage() for record in caplog.records)
    assert "CATNAT_COMPILE=0" in said and "compile_operators(False)" in said and str(cache) in said
