"""The kernels of a wide head through Triton's compiler, for an H100, on any machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

KERNELS = {"find_steps", "loss", "sort_rows", "add_losses", "scale_rows", "sample"}
KERNELS |= {"find_runs", "sum_chunks", "write_sums"}  # for the weights


def test_they_compile() -> None:
    pytest.importorskip("triton")
    # in a process of its own: here the kernels belong to the interpreter
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert set(done.stdout.split()) == KERNELS


def compile_all(rows: int, width: int, classes: int, dtype: torch.dtype) -> dict[str, str]:
    """The PTX of every kernel that a loss, its gradients and a draw start."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from catnat import Parameterization, Tree
    from catnat.torch._gpu import wide_launch
    from catnat.torch._gpu.launch import Launcher

    found: dict[str, str] = {}
    short = {
        torch.float32: "*fp32",
        torch.bfloat16: "*bf16",
        torch.int8: "*i8",
        torch.int32: "*i32",
        torch.int64: "*i64",
    }

    def compile_only(self, programs, tensors, integers=()) -> None:  # type: ignore[no-untyped-def]
        given = [*tensors, *integers, *self.numbers]
        kinds, constants = {}, dict(self.constants)
        for name, value in zip(self.kernel.arg_names, given, strict=False):
            if value is None:
                constants[name] = None
            elif isinstance(value, torch.Tensor):
                kinds[name] = short[value.dtype]
            else:
                kinds[name] = "i32" if isinstance(value, int) else "fp32"
        kinds |= dict.fromkeys(constants, "constexpr")
        ordered = {name: kinds[name] for name in self.kernel.arg_names}
        places = {(self.kernel.arg_names.index(name),): value for name, value in constants.items()}
        aligned = {
            (self.kernel.arg_names.index(n),): [["tt.divisibility", 16]] for n, k in ordered.items() if k[0] == "*"
        }
        source = ASTSource(self.kernel, ordered, places, aligned)
        options = {name: value for name, value in self.options.items() if value is not None}
        asm = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm
        assert ".f64" not in asm["ptx"]
        found[self.kernel.__name__] = asm["ptx"]

    Launcher.__call__ = compile_only  # type: ignore[method-assign]
    tree = Tree.huffman([1 / (k + 1) for k in range(classes)]) if classes < 5000 else Tree.balanced(classes)
    of = wide_launch.wide_of(Parameterization(classes, tree=tree), torch.device("cpu"))
    x, weight = torch.zeros(rows, width, dtype=dtype), torch.zeros(classes - 1, width, dtype=dtype)
    target = torch.zeros(rows, dtype=torch.int64)
    bias, seed = weight[:, 0], torch.zeros(1, dtype=torch.int64)
    loss, *kept = wide_launch.loss(x, of, weight, bias, target, -100, "mean", dtype, True, True)
    wide_launch.pull(x, of, weight, loss, *kept, True)
    wide_launch.sample(x, of, weight, bias, seed)
    return found


if __name__ == "__main__":
    print(*compile_all(100, 256, 3000, torch.bfloat16))
