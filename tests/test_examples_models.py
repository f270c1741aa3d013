"""Every example that trains a model runs, and what it prints is no worse than it should be; the notebook is true."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# What an example needs beside catnat, and bounds on what softmax and catnat reach: far from what is seen, so that no
# machine fails by its rounding, and far from what an untrained or a broken model gives.
NEEDS: dict[str, tuple[Any, ...]] = {
    "classifier": (["sklearn"], (0.85, 1)),
    "distrax_policy": (["distrax", "optax"], (-7, 0)),
    "equinox_loop": (["equinox", "optax", "mlxtend"], (0.7, 1)),
    "flax_loop": (["flax", "optax", "mlxtend"], (0.8, 1)),
    "message_game": ([], (0, 100), 20),
    "numpyro_mixture": (["numpyro"], (0.6, 1.6)),
    "pyro_mixture": (["pyro", "mlxtend"], (-55, -30)),
    "transformers_head": (["transformers", "mlxtend"], (0.7, 1)),
    "tokenizer": (["mlxtend", "matplotlib"], (5, 120), 20),
    "vae": (["mlxtend"], (150, 260), 20),
    "vae_flax": (["flax", "optax", "mlxtend"], (150, 260), 20),
    "world_model": (["gymnasium"], (0.01, 4), 5),
}  # the third is how many steps are enough to see that it runs, for what takes minutes


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_trains_both(name: str, tmp_path: Path) -> None:
    libraries, (low, high), *steps = NEEDS[name]
    for library in libraries:
        pytest.importorskip(library, reason=f"{library} is not installed")
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | {"HF_HUB_OFFLINE": "1"}
    outcome = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *map(str, steps)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=1200,
    )
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    reached = dict(re.findall(r"(softmax|catnat):?[a-zA-Z ]* (-?[\d.]+\d)", outcome.stdout))
    assert set(reached) == {"softmax", "catnat"}, outcome.stdout
    for head, value in reached.items():
        assert low < float(value) <= high, f"{head} reached {value}: {outcome.stdout}"


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_is_short_and_says_what_it_needs(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert text.count("\n") <= 70
    assert text.startswith('"""') and "pip install" in text.split('"""')[1]
    compile(text, name, "exec")


def test_the_notebook_says_what_its_cells_print() -> None:
    cells = json.loads((EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    namespace: dict[str, object] = {"__name__": "notebook"}
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(cells) > 4
    for cell in cells:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec("".join(cell["source"]), namespace)
        kept = "".join("".join(output["text"]) for output in cell["outputs"])
        assert printed.getvalue() == kept, "".join(cell["source"])
