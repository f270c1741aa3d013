"""Our results beside the paper's: the table, what it says, and three ways to show it.

A `Table` holds our values and the paper's numbers; `judge` says where they agree. `markdown`, `terminal` and `page`
show the same judgement. The figures of an experiment are in a module of its own (`gsl_figures`).
"""

from catnat_lab.report.as_markdown import markdown
from catnat_lab.report.as_page import PageFigure, Report, page, write
from catnat_lab.report.as_terminal import terminal
from catnat_lab.report.judgement import Contest, Difference, Disagreement, Judgement, judge
from catnat_lab.report.table import Cell, Column, Table
from catnat_lab.report.written import write_pages

__all__ = [
    "Cell",
    "Column",
    "Table",
    "judge",
    "Judgement",
    "Contest",
    "Difference",
    "Disagreement",
    "markdown",
    "terminal",
    "page",
    "Report",
    "PageFigure",
    "write",
    "write_pages",
]
