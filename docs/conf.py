"""Sphinx settings. `make docs` builds into docs/_build/html and treats every warning as an error."""

import re

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

import catnat

project = "catnat"
author = "The catnat developers"
copyright = author
version = release = catnat.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"catnat {version}"
html_extra_path = ["../src/catnat_lab/playground.html"]  # the page that `catnat playground` opens
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["catnat.css"]

# MyST: $...$ for mathematics, and an anchor for every heading down to the third level.
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

# Docstrings are Google style; a word in single backticks is a link wherever it names something that is documented.
default_role = "py:obj"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"Floats": "ndarray", "Ints": "ndarray", "Nested": "Nested"}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100


def keep_leading_minus(app, what, name, obj, options, lines):
    # a docstring may begin with a formula, as in "- log p": to Sphinx that would be a bullet
    if lines and lines[0].startswith("- "):
        lines[0] = "\\" + lines[0]


FUNCTION = re.compile("<mi>(log|sin|cos|tan|tanh|arcsin|arctan)</mi>")  # needs space around it, as an operator has


def write_mathml(display):
    # browsers draw MathML themselves: no script, no network
    def visit(translator, node):
        formula = convert(node.astext(), display=display)
        if "\\" in formula:
            raise ValueError(f"latex2mathml does not know all of {node.astext()!r}")
        translator.body.append(FUNCTION.sub(r'<mo lspace="0.17em" rspace="0.17em">\1</mo>', formula))
        raise SkipNode

    return visit, None


def setup(app):
    app.connect("autodoc-process-docstring", keep_leading_minus)
    app.add_html_math_renderer("mathml", write_mathml("inline"), write_mathml("block"))
