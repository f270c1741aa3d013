"""The name that `catnat_lab.plot` had until 0.2, for one release."""

import warnings
from importlib import import_module
from typing import Any

warnings.warn("catnat.plot is now catnat_lab.plot", DeprecationWarning, stacklevel=2)


def __getattr__(name: str) -> Any:
    # by name and late: the library stands without the lab, and only this alias, until it goes, reaches up to it
    return getattr(import_module("catnat_lab.plot"), name)
