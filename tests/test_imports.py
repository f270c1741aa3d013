"""What comes in with an import, what it offers, and that its examples are true."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import subprocess
import sys

import pytest

import catnat
import catnat.jax
import catnat.torch

MODULES = [info.name for info in pkgutil.walk_packages(catnat.__path__, "catnat.")]
FRAMEWORKS = ("torch", "jax", "triton", "matplotlib", "gymnasium", "stable_baselines3", "sb3_contrib", "torchrl", "ray")


def loaded_by(statement: str) -> set[str]:
    """Which frameworks a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*({set(FRAMEWORKS)!r} & set(sys.modules)))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_catnat_loads_no_framework() -> None:
    assert loaded_by("import catnat; catnat.Parameterization(5).centers; import catnat_lab.reference") == set()
    assert loaded_by("import catnat_lab.plot") == set()  # matplotlib comes with the first picture
    assert loaded_by("import catnat.integrations") == set()


def test_a_backend_loads_its_own_framework_and_no_other() -> None:
    used = loaded_by("import catnat.torch, sys; catnat.torch.log_catnat(sys.modules['torch'].zeros(3), 4)")
    assert "torch" in used and "jax" not in used
    assert loaded_by("import catnat.jax") == {"jax"}


@pytest.mark.parametrize("package", [catnat, catnat.torch, catnat.jax], ids=lambda p: p.__name__)
def test_every_public_name_exists_and_is_explained(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert len(names) == len(set(names))
    for name in names:
        thing = getattr(package, name)
        if name == "__version__":
            continue
        assert inspect.isclass(thing) or inspect.isfunction(thing), name
        own = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
        assert own and own.strip(), f"{name} has no docstring of its own"
        for member, value in inspect.getmembers(thing, inspect.isfunction):
            if member in vars(thing) and not member.startswith("_"):
                assert value.__doc__, f"{name}.{member} has no docstring"


def test_public_names_are_all_offered() -> None:
    # what a user can reach in the package without an underscore is meant to be reached
    for package in (catnat, catnat.torch, catnat.jax):
        offered = set(package.__all__)
        found = {
            name for name, thing in vars(package).items() if not name.startswith("_") and not inspect.ismodule(thing)
        }
        assert found <= offered, found - offered


@pytest.mark.parametrize("name", ["catnat", *(m for m in MODULES if not m.startswith("catnat.jax"))])
def test_examples_in_docstrings_are_true(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catnat._native, "_wanted", catnat._native._wanted)  # an example goes without the operators
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if not name.startswith("catnat.integrations."):
            raise
        pytest.skip(str(missing))
    outcome = doctest.testmod(module)
    monkeypatch.undo()
    catnat.clear_caches()
    assert outcome.failed == 0


@pytest.mark.parametrize("library", ["pyro", "numpyro", "distrax"])
def test_an_integration_says_what_it_needs(library: str) -> None:
    # None in sys.modules is a library that is not installed
    code = f"import sys; sys.modules[{library!r}] = None; import catnat.integrations.{library}"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"pip install '.[{library}]'" in outcome.stderr, outcome.stderr


@pytest.mark.slow  # docs/jax.md has most of them
def test_examples_in_docstrings_of_jax_are_true() -> None:
    # with XLA's own settings, not those of tests/conftest.py: the last digits depend on them
    names = [m for m in MODULES if m.startswith("catnat.jax")]
    code = (
        f"import doctest, importlib\nfailed = sum(doctest.testmod(importlib.import_module(m)).failed for m in {names})"
        "\nraise SystemExit(failed)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_there_are_examples(backend: str) -> None:
    modules = [importlib.import_module(f"catnat.{backend}.{name}") for name in ("functional", "nn")]
    found = [example for m in modules for test in doctest.DocTestFinder().find(m) for example in test.examples]
    assert len(found) > 20
