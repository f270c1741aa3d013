"""Settings that every test shares."""

import gc
import os
from importlib.metadata import PackageNotFoundError, version

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers have the cores already; before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# For Triton, before it is imported: without a GPU its kernels can be interpreted.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# For JAX, before it is imported: four devices, and XLA told not to spend long on programs that run for a moment (ten
# times as fast to compile; the results differ by roundings from those of XLA's own settings, which
# tests/jax/test_default_compiler.py looks at). A flag that is set already stays as it is.
XLA_FLAGS = {"--xla_force_host_platform_device_count": "4", "--xla_backend_optimization_level": "0"}
try:
    if tuple(map(int, version("jaxlib").split(".")[:2])) >= (0, 10):  # an older one may not know them
        XLA_FLAGS |= {"--xla_cpu_parallel_codegen_split_count": "1", "--xla_cpu_use_fusion_emitters": "false"}
except PackageNotFoundError:
    pass
given = os.environ.get("XLA_FLAGS", "")
added = [f"{name}={value}" for name, value in XLA_FLAGS.items() if name not in given]
os.environ["XLA_FLAGS"] = " ".join([given, *added]).strip()

# The same examples on every machine and no time limit on one: a run must not fail because it was slow or unlucky.
settings.register_profile("catnat", deadline=None, max_examples=60, derandomize=True, database=None)
settings.load_profile("catnat")


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: it need not be looked through for garbage again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU. Skipped from one line, all of it takes one line of the summary."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU that PyTorch can use")
