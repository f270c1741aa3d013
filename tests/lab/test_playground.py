"""The page of `catnat playground`: its numbers are the library's, and it needs nothing but itself."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import catnat
from catnat_lab import reference
from catnat_lab.cli import main
from catnat_lab.commands.playground import PAGE

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js on this machine")
Shown = dict[str, Any]
# -- the numbers -------------------------------------------------------------------------------------------------


def cases() -> list[str]:
    """Addresses with random scores over every K, both trees, tails from one end to the other, both losses."""
    rng = np.random.default_rng(0)
    options = ((0.0, 1e-6, 0.01, 0.1, 0.3, 0.5), (2, 0.5, 1.3, 4), ("scores", "logits"), ("target", "reward"))
    found = []
    for k in range(3, 17):
        for tree in ("balanced", "chain"):
            tail, amp, by, loss = (some[rng.integers(len(some))] for some in options)
            scores = rng.uniform(-2.5, 2.5, k if by == "logits" else k - 1)
            goal = rng.uniform(0, 1, k) * (rng.uniform(size=k) < 0.7)
            lists = {"s": scores, "g": goal}
            given = {"k": k, "tree": tree, "by": by, "tail": tail, "amp": amp, "loss": loss, "steps": 40}
            given["rate"] = 0.5 if tail >= 0.1 else 0.02  # steep slopes would make much of a rounding
            given |= {name: ",".join(map(repr, values.tolist())) for name, values in lists.items()}
            found.append("#" + "&".join(f"{name}={value}" for name, value in given.items()))
    return found


def expected(settings: Shown) -> Shown:
    """What the page is to show, by the float64 oracle."""
    k, given = settings["k"], np.array(settings["s"])
    tree = getattr(catnat.Tree, settings["tree"])(k)
    pi = catnat.Parameterization(k, catnat.Natural(amplitude=settings["amp"] * math.pi, tail=settings["tail"]), tree)
    if settings["by"] == "scores":
        scores, probs = given, reference.catnat(given, pi)
        logits = np.log(probs) - np.log(probs).mean()
    else:
        logits, probs = given, np.exp(given) / np.exp(given).sum()
        scores = reference.scores_from_probs(probs, pi)
    goal = np.array(settings["g"])
    target = goal / goal.sum() if goal.any() else np.full(k, 1 / k)

    def softmax_gradient(z: np.ndarray, upstream: np.ndarray) -> np.ndarray:
        return upstream - np.exp(z) / np.exp(z).sum() * upstream.sum()

    def losses(at: np.ndarray, probs_of: Callable, gradient_of: Callable) -> list[float]:
        found = []
        for _ in range(settings["steps"] + 1):
            p = probs_of(at)
            if settings["loss"] == "target":
                found.append(-np.sum(target * np.log(p)))
                gradient = gradient_of(at, -target)
            else:
                found.append(-np.sum(goal * p))
                gradient = gradient_of(at, -goal * p)
            at = at - settings["rate"] * gradient
        return found

    return {
        "probs": probs,
        "scores": scores,
        "logits": logits,
        "centers": pi.centers,
        "right": np.exp(reference.activation(scores, pi)[1]),
        "fisher": {"softmax": reference.softmax_fisher(logits), "catnat": reference.fisher_matrix(scores, pi)},
        "least": -np.sum(target * np.log(np.where(target > 0, target, 1)))
        if settings["loss"] == "target"
        else -goal.max(),
        "losses": {
            "softmax": losses(logits, lambda z: np.exp(z) / np.exp(z).sum(), softmax_gradient),
            "catnat": losses(
                scores, lambda s: reference.catnat(s, pi), lambda s, up: reference.log_catnat_gradient(s, up, pi)
            ),
        },
    }


def check(shown: Shown) -> None:
    wanted = expected(shown["settings"])
    shown["losses"] = {name: shown["descent"][name]["losses"] for name in ("softmax", "catnat")}
    for name, values in wanted.items():
        pairs = (
            [(shown[name][head], values[head]) for head in values]
            if isinstance(values, dict)
            else [(shown[name], values)]
        )
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9, err_msg=f"{name} of {shown['settings']}")


def shown(addresses: list[str]) -> list[Shown]:
    """What the page's own script makes of these addresses."""
    found = re.search(r'<script id="mathematics">(.*?)</script>', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    program = f"{found[1]}; console.log(JSON.stringify({json.dumps(addresses)}.map(hash => compute(parse(hash)))));"
    done = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


@needs_node
def test_its_numbers_are_the_librarys() -> None:
    for address, found in zip(cases(), shown(cases()), strict=True):
        given = dict(part.split("=") for part in address[1:].split("&"))
        settings = found["settings"]
        assert settings["s"] == [float(value) for value in given["s"].split(",")]
        assert (str(settings["k"]), settings["tree"]) == (given["k"], given["tree"])
        assert settings["tail"] == float(given["tail"])
        check(found)


@needs_node
def test_nonsense_in_the_address_is_ignored() -> None:
    (found,) = shown(["#k=99&tail=x&s=1,oops,1e9&tree=oak&g=-3&rate="])
    settings = found["settings"]
    assert settings["k"] == 16 and settings["tail"] == 0.1 and settings["tree"] == "balanced"
    assert settings["s"][0] == 1 and settings["s"][2] == 6 and settings["g"][0] == 0
    check(found)


# -- the page ----------------------------------------------------------------------------------------------------


def test_the_defaults_are_the_librarys() -> None:
    page, natural = PAGE.read_text(encoding="utf-8"), catnat.Natural()
    assert f'number("tail", 0, 0.5, {natural.tail:g})' in page and natural.amplitude == 2 * math.pi
    assert 'number("amp", 0.5, 4, 2)' in page


def test_the_page_loads_nothing() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert re.findall(r'(?:src|href)="(?!#|data:)([^"]*)"', page) == ["https://arxiv.org/abs/2509.24728"]
    assert not re.search(r"@import|url\(|fetch\(|import\(|XMLHttpRequest", page)


# -- the command -------------------------------------------------------------------------------------------------


def test_the_command_prints_the_path_and_opens_the_page(capsys, monkeypatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    assert main(["playground", "--no-open"]) == 0 and not opened
    assert main(["playground"]) == 0 and opened == [PAGE.as_uri()]
    assert capsys.readouterr().out == f"{PAGE}\n{PAGE}\n"
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert main(["playground"]) == 0 and "no browser was found" in capsys.readouterr().out


def test_the_command_needs_no_framework() -> None:
    run = "import sys; from catnat_lab.cli import main; main(['playground', '--no-open'])"
    program = f"{run}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0
