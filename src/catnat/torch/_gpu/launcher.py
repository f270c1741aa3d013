"""A kernel with its constants set, started with as little work on the host as we can."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LARGEST = 2**31 - 1  # of a 32-bit number


class Launcher:
    """A jitted kernel for one set of compile-time constants.

    Triton looks at every argument of every call to find the binary that was compiled for its like, which takes several
    times as long as the start itself. A call here remembers the binary of a like call: for the same dtypes and the same
    alignment of pointers. The kernels ask Triton not to look at the values of numbers (`do_not_specialize`), so that
    another size of batch is not compiled anew.
    """

    def __init__(self, kernel: Any, constants: dict[str, Any], warps: int, **options: Any) -> None:
        self.kernel, self.constants = kernel, constants
        self.options = {"num_warps": warps, "num_stages": 1, **options}
        # as the binary takes them: the constants come last in every kernel's list of arguments
        self.values = tuple(constants[name] for name in kernel.arg_names if name in constants)
        self.binaries: dict[tuple[Any, ...], Any] = {}
        self.trusts_binaries: bool | None = None  # until one was started by itself

    def __call__(self, device: torch.device, programs: int, *arguments: Tensor | float | None) -> None:
        """Start so many programs on the device's current stream."""
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                self(device, programs, *arguments)
            return
        kind = (device.index, *map(_kind, arguments))
        binary = self.binaries.get(kind)
        if binary is not None:
            try:
                binary[(programs, 1, 1)](*arguments, *self.values)
                self.trusts_binaries = True
                return
            except TypeError:
                if self.trusts_binaries:
                    raise
                self.trusts_binaries, self.binaries = False, {}  # a Triton whose binaries take other arguments
        binary = self.kernel[(programs,)](*arguments, **self.constants, **self.options)
        if binary is not None and self.trusts_binaries is not False:
            self.binaries[kind] = binary


def _kind(argument: Tensor | float | None) -> Any:
    """What Triton compiles a binary for."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return -LARGEST <= argument <= LARGEST
    return argument is None
