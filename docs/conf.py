"""Sphinx settings. `make docs` builds into docs/_build/html and treats every warning as an error."""

import catnat

project = "catnat"
author = "The catnat developers"
copyright = author
version = release = catnat.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"catnat {version}"
html_extra_path = ["../src/catnat_lab/playground.html"]  # the page that `catnat playground` opens

# MyST: $...$ for mathematics, and an anchor for every heading down to the third level.
myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
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


def setup(app):
    app.connect("autodoc-process-docstring", keep_leading_minus)
