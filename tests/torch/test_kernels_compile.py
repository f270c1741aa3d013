"""The GPU kernels through Triton's compiler, for an H100, on any machine: the interpreter accepts more than it does."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product

import pytest
import torch

from tests.thinned import thinned

CLASSES, DTYPES, ACTIVATIONS = (6, 18, 3000), (torch.float32, torch.bfloat16), ("natural", "sigmoid", "paper")


@pytest.mark.parametrize(("classes", "activation"), thinned(product(CLASSES, ACTIVATIONS), quick=[(6, "natural")]))
def test_the_walk_and_its_gradient_compile(classes: int, activation: str) -> None:
    pytest.importorskip("triton")
    # in a process of its own: here the kernels belong to the interpreter
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, str(classes), activation]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(done.stdout.splitlines()) == 2 * len(DTYPES)


def compile_all(classes: int, activation: str) -> None:
    """A line for every kernel, with the size of its code."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from catnat import Parameterization
    from catnat.torch._bernoulli import bernoulli_of
    from catnat.torch._gpu import blocks, launch

    def size(launcher: launch.Launcher, tensors: dict[str, torch.dtype | None]) -> int:
        kernel = launcher.kernel
        short = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
        kinds = {name: "fp32" for name in kernel.arg_names} | {"rows": "i32", "stride": "i32"}
        kinds |= {name: short[dtype] for name, dtype in tensors.items() if dtype is not None}
        constants = launcher.constants | {name: None for name, dtype in tensors.items() if dtype is None}
        kinds |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(kernel, kinds, {(kernel.arg_names.index(name),): it for name, it in constants.items()})
        options = {name: value for name, value in launcher.options.items() if value is not None}
        found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm
        assert ".f64" not in found["ptx"]  # a constant that float32 cannot hold makes all after it slow
        return len(found["cubin"])

    for dtype in DTYPES:
        nodes = bernoulli_of(Parameterization(classes, activation), torch.device("cpu"))
        assert nodes is not None
        call = blocks.Call(nodes._replace(centers=None), dtype == torch.float32, True)
        centers = {"centers_ptr": None if nodes.centers is None else torch.float32}
        walk = launch._walk_launcher(call, False)
        print(classes, dtype, activation, "walk", size(walk, {"x_ptr": dtype, "out_ptr": dtype} | centers))
        pull = launch._pull_launcher(call, False, classes)
        tensors = {"x_ptr": dtype, "gradient_ptr": dtype, "index_ptr": None, "entropy_ptr": None, "dx_ptr": dtype}
        tensors |= {"sums_ptr": torch.float32 if pull.form.above else None} | centers
        print(classes, dtype, activation, "pull", size(pull, tensors))


if __name__ == "__main__":
    compile_all(int(sys.argv[1]), sys.argv[2])
