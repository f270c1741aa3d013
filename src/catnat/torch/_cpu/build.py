"""The compiled walk as PyTorch takes it: where it is loaded from, and of what it is made."""

from __future__ import annotations

import os
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch

from catnat._native import build

TORCH = Path(torch.__file__).parent


def load() -> Any:
    """The compiled walk; None where it cannot be had, or is not wanted."""
    return build.load_if_wanted(_operator, _open)


def _operator() -> build.Operator:
    headers = TORCH / "include", TORCH / "include/torch/csrc/api/include", sysconfig.get_path("include")
    return build.Operator(
        "torch",
        Path(__file__).with_name("walk.cpp"),
        ["-fopenmp", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", *(f"-I{h}" for h in headers)],
        # without -fopenmp: the threads are those of the OpenMP that PyTorch has brought along
        [f"-L{TORCH / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"],
        [torch.__version__, str(sysconfig.get_config_var("SOABI"))],
    )


def _open(path: str) -> Any:
    spec: Any = spec_from_file_location("catnat.torch._cpu._walk", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__file__ = os.path.realpath(path)
    return module
