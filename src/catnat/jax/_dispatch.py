"""The one door: what runs is asked here and nowhere else.

Walks are array code that XLA compiles for any device. Log p of every class (`_classes`) has Pallas's kernels for an
NVIDIA GPU too, and C++ loops for a CPU: which it is can be told only where a program is compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import Array

from catnat.core import caches
from catnat.core.parameterization import ParameterizationLike, resolve
from catnat.jax import _classes, _compat
from catnat.jax._eager import MAX_STEPS
from catnat.jax._plan import Plan

PATH_FROM = 2048  # classes; with fewer the scores of all nodes are as fast


class _Plans(caches.Kept):
    """Plans by what they are of. With them go the programs that were compiled for them, which hold them too."""

    def keep(self, key: Any, plan: Plan) -> Plan:
        if self and self.total + plan.nbytes > caches.MAX_BYTES:  # a program cannot be dropped alone
            self.clear()
        return super().keep(key, plan)

    def clear(self) -> None:
        super().clear()
        for drop in _compat.drops:
            drop()


_plans = _Plans(lambda plan: plan.nbytes)


def plan_for(parameterization: ParameterizationLike, dtype: np.dtype) -> Plan:
    """The plan of a parameterization, or of the default one of so many classes."""
    key = type(parameterization), parameterization, dtype  # with its type: True is no number of classes
    try:
        return _plans[key]
    except KeyError:
        return _plans.keep(key, Plan(resolve(parameterization), dtype))
    except TypeError:  # not hashable: an array that holds the number of classes, or an error
        return plan_for(resolve(parameterization), dtype)


def reads_paths(plan: Plan) -> bool:
    """Whether a head does so by itself, because one path is faster than all scores."""
    return plan.num_classes >= PATH_FROM and plan.depth <= MAX_STEPS


def compiled_for(platform: str, name: str, plain: _compat.Rule) -> _compat.Rule:
    """What is compiled for a platform: its kernel or loops where they serve a plan, and else plain code."""

    def compute(*operands: Array, plan: Plan) -> Array:
        fast: Any
        if platform == "cpu":
            from catnat.jax import _cpu as fast
        else:
            try:  # here: who has no GPU need not wait for Pallas
                from catnat.jax._gpu import walk as fast
            except ImportError:  # a release of JAX without Pallas's Triton dialect
                return plain(*operands, plan=plan)
        return (getattr(fast, name) if fast.applies(operands[0], plan) else plain)(*operands, plan=plan)

    return compute


for _name, _plain in (("walk", _classes.plain_walk), ("pull", _classes.plain_pull)):
    for _platform in ("cuda", "cpu"):
        _compat.on_platform(_platform, getattr(_classes, _name), compiled_for(_platform, _name, _plain), _plain)
