"""What JAX keeps in places that have moved, or may move, between releases: in one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

Rule = Callable[..., Any]


def is_readable(array: Array) -> bool:
    """Whether looking at the values is free of a wait for a device: a plain array in the host's memory."""
    if isinstance(array, Tracer):
        return False
    return not isinstance(array, Array) or (
        array.is_fully_addressable and all(device.platform == "cpu" for device in array.devices())
    )


drops: list[Callable[[], None]] = []  # each drops something that is kept by plans, as the programs below are


def compiled(function: Callable[..., Any]) -> Any:
    """The function under `jax.jit`, with all that comes by keyword alone as constants."""
    constants = [p.name for p in signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    program: Any = jax.jit(function, static_argnames=constants)
    drops.append(program.clear_cache)
    return program


def shaped(like: Array, shape: Sequence[int]) -> jax.ShapeDtypeStruct:
    """The type of a kernel's result: ``like`` with another shape, and spread over the axes of a mesh as it is."""
    # newer releases have another name for the axes
    name = "vma" if "vma" in signature(jax.ShapeDtypeStruct).parameters else "manual_axis_type"
    return jax.ShapeDtypeStruct(shape, like.dtype, **{name: getattr(jax.typeof(like), name)})


def short(table: np.ndarray) -> np.ndarray:
    """In int32: JAX misreads the same int64 array where both settings of jax_enable_x64 come by in one process."""
    return table.astype(np.int32) if table.dtype == np.int64 else table


def look_up(table: np.ndarray, index: Array) -> Array:
    """table[index] for a constant table: [..., n] for index [...] and a table [K, n] or, without n, [K]."""
    kind, table = jax.typeof(index).sharding, short(table)
    if kind.mesh.empty:
        return jnp.asarray(table)[index]
    # where shardings are part of types, JAX wants to be told that the result is spread as the index is
    spread = NamedSharding(kind.mesh, PartitionSpec(*kind.spec, *[None] * (table.ndim - 1)))
    return jnp.asarray(table).at[index].get(out_sharding=spread)


def rowwise(name: str, plain: Rule, width_of: Callable[..., int]) -> Primitive:
    """A primitive of arrays [..., n] whose leading axes are a batch, computed by ``plain`` unless more is said.

    It is a primitive so that it may have a derivative, a transpose and a kernel of its own, which JAX's decorators
    offer one at a time only. ``width_of`` tells the width of the result from the operands' shapes and the settings.
    """
    primitive = Primitive(name)

    def shape_of(*operands: Any, **settings: Any) -> Any:
        first = operands[0]
        # the operand's own type with another width: where it is sharded, or varies over a mesh, so does the result
        return first.update(shape=(*first.shape[:-1], width_of(*(o.shape for o in operands), **settings)))

    def batched(operands: tuple[Any, ...], axes: tuple[Any, ...], **settings: Any) -> tuple[Any, int]:
        size = next(o.shape[axis] for o, axis in zip(operands, axes, strict=True) if axis is not None)
        moved = (batching.bdim_at_front(o, axis, size) for o, axis in zip(operands, axes, strict=True))
        return primitive.bind(*moved, **settings), 0

    primitive.def_abstract_eval(shape_of)
    primitive.def_impl(compiled(plain))
    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, mlir.lower_fun(plain, multiple_results=False))
    return primitive


def on_platform(platform: str, primitive: Primitive, kernel: Rule, plain: Rule) -> None:
    """Compute a primitive by ``kernel`` where it is compiled for a platform, and for one device at a time.

    A program that XLA is to spread over several devices by itself (`jax.jit` of sharded arrays) stays plain: XLA would
    gather all rows first for a kernel. So does one that is exported from a CPU: the operator may be missing elsewhere.
    """

    def lower(ctx: Any, *operands: Any, **settings: Any) -> Any:
        context, parameters = ctx.module_context.axis_context, ctx.module_context.lowering_parameters
        spread = getattr(context, "num_devices", 1) > 1
        if hasattr(context, "manual_axes"):  # inside shard_map: over all axes, or is the rest left to XLA?
            spread = set(context.manual_axes) != set(context.mesh.axis_names)
        chosen = plain if spread or (platform == "cpu" and parameters.for_export) else kernel
        return mlir.lower_fun(chosen, multiple_results=False)(ctx, *operands, **settings)

    mlir.register_lowering(primitive, lower, platform=platform)


differentiate = ad.defjvp  # give a primitive its derivative, a rule an operand: rule(tangent, *operands, **settings)


def linear_in_last(primitive: Primitive, plain: Rule, transpose: Primitive) -> None:
    """Give a primitive (x, v) that is linear in v its derivatives, that in x of plain code, and its transpose."""

    def along_x(dx: Array, x: Array, v: Array, **settings: Any) -> Array:
        return jax.jvp(lambda y: plain(y, v, **settings), (x,), (dx,))[1]

    def along_v(dv: Array, x: Array, v: Array, **settings: Any) -> Array:
        return primitive.bind(x, dv, **settings)

    def transposed(cotangent: Any, x: Any, v: Any, **settings: Any) -> list[Any]:
        if ad.is_undefined_primal(x):
            raise NotImplementedError(f"{primitive} is linear in its last operand alone")
        return [None, ad.Zero(v.aval) if type(cotangent) is ad.Zero else transpose.bind(x, cotangent, **settings)]

    differentiate(primitive, along_x, along_v)
    ad.primitive_transposes[primitive] = transposed
