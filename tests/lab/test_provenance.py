"""A number's origin is told truly: the commit, and whether the sources differ from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import catnat
from catnat_lab import provenance as module
from catnat_lab.provenance import continued, provenance


def test_local_changes_of_the_sources_are_told(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    source = tmp_path / "src" / "package"
    source.mkdir(parents=True)
    (source / "file.py").write_text("1\n")
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    monkeypatch.setattr(module, "__file__", str(source / "file.py"))
    clean = provenance("x")["commit"]
    assert len(clean) == 40
    (tmp_path / "notes.txt").write_text("not a source")
    assert provenance("x")["commit"] == clean
    (source / "file.py").write_text("2\n")
    assert provenance("x")["commit"] == f"{clean} (with local changes)"


def test_outside_of_a_repository_the_commit_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "__file__", str(tmp_path / "file.py"))
    assert provenance("x")["commit"] == "unknown"


def test_versions_are_those_that_run():
    facts = provenance("catnat gsl", torch.device("cpu"))
    assert facts["command"] == "catnat gsl" and facts["catnat"] == catnat.__version__
    assert facts["torch"] == torch.__version__ and "GPU" not in facts
    assert Path(module.__file__).exists()


def test_of_two_installed_versions_the_imported_one_is_named(tmp_path, monkeypatch):
    (tmp_path / "numpy-0.0.1.dist-info").mkdir()
    (tmp_path / "numpy-0.0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert provenance("x")["numpy"] == "0.0.1"
    monkeypatch.undo()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert provenance("x")["numpy"] == np.__version__


def test_a_study_tells_all_places_that_it_went_on_at_and_by_what_command():
    first = {"command": "catnat vae", "commit": "a", "date": "1"}
    grown = continued(first, first | {"command": "catnat vae --seeds 3", "commit": "b"})
    assert continued(first, first) == first
    assert grown == first | {"continued with": "command catnat vae --seeds 3, commit b"}
    assert continued(grown, first | {"command": "catnat vae --seeds 3", "commit": "b"}) == grown  # on and on
    again = continued(grown, first | {"date": "2"})
    assert again["continued with"] == "command catnat vae --seeds 3, commit b; date 2"
    assert continued(again, first)["continued with"] == again["continued with"]
