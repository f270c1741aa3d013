"""Every example of reinforcement learning runs, says what it reached beside softmax, and learns."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LINE = re.compile(r"^(catnat|softmax): \D*(\d+(?:\.\d+)?)", re.MULTILINE)

# For each: what it imports, and what catnat reaches with a wide margin.
CASES = {
    "sb3_cartpole": (["stable_baselines3"], lambda reached: reached > 150),  # by chance 22
    "maskable_ppo": (["sb3_contrib"], lambda reached: reached > 10),  # by chance 7.7
    "torchrl_actor": (["torchrl"], lambda reached: reached > 80),  # by chance 0
    "rllib_cartpole": (["ray", "tree", "lz4", "ormsgpack", "pyarrow", "pydantic"], lambda reached: reached > 60),
    "cleanrl_ppo": (["gymnasium"], lambda reached: reached > 100),  # by chance 22
    "reinforce_masks": ([], lambda reached: reached < 4.8),  # by chance 6.6
}


def run(name: str, folder: Path) -> dict[str, float]:
    """What an example says of catnat and of softmax."""
    missing = [library for library in CASES[name][0] if find_spec(library) is None]
    if missing:
        pytest.skip(f"{name}: {', '.join(missing)} not installed")
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(folder.iterdir())  # it leaves nothing behind
    said = {who: float(number) for who, number in LINE.findall(done.stdout)}
    assert said.keys() == {"catnat", "softmax"}, done.stdout
    return said


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_learns(name: str, tmp_path: Path) -> None:
    assert CASES[name][1](run(name, tmp_path)["catnat"])


def test_they_are_short() -> None:
    for name in CASES:
        assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 60, name
