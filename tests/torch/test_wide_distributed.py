"""A wide head trained by several processes: DDP and FSDP2, with gloo."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

import catnat.torch as ct

pytestmark = pytest.mark.slow
CLASSES, WIDTH, ROWS = 3000, 16, 24


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Linear(8, WIDTH)
        self.head = ct.CatnatLinear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.head.loss(torch.tanh(self.body(x)), target)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 8, generator=generator), torch.randint(CLASSES, (ROWS,), generator=generator)


def step(model: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        model(x, target).backward()
        optimizer.step()


def process(rank: int, kind: str, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model: torch.nn.Module = Model()
    if kind == "ddp":
        trained = DistributedDataParallel(model)
    else:
        mesh = dist.init_device_mesh("cpu", (2,))
        fully_shard(model.head, mesh=mesh)
        register_fsdp_forward_method(model.head, "loss")  # its hooks know `forward` alone
        trained = fully_shard(model, mesh=mesh)
    x, target = batch()
    step(trained, x[rank::2], target[rank::2])
    state = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in model.state_dict().items()}
    if rank == 0:
        torch.save(state, f"{folder}/state.pt")
    dist.barrier()
    # Without destructors: gloo's holds Python's lock while it joins a thread that may want it.
    # See github.com/pytorch/pytorch/issues/56297.
    os._exit(0)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_learn_what_one_does(kind: str, tmp_path) -> None:
    mp.spawn(process, (kind, str(tmp_path)), nprocs=2)
    alone = Model()
    step(alone, *batch())
    found = torch.load(tmp_path / "state.pt")
    for name, expected in alone.state_dict().items():
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-6)
