"""The page of `catnat playground`: in a browser its numbers are the library's, and it can be used as a page should."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import catnat
from catnat_lab import reference
from catnat_lab.cli import main
from catnat_lab.commands.playground import PAGE
from tests.lab.chromium import PROGRAM, Browser

needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium on this machine")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js on this machine")
Shown = dict[str, Any]
MOVED = "var moved = new Promise(done => addEventListener('hashchange', done, {once: true}))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def shown_by(browser: Browser) -> Shown:
    return json.loads(browser.run("document.getElementById('state').textContent"))


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


def settings_of(address: str) -> dict[str, str]:
    return dict(part.split("=") for part in address[1:].split("&"))


@needs_chromium
def test_the_page_shows_the_librarys_numbers(browser: Browser) -> None:
    browser.show(1280)
    browser.open(PAGE.as_uri())
    for address in cases():
        browser.run(f"{MOVED}; location.hash = '{address}'; moved.then(() => 0)")
        shown = shown_by(browser)
        given = settings_of(address)
        assert shown["settings"]["s"] == [float(value) for value in given["s"].split(",")]
        assert (str(shown["settings"]["k"]), shown["settings"]["tree"]) == (given["k"], given["tree"])
        assert float(given["tail"]) == shown["settings"]["tail"]
        check(shown)
    assert not browser.complaints


@needs_node
def test_its_mathematics_alone_gives_the_librarys_numbers() -> None:
    found = re.search(r'<script id="mathematics">(.*?)</script>', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    program = f"{found[1]}; console.log(JSON.stringify({json.dumps(cases())}.map(hash => compute(parse(hash)))));"
    done = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True)
    for shown in json.loads(done.stdout):
        check(shown)


# -- the page ----------------------------------------------------------------------------------------------------


@needs_chromium
def test_what_is_drawn_is_what_was_computed(browser: Browser) -> None:
    browser.open(PAGE.as_uri() + "#k=5&s=0.5,-1,2,0.25")
    shown = shown_by(browser)
    drawn = browser.run(
        "[...document.querySelectorAll('#bars .bar:not(.head)')].map(row => row.innerText.split(/\\s+/))"
    )
    assert [float(row[1]) for row in drawn] == [round(100 * p, 1) for p in shown["probs"]]
    cells = browser.run("[...document.querySelectorAll('#fisher-softmax rect title')].map(cell => cell.textContent)")
    values = [float(cell.split(": ")[1].replace("−", "-")) for cell in cells]
    np.testing.assert_allclose(np.reshape(values, (5, 5)), shown["fisher"]["softmax"], atol=1e-6)
    assert (
        len(browser.run("[...document.querySelectorAll('#tree-drawing title')].map(mark => mark.textContent)")) == 4 + 5
    )
    for name in ("softmax", "catnat"):
        assert f"{shown['descent'][name]['losses'][-1]:.3f}" in browser.run(
            "document.getElementById('descent-says').innerText"
        )


@needs_chromium
@pytest.mark.parametrize("address", ["", "#k=16", "#k=16&tree=chain&by=logits", "#k=3&tail=0&s=-6,6&loss=reward"])
def test_nothing_scrolls_sideways_on_a_phone(browser: Browser, address: str) -> None:
    browser.show(360, 740)
    browser.open(PAGE.as_uri() + address)
    assert browser.run("document.documentElement.scrollWidth") == 360
    outside = "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > 361).length"
    assert browser.run(outside) == 0
    assert not browser.complaints


@needs_chromium
def test_the_keyboard_is_enough(browser: Browser) -> None:
    browser.show(1280)
    browser.open(PAGE.as_uri() + "#k=4&s=0,0,0")
    before = shown_by(browser)
    seen = []
    for _ in range(40):
        browser.press("Tab", 9)
        seen.append(browser.run("document.activeElement.id || document.activeElement.name"))
        assert browser.run(
            "document.activeElement.tagName === 'BODY' || getComputedStyle(document.activeElement).outlineWidth"
        ) in (True, "3px")
        if seen[-1] == "s0" and seen.count("s0") == 1:
            browser.press("ArrowRight", 39)
            browser.press("ArrowRight", 39)
            after = shown_by(browser)
            assert browser.run("document.activeElement.id") == "s0", "a drag must not lose the slider"
    assert after["settings"]["s"] == [0.1, 0, 0]
    assert sum(after["probs"][2:]) > sum(before["probs"][2:]), "a higher score sends more to the right"
    inputs = {"k", "tree", "tail", "amp", "by", "s0", "s1", "s2", "rate", "steps", "loss", "g0", "g1", "g2", "g3"}
    assert inputs <= set(seen)
    unnamed = "[...document.querySelectorAll('input')].filter(e => !e.labels.length).length"
    assert browser.run(unnamed) == 0


@needs_chromium
def test_the_address_holds_what_was_set_and_nonsense_is_ignored(browser: Browser) -> None:
    browser.open(PAGE.as_uri() + "#k=99&tail=x&s=1,oops,1e9&tree=oak&g=-3&rate=")
    shown = shown_by(browser)
    assert shown["settings"]["k"] == 16 and shown["settings"]["tail"] == 0.1 and shown["settings"]["tree"] == "balanced"
    assert shown["settings"]["s"][0] == 1 and shown["settings"]["s"][2] == 6 and shown["settings"]["g"][0] == 0
    check(shown)
    browser.run("document.getElementById('shuffle').click()")
    browser.run("document.querySelector('input[name=by][value=logits]').click()")
    browser.run("new Promise(done => setTimeout(done, 600))")
    shared = shown_by(browser)
    check(json.loads(json.dumps(shared)))
    browser.open(browser.run("location.href"))
    assert shown_by(browser) == shared and len(shared["settings"]["s"]) == 16
    assert not browser.complaints


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
