"""C++ loops on a CPU that the backends share: one operator for all, compiled where it is used."""

from __future__ import annotations

import os

from catnat.core.caches import clear_caches

_wanted: bool | None = None  # None: as the environment says


def compile_operators(wanted: bool) -> None:
    """Whether walks on a CPU may be compiled C++, from now on; the variable ``CATNAT_COMPILE=0`` says no at first.

    Values, gradients and draws are the same without, up to rounding, and come more slowly. With it, the first use
    compiles the operator, once per environment; ``python -m catnat.torch.build`` does so ahead. What `jax.jit` has
    compiled before stays as it is.

    Example:
        >>> import catnat
        >>> catnat.compile_operators(False)
    """
    global _wanted
    _wanted = wanted
    clear_caches()  # walks are chosen anew


def are_wanted() -> bool:
    """Whether compiled operators may be used."""
    if _wanted is not None:
        return _wanted
    return os.environ.get("CATNAT_COMPILE", "").strip().lower() not in ("0", "false", "no", "off")
