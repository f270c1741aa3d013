"""The files of a report: the page, the same as Markdown, and the numbers as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from catnat_lab.report.as_markdown import markdown
from catnat_lab.report.as_page import Report, page, write


def write_pages(report: Report, folder: Path, numbers: Mapping[str, str]) -> Path:
    """Write report.html, report.md and the numbers, texts by the names of their files; the path of the page."""
    parts = [markdown(table).rstrip() for table in report.tables]
    if report.remarks:
        differ = ", and why we think we differ" if any(table.has_paper for table in report.tables) else ""
        parts.append("\n".join([f"**What else we found{differ}**", "", *(f"- {remark}" for remark in report.remarks)]))
    told = [f"{name} {report.provenance[name]}" for name in ("commit", "date", "GPU") if name in report.provenance]
    if report.commands:
        parts.append("\n".join(["**Where it comes from**", "", *(f"    {command}" for command in report.commands)]))
        parts.append(f"{', '.join(told)}; provenance.json and report.html, with the figures, have more.")
    write(folder / "report.md", "\n\n".join(parts) + "\n")
    for name, text in numbers.items():
        write(folder / name, text)
    return write(folder / "report.html", page(report))
