"""Every Python example in README.md and docs/ runs, and prints what it says; the API pages miss no public name."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import catnat
import catnat.jax
import catnat.torch
import catnat_lab.plot
from tests.pages import program

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A line that prints; what it prints stands behind two spaces and a hash.
PRINTS = re.compile(r"^print\(.*\)  # (.+)$", re.MULTILINE)


def blocks(page: Path) -> list[tuple[int, str]]:
    """(line, code) of every Python example on a page."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)), found.group(1)) for found in BLOCK.finditer(text)]


LONG = ("integrations.md", "jax.md", "reinforcement-learning.md")  # many imports, programs compiled, policies trained


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.name in LONG else (), id=page.name)
        for page in PAGES
        if blocks(page)
    ],
)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": "example"}
    absent = []
    for line, code in blocks(page):
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                # blank lines in front: a traceback then names the line of the page
                exec(compile("\n" * line + code, str(page), "exec"), namespace)
        except ModuleNotFoundError as missing:
            if page.name != "integrations.md":
                raise
            absent.append(missing.name)
            continue
        if page.name != "README.md":
            where = f"{page.name}, the example at line {line + 1}"
            assert printed.getvalue().splitlines() == PRINTS.findall(code), where
    if absent:
        pytest.skip(f"not all of it was run: no {', '.join(map(str, absent))}")


def test_there_are_examples() -> None:
    # a change of the fences must not leave us with nothing to run
    names = "index pictures graphs quickstart jax math numerics trees distributions integrations"
    assert {f"{name}.md" for name in names.split()} <= {page.name for page in PAGES if blocks(page)}
    assert sum(len(blocks(page)) for page in PAGES) > 20
    for page in PAGES:
        assert len(blocks(page)) == page.read_text(encoding="utf-8").count("```python"), page.name


@pytest.mark.parametrize("module", [catnat, catnat_lab.plot, catnat.torch, catnat.jax], ids=lambda m: m.__name__)
def test_api_pages_list_every_public_name_once(module) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    entries = re.findall(r"^\.\. auto\w+:: (\S+)$", text, re.MULTILINE)
    expected = [f"{module.__name__}.{name}" for name in module.__all__ if name != "__version__"]
    assert sorted(e for e in entries if e.rpartition(".")[0] == module.__name__) == sorted(expected)


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_needs_no_network(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "-d",
        str(tmp_path / "trees"),
        "docs",
        str(tmp_path / "html"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {page.name: page.read_text(encoding="utf-8") for page in (tmp_path / "html").rglob("*.html")}
    assert {"index.html", "math.html", "torch-nn.html", "search.html"} <= set(pages)
    for name, text in pages.items():
        loads = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"((?:https?:)?//[^\"]*)", text)
        assert not loads, f"{name} loads {loads}"
    for sheet in (tmp_path / "html").rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name
    assert pages["math.html"].count("<math") > 100


LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)|`(results/[\w./-]+)`")


def test_what_a_page_links_to_or_names_of_the_results_is_there() -> None:
    of_results = [page for page in (ROOT / "results").rglob("*.md") if page.parent.name != "archive"]
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", *of_results]:
        for link, result in LINK.findall(page.read_text(encoding="utf-8")):
            assert (ROOT / result if result else page.parent / link).exists(), f"{page}: {link or result}"


QUOTE = re.compile(r"<!-- from (\S+) -->\n(.*?)<!-- /from -->", re.DOTALL)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "<!-- from" in page.read_text(encoding="utf-8")], ids=lambda page: page.name
)
def test_what_a_page_quotes_from_a_report_stands_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    quotes = QUOTE.findall(text)
    assert len(quotes) == text.count("<!-- from")
    for report, quoted in quotes:
        assert quoted in (ROOT / report).read_text(encoding="utf-8"), f"{page.name} and {report} differ"


def test_tables_are_those_of_the_results() -> None:
    tables = program("tables")
    marked = {page: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
    used = [name for text in marked.values() for name in re.findall(r"<!-- table (\S+) -->", text)]
    assert sorted(used) == sorted(tables.TABLES)
    for page, text in marked.items():
        assert tables.renewed(text) == text, f"{page.name} is not as the results are: run python docs/tables.py"


def test_a_fall_as_1_over_steps_is_found_in_both_bounds() -> None:
    tables, steps, limit, scale = program("tables"), np.arange(1, 21) * 10_000.0, 100.0, 50_000.0
    windows = [np.linspace(end - 10_000, end, 10_001)[1:] - 0.5 for end in steps]  # a mean over every step between two
    training = np.array([limit + (scale / window).mean() for window in windows])
    run = np.column_stack([steps, limit + scale / steps, training])
    for bound in (tables.VALIDATION, tables.TRAIN):
        assert tables.law(run, bound, 200_000) == pytest.approx([scale / 200_000, limit], rel=1e-6)
    roots = [(window**-0.5).mean() for window in windows]
    assert tables.decay(steps, tables.TRAIN, 0.5) == pytest.approx(roots, rel=1e-2)


def test_where_training_breaks_is_read_between_two_rates() -> None:
    breaking, rates = program("tables").breaking, [1.0, 4.0, 16.0]
    halfway = np.array([1.0, 0.8, 0.95])  # what comes back later does not count
    assert breaking(rates, halfway) == pytest.approx(2.0)
    assert breaking(rates, np.array([0.95, 0.9, 0.1])) == pytest.approx(4.0)
    assert breaking(rates, np.array([0.5, 1.0, 0.8])) == pytest.approx(8.0)  # too small a rate is not too large
    assert breaking(rates, np.array([0.8, 0.5, 0.1])) == 1.0 and breaking(rates, np.array([0.9, 0.9, 0.9])) == 16.0
