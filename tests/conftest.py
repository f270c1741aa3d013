"""Settings that every test shares."""

import gc
import os
import re
import sys
import time
import warnings
from collections.abc import Generator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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

# What XLA compiles is kept for the next run, as the C++ is, for a month.
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "catnat-tests" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(KEPT))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
for program in KEPT.glob("*"):
    with suppress(OSError):  # another process does the same
        if program.stat().st_mtime < time.time() - 30 * 86400:
            program.unlink()

# The same examples on every machine and no time limit on one: a run must not fail because it was slow or unlucky.
settings.register_profile("catnat", deadline=None, max_examples=60, derandomize=True, database=None)
settings.load_profile("catnat")


ALL_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where no slow test is wanted, a file of slow ones is not imported: what it needs may take seconds to import."""
    if config.option.markexpr == "not slow" and collection_path.suffix == ".py":
        return ALL_SLOW.search(collection_path.read_text(encoding="utf-8")) is not None or None
    return None


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


@pytest.fixture(autouse=True)
def _the_operators_stay_as_they_are() -> Generator[None]:
    """A test that left them off would have all later ones of its process run without them, and none would say so."""
    yield
    from catnat import _native

    assert _native._wanted is None, "this test left the compiled operators switched; put them back"


# -- a test earns its seconds --------------------------------------------------------------------------------------

# CPU seconds of a test that is not slow. The second is far from what any takes: who compiles first takes twice as many.
WARNS_FROM, FAILS_FROM = 2.0, 15.0
MANY_MODULES = 20  # so many new ones are a library's first import
YARDSTICK = 0.021  # CPU seconds of `yardstick` on the machine for which these two were chosen


def yardstick() -> float:
    """CPU seconds of something that never changes, the best of three: how slow this machine is now."""
    taken = []
    for _ in range(3):
        before = time.process_time()
        sum(number * number % 7 for number in range(200_000))
        taken.append(time.process_time() - before)
    return min(taken)


def has_gpu() -> bool:
    """Whether kernels are compiled in the middle of tests."""
    return "torch" in sys.modules and sys.modules["torch"].cuda.is_available()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Refuse a test that takes long and is not marked so.

    What counts is the CPU time of this process, all threads of it: a machine that has much else to do changes little of
    that. A slow machine does, so what seems too long is divided by how slow it is at that moment. Fixtures and other
    processes do not count. A test that is the first to import a library, as chance has it, is warned of and no more.
    """
    before, modules = time.process_time(), len(sys.modules)
    result = yield
    spent = time.process_time() - before
    if spent > WARNS_FROM and not has_gpu() and item.get_closest_marker("slow") is None:
        spent /= max(1.0, yardstick() / YARDSTICK)
        advice = "make it cheaper, mark it slow, or move an import or a compilation into a fixture"
        told = f"{item.nodeid} took {spent:.1f} CPU seconds of {WARNS_FROM:g}: {advice}"
        if spent > FAILS_FROM and len(sys.modules) - modules < MANY_MODULES:
            pytest.fail(told, pytrace=False)
        elif spent > WARNS_FROM:
            warnings.warn(pytest.PytestWarning(told), stacklevel=1)
    return result
