"""Our results beside the paper's: `table` judges them, `figures` draws, `page` writes. Nothing of one experiment."""

from catnat_lab.report.page import PageFigure, Report, as_csv, page, paper_rows, printed, text_of, write, write_pages
from catnat_lab.report.table import Cell, Column, Table, judge, markdown, terminal, verdict

__all__ = [
    "Cell",
    "Column",
    "Table",
    "judge",
    "verdict",
    "markdown",
    "terminal",
    "PageFigure",
    "Report",
    "page",
    "text_of",
    "write",
    "write_pages",
    "as_csv",
    "paper_rows",
    "printed",
]
