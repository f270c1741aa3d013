"""A kernel with its constants set, started with as little work on the host as we can."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.runtime import driver

LARGEST = 2**31 - 1  # of a 32-bit number


class Launcher:
    """A jitted kernel with its constants and numbers; its arguments are tensors, then integers, then those.

    Triton looks at every argument of every call to find the binary that was compiled for its like, which takes several
    times as long as the start itself. A call here remembers the binary of a like call: for the same dtypes and the same
    alignment of pointers. The kernels ask Triton not to look at the values of numbers (`do_not_specialize`), so that
    another size of batch is not compiled anew.
    """

    def __init__(
        self, kernel: Any, constants: dict[str, Any], warps: int, numbers: tuple[float, ...] = (), **options: Any
    ) -> None:
        self.kernel, self.constants, self.numbers = kernel, constants, numbers
        self.options = {"num_warps": warps, "num_stages": 1, **options}
        # as the binary takes them: the constants come last in every kernel's list of arguments
        self.values = tuple(constants[name] for name in kernel.arg_names if name in constants)
        self.binaries: dict[Any, Any] = {}
        self.trusts_binaries: bool | None = None  # until one was started by itself

    def __call__(self, programs: int, tensors: tuple[Tensor | None, ...], integers: tuple[int, ...] = ()) -> None:
        """Start so many programs on the current stream of the tensors' device."""
        device = tensors[0].device  # type: ignore[union-attr]
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                self(programs, tensors, integers)
            return
        pointers = [None if t is None else t.data_ptr() for t in tensors]
        kind = (
            device.index,
            *[None if t is None else t.dtype for t in tensors],
            *[p is not None and p % 16 == 0 for p in pointers],
            *[-LARGEST <= i <= LARGEST for i in integers],
        )
        binary = self.binaries.get(kind)
        if binary is not None:
            stream = driver.active.get_current_stream(device.index)
            try:
                # as Triton does itself, but with addresses in place of tensors, which it would ask the driver about
                binary.run(
                    programs, 1, 1, stream, binary.function, binary.packed_metadata, None, None, None,
                    *pointers, *integers, *self.numbers, *self.values,
                )  # fmt: skip
                self.trusts_binaries = True
                return
            except TypeError:
                if self.trusts_binaries:
                    raise
                self.trusts_binaries, self.binaries = False, {}  # a Triton whose binaries take other arguments
        binary = self.kernel[(programs,)](*tensors, *integers, *self.numbers, **self.constants, **self.options)
        if binary is not None and self.trusts_binaries is not False:
            self.binaries[kind] = binary
