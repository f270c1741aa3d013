"""The C++ loops on a CPU as calls in XLA's programs: `walk` and `pull` of `_classes`."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from catnat._native import build
from catnat._native.constants import Constants, constants_of
from catnat.core.parameterization import Parameterization
from catnat.jax._compat import drops, shaped
from catnat.jax._plan import Plan


def applies(x: Array, plan: Plan) -> bool:
    """Whether the compiled loops serve such scores."""
    return _constants(plan.pi, x.dtype.name) is not None and build.load_if_wanted(_operator, _register) is not None


def walk(x: Array, *, plan: Plan) -> Array:
    return _call("catnat_value", x, (), plan.num_classes, plan)


def pull(x: Array, gradient: Array, *, plan: Plan) -> Array:
    return _call("catnat_gradient", x, (gradient,), plan.num_nodes, plan)


def _call(name: str, x: Array, given: tuple[Array, ...], width: int, plan: Plan) -> Array:
    found = _constants(plan.pi, x.dtype.name)
    assert found is not None
    fit, shifts, levels, *places = found.tables
    call: Any = jax.ffi.ffi_call(f"{name}_{x.dtype.name}", shaped(x, (*x.shape[:-1], width)))
    return call(
        x, *given, *map(jnp.asarray, (shifts, *places)),
        kind=np.int64(found.kind), numbers=np.array(found.numbers), fit=fit, levels=levels.reshape(-1),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _constants(pi: Parameterization, dtype: str) -> Constants | None:
    return constants_of(pi, dtype == "float32") if dtype in ("float32", "float64") else None


drops.append(_constants.cache_clear)


def _operator() -> build.Operator:
    return build.Operator(
        "jax", Path(__file__).with_name("calls.cpp"), [f"-I{jax.ffi.include_dir()}"], [], [version("jaxlib")]
    )


def _register(path: str) -> Any:
    library = ctypes.CDLL(path)
    for name in (f"catnat_{call}_{dtype}" for call in ("value", "gradient") for dtype in ("float32", "float64")):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return library
