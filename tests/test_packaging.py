"""What is published: both packages build, their metadata is sound, and the wheel needs NumPy alone."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import numpy as np
import pytest

import catnat

ROOT = Path(__file__).parents[1]


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel and an sdist, made by what is installed here."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def metadata(built: tuple[Path, Path]) -> Message:
    with zipfile.ZipFile(built[0]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(wheel.read(name))


def test_one_version_everywhere_and_a_day_for_it() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    number, day = re.search(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", changes, re.MULTILINE).groups()
    assert number == catnat.__version__
    assert f"\nversion: {number}\ndate-released: {day}\n" in citation


@pytest.mark.slow
def test_the_metadata_pass_the_check_of_the_package_index(built: tuple[Path, Path]) -> None:
    assert run(sys.executable, "-m", "twine", "check", "--strict", *built).count("PASSED") == 2


@pytest.mark.slow
def test_the_readme_links_to_files_by_their_addresses(metadata: Message) -> None:
    text = metadata.get_payload()
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 10 and all(target.startswith(("https://", "#")) for target in targets)
    home = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]
    raw = home.replace("github.com", "raw.githubusercontent.com") + "/main/"
    files = [
        t.removeprefix(raw).removeprefix(f"{home}/blob/main/").partition("#")[0] for t in targets if "catnat/" in t
    ]
    assert {"docs/images/fisher.png", "docs/quickstart.md"} <= set(files)
    assert all((ROOT / file).is_file() for file in files)
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
        assert picture.startswith(raw)


@pytest.mark.slow
def test_only_numpy_is_needed_and_every_extra_is_named(metadata: Message) -> None:
    required = metadata.get_all("Requires-Dist")
    assert [line for line in required if "extra ==" not in line] == ["numpy>=1.26"]
    assert {"torch", "jax", "plot", "lab"} <= set(metadata.get_all("Provides-Extra"))


@pytest.mark.slow
def test_the_wheel_works_beside_numpy_alone(built: tuple[Path, Path], tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path)
    python = tmp_path / "bin/python"
    (site,) = (tmp_path / "lib").glob("python*/site-packages")
    for part in Path(np.__file__).parents[1].glob("numpy*"):  # the package, its libraries, its metadata
        (site / part.name).symlink_to(part)
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "-q", built[0])
    code = (
        "import catnat, catnat_lab.plot; from catnat_lab import reference; import numpy as np;"
        "p = reference.catnat(np.zeros(2), catnat.Parameterization(3));"
        "print(catnat.__version__, p.round(3).tolist(), catnat.__file__)"
    )
    printed = run(python, "-I", "-c", code)
    assert printed.startswith(f"{catnat.__version__} [0.333, 0.333, 0.333] {site.resolve()}")


@pytest.mark.slow
def test_both_hold_what_they_should(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        in_wheel = set(wheel.namelist())
    with tarfile.open(built[1]) as sdist:
        in_sdist = {name.partition("/")[2] for name in sdist.getnames()}
    package = {"catnat/py.typed", "catnat_lab/plot.py", "catnat_lab/__main__.py"}
    package |= {"catnat/_native/loops.h", "catnat/_native/loops.cpp", "catnat/torch/_cpu/walk.cpp"}
    package |= {"catnat/jax/_cpu/calls.cpp"}
    assert package <= in_wheel and not any(name.startswith("tests") for name in in_wheel)
    beside = {"pyproject.toml", "README.md", "LICENSE", "Makefile", "tests/test_packaging.py", "docs/images/fisher.png"}
    assert {f"src/{name}" for name in package} | beside <= in_sdist


def test_workflows_run_the_two_commands() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert re.findall(r"run: (.+)", text) == ["make ${{ matrix.target }}"] and "target: [test, demo]" in text
