"""The look of figures, and their way into a page: text stays text, ids stay unique, ink follows the page's colour."""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

INK = "#1a1b1e"  # text and axes; becomes the page's own text colour, so that figures are legible in the dark too
FAINT = "#8a8b8e"  # grid and hints: grey enough for both


class Style(NamedTuple):
    """How a line is drawn, everywhere. Markers differ too, for those who do not see the colours."""

    colour: str
    marker: str


# Okabe and Ito's palette, which most colour-blind readers can tell apart.
STYLES = {
    "softmax": Style("#0072B2", "s"),
    "sparsemax": Style("#CC79A7", "^"),
    "catnat": Style(INK, "*"),
    "catnat-sigmoid": Style("#009E73", "D"),
    "catnat-natural": Style("#D55E00", "o"),
    "catnat-natural-reflect": Style("#E69F00", "v"),
    "catnat-natural-revive": Style("#56B4E9", "P"),
}
SPARE = Style(FAINT, "X")  # for a line that has no style of its own

LOOK: Any = {  # matplotlib's own type lists every key
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "catnat",  # the same figure gives the same file
}


def style(name: str) -> Style:
    """The fixed style of a parameterization."""
    return STYLES.get(name, SPARE)


def serialize(figure: Figure, label: str) -> str:
    """The figure as one ``<svg>`` element without a prologue, for a page; ``label`` says in words what it shows."""
    buffer = io.StringIO()
    with rc_context(LOOK):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].rstrip()
    text = text.replace("xlink:href=", "href=").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(<image\b[^>]*?)\sid="[^"]*"', r"\1", text)  # made from the pixels: equal images would share one
    return labelled(text.replace(INK, "currentColor"), label)


def labelled(svg: str, label: str) -> str:
    """The element as an image with a label for those who hear the page; left as it is when it already has one."""
    opening = svg[: svg.index(">")]
    if "aria-label=" in opening:
        return svg
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def with_prefix(svg: str, prefix: str) -> str:
    """The element with a prefix before every id and every reference to one, so that figures may share a page."""
    svg = re.sub(r'(\sid=")', rf"\g<1>{prefix}", svg)
    return re.sub(r'(\shref="#|url\(#)', rf"\g<1>{prefix}", svg)
