"""How a GPU is used while something trains."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TypeVar, cast

import torch
from torch import Tensor

Setting = TypeVar("Setting")
Function = TypeVar("Function", bound=Callable[..., object])
WARM_UP = 3  # calls before a graph is captured, as PyTorch asks for; they are taken back


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Kernels and captured graphs go to the current GPU: make it this one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _held(get: Callable[[], Setting], put: Callable[[Setting], object], value: Setting) -> Iterator[None]:
    """A setting has this value meanwhile."""
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def tensor_cores() -> AbstractContextManager[None]:
    """Matrix products in TF32 on a GPU, while training and judging: half the time, and the noise is far above it."""
    return _held(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high")


def one_thread(device: torch.device) -> AbstractContextManager[None]:
    """With a GPU: torch's own threads, which spin for a while after every use, leave the cores to others."""
    threads = 1 if device.type == "cuda" else torch.get_num_threads()
    return _held(torch.get_num_threads, torch.set_num_threads, threads)


def uncollected() -> AbstractContextManager[None]:
    """No garbage is collected meanwhile: an old graph that is freed while another is captured breaks the capture."""
    gc.collect()
    return _held(gc.isenabled, lambda on: gc.enable() if on else gc.disable(), False)


def fused(function: Function, device: torch.device) -> Function:
    """The function; on a GPU in the fewer kernels that torch's compiler makes of it, for the shapes that come.

    The whole function or an error: of parts of it one learns by the speed alone.
    """
    if not _compiles(device):
        return function
    return cast(Function, torch.compile(function, dynamic=False, fullgraph=True))


def forget_fused(device: torch.device) -> None:
    """What was made for other shapes: of one function torch's compiler keeps eight forms, and a ninth is an error."""
    if _compiles(device):
        torch.compiler.reset()


def _compiles(device: torch.device) -> bool:
    """On a GPU where Triton is, which the compiler writes kernels in."""
    return device.type == "cuda" and find_spec("triton") is not None


class Repeated:
    """Calls of one function that works on tensors in place; on a GPU it is captured at the first and then replayed.

    ``changed`` are the tensors that a call makes something else of by what they were. The function comes with every
    call, lest its owner hold itself, and with it a graph's memory.
    """

    def __init__(self, changed: Sequence[Tensor], device: torch.device) -> None:
        self.changed, self.device = changed, device
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, function: Callable[[], None]) -> None:
        if self.device.type != "cuda":
            function()
            return
        if self.graph is None:
            with uncollected():
                self.graph = self._captured(function)
        self.graph.replay()

    def _captured(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        before, random = [tensor.detach().clone() for tensor in self.changed], torch.cuda.get_rng_state(self.device)
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                function()
                self._put_back(before)
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        self._put_back(before)
        torch.cuda.set_rng_state(random, self.device)
        return graph

    @torch.no_grad()
    def _put_back(self, before: list[Tensor]) -> None:
        for tensor, kept in zip(self.changed, before, strict=True):
            tensor.copy_(kept)
