"""How a GPU is used while something trains."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Kernels and captured graphs go to the current GPU: make it this one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Matrix products in TF32 on a GPU, while training and judging: half the time, and the noise is far above it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """With a GPU: torch's own threads, which spin for a while after every use, leave the cores to others."""
    before = torch.get_num_threads()
    if device.type == "cuda":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile: an old graph that is freed while another is captured breaks the capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
