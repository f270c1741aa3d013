"""The other tests have XLA compile in a hurry; here the contract is asked of programs as XLA makes them by default."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import XLA_FLAGS

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = {
    "--xla_force_host_platform_device_count": "1",
    "--xla_backend_optimization_level": "3",
    "--xla_cpu_parallel_codegen_split_count": "32",
    "--xla_cpu_use_fusion_emitters": "true",
}


def run_contract(*arguments: str) -> None:
    flags = " ".join(f"{name}={DEFAULTS[name]}" for name in XLA_FLAGS)  # conftest.py leaves them alone
    contract = ROOT / "tests" / "contract" / "test_values_and_gradients.py"
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", str(contract), *arguments],
        env={**os.environ, "XLA_FLAGS": flags},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout


@pytest.mark.slow
def test_values_and_gradients_of_a_part_of_the_grid() -> None:
    run_contract()
