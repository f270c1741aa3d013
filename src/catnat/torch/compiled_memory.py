"""What the loops of `catnat.torch.compiled_loops` ask of a machine: memory by address, bits, tasks and threads.

Numba's arrays would bring checks that stand in the way of vector code, and Numba's threads are not PyTorch's.

Whoever changes this file must change that one, too, if only its date: the compiled code is kept until then.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def load(typing: Any, address: Any, index: Any) -> Any:
    """The float32 with the given index behind an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.FloatType().as_pointer())
        return builder.load(builder.gep(pointer, [args[1]]), align=4)

    return types.float32(types.int64, types.int64), generate


@intrinsic
def store(typing: Any, address: Any, index: Any, value: Any) -> Any:
    """Write a float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.FloatType().as_pointer())
        builder.store(args[2], builder.gep(pointer, [args[1]]), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), generate


@intrinsic
def entry(typing: Any, task: Any, index: Any) -> Any:
    """One entry of a task."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(pointer, [args[1]]), align=8)

    return types.int64(types.voidptr, types.int64), generate


@intrinsic
def make_task(typing: Any, entries: Any) -> Any:
    """A task on the stack, from a tuple of its entries."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        task = cgutils.alloca_once(builder, args[0].type)
        builder.store(args[0], task)
        return builder.bitcast(task, cgutils.voidptr_t)

    return types.voidptr(entries), generate


@intrinsic
def call(typing: Any, work: Any, task: Any) -> Any:
    """Call a C function of one address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.voidptr), generate


@intrinsic
def call_in_threads(typing: Any, parallel: Any, work: Any, task: Any, threads: Any) -> Any:
    """Have OpenMP call it in so many threads at once."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, cgutils.voidptr_t, number, number])
        work, threads = builder.inttoptr(args[1], cgutils.voidptr_t), builder.trunc(args[3], number)
        parallel = builder.inttoptr(args[0], kind.as_pointer())
        builder.call(parallel, [work, args[2], threads, ir.Constant(number, 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.voidptr, types.int64), generate


@intrinsic
def take(typing: Any, task: Any, index: Any) -> Any:
    """The next number of a counter that threads share."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(args[0], ir.IntType(64).as_pointer())
        one = ir.Constant(ir.IntType(64), 1)
        return builder.atomic_rmw("add", builder.gep(pointer, [args[1]]), one, "monotonic")

    return types.int64(types.voidptr, types.int64), generate


@intrinsic
def stack(typing: Any, size: Any) -> Any:
    """The address of room for so many floats on the thread's own stack."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(builder.alloca(ir.FloatType(), args[0]), ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic
def bits_of(typing: Any, value: Any) -> Any:
    """A float32's bits."""
    return types.int32(types.float32), lambda context, builder, signature, args: builder.bitcast(
        args[0], ir.IntType(32)
    )


@intrinsic
def of_bits(typing: Any, value: Any) -> Any:
    """The float32 with these bits."""
    return types.float32(types.int32), lambda context, builder, signature, args: builder.bitcast(
        args[0], ir.FloatType()
    )
