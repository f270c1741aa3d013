"""Compiles the walk at first need, once for every user and kind of machine."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from catnat.core import fits

LOG = logging.getLogger("catnat")
ONE_AT_A_TIME = Lock()  # a process has many threads, and one of them compiles
HERE, TORCH = Path(__file__).parent, Path(torch.__file__).parent
PARTS = {"loops": ["-O3", "-funroll-loops"], "walk": ["-O1"]}  # what is in walk.cpp runs once per tensor


@cache
def load() -> Any:
    """The compiled walk; None, and a line in the log, where it cannot be had."""
    try:
        with ONE_AT_A_TIME:
            spec: Any = spec_from_file_location("catnat.torch._cpu._walk", _library())
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    except Exception as error:  # whatever is amiss with a compiler, the plain walk goes on
        said = str(getattr(error, "stderr", "") or error).strip().splitlines() or [repr(error)]
        LOG.warning("no compiled kernel for the CPU, so slower code is used: %s", said[0])
        return None


def _library() -> Path:
    asked = shlex.split(os.environ.get("CXX") or "c++")  # with arguments, perhaps
    compiler, extra = shutil.which(asked[0]), asked[1:]
    if compiler is None or sys.platform != "linux":
        raise FileNotFoundError(f"it wants Linux and a C++ compiler, and {asked[0]} (or what CXX names) is not there")
    import fcntl  # not on every system

    headers = TORCH / "include", TORCH / "include/torch/csrc/api/include", sysconfig.get_path("include")
    flags = [
        *("-std=c++20", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC"),
        *("-fopenmp", "-fvisibility=hidden", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"),
        *(f"-DFIT_{n}={','.join(map(repr, getattr(fits, n).coefficients))}" for n in ("EXP", "LOG_ONE_PLUS")),
        *(f"-I{folder}" for folder in headers),
    ]
    # without -fopenmp: the threads are those of the OpenMP that PyTorch has brought along
    link = ["-shared", f"-L{TORCH / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    processor = re.findall("^(?:flags|Features).*", Path("/proc/cpuinfo").read_text(), re.M)[:1]  # for -march=native
    versions = torch.__version__, sysconfig.get_config_var("SOABI"), asked, compiler, os.stat(compiler).st_mtime
    sources = [(HERE / name).read_bytes() for name in ("loops.h", *(f"{part}.cpp" for part in PARTS))]
    key = hashlib.sha256(repr((versions, flags, PARTS, link, processor, sources)).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "catnat"
    library = folder / f"walk-{key}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of many processes one compiles and the others wait
        if not library.exists():
            LOG.warning("compiling a C++ kernel for this CPU, once per environment, within a minute: %s", library)
            with tempfile.TemporaryDirectory(dir=folder) as work:  # renamed when it is whole
                commands = [["-c", f"{HERE / part}.cpp", "-o", f"{part}.o", *PARTS[part], *flags] for part in PARTS]
                commands.append([*(f"{part}.o" for part in PARTS), "-o", "walk.so", *link])
                for command in commands:
                    subprocess.run([compiler, *extra, *command], cwd=work, check=True, capture_output=True, text=True)
                os.replace(f"{work}/walk.so", library)
    return library
