"""The page stands alone, escapes what it is given, and is written whole or not at all."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from catnat_lab.files import write
from catnat_lab.report.figures import CurvePanel, draw_curves
from catnat_lab.report.page import PageFigure, as_csv, page, text_of
from tests.lab.report_cases import HOSTILE, cell, curve, drawn, large, report, table


@pytest.fixture(scope="module")
def whole_page() -> str:
    """One with all that a page can have; drawing it takes seconds."""
    tables = (large(), table({"a": cell(7.40, 7.45), "b": cell(7.45, 7.40, bold=True)}))
    return page(report(*tables, figures=drawn(), remarks=("We think so.",), provenance={"command": "make a"}))


# --- the page


class Reader(HTMLParser):
    """Reads a page, checks that tags are balanced, and keeps ids, attributes and text."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def all(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags for key, value in attributes.items() if key == name and value]


def test_the_page_stands_alone(whole_page: str) -> None:
    text = whole_page
    assert "http://" not in text and "https://" not in text and "file:" not in text
    assert {link[0] for link in Reader(text).all("href") if not link.startswith("data:image/png;base64,")} == {"#"}
    assert "@import" not in text and "<script" not in text and "<link" not in text
    assert not [ref for ref in re.findall(r"url\(([^)]*)\)", text) if not ref.startswith("#")]
    assert {source.split(":")[0] for source in Reader(text).all("src")} <= {"data"}
    order = (
        "of 20 cells",
        "Against softmax",
        "Our numbers beside",
        "Where we disagree",
        "We think so.",
        "make a",
    )
    assert sorted(order, key=text.index) == list(order)  # the verdict and a plot first, how it was run last
    plain = text_of(report(large(), remarks=("We think so.",), provenance={"command": "make a"}))
    parts = [part for part in order if part in plain]
    assert len(parts) == 5 and sorted(parts, key=plain.index) == parts
    assert "prefers-color-scheme: dark" in text and "@media print" in text


def test_ids_are_unique_and_references_lead_somewhere(whole_page: str) -> None:
    text, reader = whole_page, Reader(whole_page)
    assert [name for name, count in Counter(reader.all("id")).items() if count > 1] == []
    links = [link for link in reader.all("href") if not link.startswith("data:")]
    references = links + re.findall(r"url\((#[^)]*)\)", text)
    assert len(references) > 20 and {ref[1:] for ref in references} <= set(reader.all("id"))


def test_every_figure_is_an_image_with_title_caption_and_label(whole_page: str) -> None:
    reader = Reader(whole_page)
    images = [attributes for tag, attributes in reader.tags if tag == "svg"]
    assert [image["role"] for image in images] == ["img"] * 5
    assert [image["aria-label"] for image in images] == ["Against softmax", *(f"Figure {i}" for i in range(4))]
    assert Counter(tag for tag, _ in reader.tags)["figcaption"] == 5


def test_hostile_strings_are_escaped_everywhere() -> None:
    mine = table({HOSTILE: cell(7.40, 7.45), "b": cell(7.45, 7.40, bold=True)}, title=HOSTILE, group_name=HOSTILE)
    figure = draw_curves([CurvePanel(HOSTILE, {HOSTILE: curve([3.0, 3.0])}, 2.0)], HOSTILE)
    hostile = report(
        mine,
        title=HOSTILE,
        summary=HOSTILE,
        provenance={HOSTILE: HOSTILE, "command": HOSTILE},
        remarks=(HOSTILE,),
        figures=(PageFigure(HOSTILE, HOSTILE, figure),),
    )
    text = page(hostile)
    assert "<b>" not in text and text.count("&lt;b&gt;&amp;") > 15
    assert "b" not in {tag for tag, _ in Reader(text).tags}


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write(tmp_path / "deep" / "page.html", "old θ*")
    assert target.read_text(encoding="utf-8") == "old θ*"
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write(target, "new")
    assert target.read_text(encoding="utf-8") == "old θ*" and list(target.parent.iterdir()) == [target]
    write(target, "new")
    assert target.read_text() == "new" and list(target.parent.iterdir()) == [target]


def test_records_are_csv_under_all_their_names() -> None:
    rows = [{"a": 1, "b": 0.1234567}, {"a": "x,y", "c": 1e6, "b": float("nan")}]
    assert as_csv(rows) == 'a,b,c\n1,0.123457,\n"x,y",nan,1e+06\n'


def test_no_text_of_a_table_is_computed_by_a_spreadsheet() -> None:
    bad = ('=HYPERLINK("http://x")', "+1+cmd", "-x", "@sum", "\tx")
    found = [row["a"] for row in csv.DictReader(as_csv({"a": text} for text in bad).splitlines())]
    assert found == [f"'{text}" for text in bad]
    assert as_csv([{"a": -0.5, "b": "-0.5", "c": "a=b"}]) == "a,b,c\n-0.5,-0.5,a=b\n"
