"""catnat: categorical distributions on a binary tree, with a diagonal Fisher matrix.

This package imports NumPy alone. The frameworks live in `catnat.torch` and `catnat.jax`.
"""

from catnat._native import compile_operators
from catnat.core.caches import clear_caches
from catnat.core.errors import CatnatWarning
from catnat.core.parameterization import Activation, Natural, Parameterization, Sigmoid
from catnat.core.tree import Tree

__version__ = "0.2.0"
__all__ = [
    "Activation",
    "CatnatWarning",
    "Natural",
    "Parameterization",
    "Sigmoid",
    "Tree",
    "__version__",
    "clear_caches",
    "compile_operators",
]
