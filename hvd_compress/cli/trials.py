"""The front ends, tried: a training step each, of two ranks where one would tell nothing; and libraries, imported.

Probes of the doctor (probes.py), which runs each in a process of its own.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""One of them is there where torch can use a GPU, of any maker and under WSL."""
TIMEOUT_S = 20.0
"""Of a collective: on one host a step takes milliseconds."""


def horovod() -> dict[str, Any]:
    """What Horovod was built with, and a step of the drop-in by this rank alone."""
    import horovod.torch as stock

    backends = {"MPI": stock.mpi_built, "Gloo": stock.gloo_built, "NCCL": stock.nccl_built, "CUDA": stock.cuda_built}
    built = [name for name, is_built in backends.items() if is_built()]
    if {"MPI", "Gloo"} & set(built):
        _step_of_horovod()
    return {
        "version": importlib.metadata.version("horovod"),
        "built": built,
        "not_built": [name for name in backends if name not in built],
    }


def _step_of_horovod() -> None:
    import torch

    import hvd_compress.torch as hvd

    hvd.init()
    model = torch.nn.Linear(8, 8)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=hvd.Compression.int8()
    )
    model(torch.ones(8)).sum().backward()
    optimizer.step()


def ddp() -> dict[str, Any]:
    """A step of DistributedDataParallel between two processes over gloo."""
    importlib.import_module("hvd_compress.ddp")  # once, for both
    _on_two_ranks(_step_of_ddp)
    return {}


def _step_of_ddp() -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import hvd_compress.ddp as hc

    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    hc.compress(model, hc.Compression.int8())
    model(torch.ones(8)).sum().backward()


def fsdp() -> dict[str, Any]:
    """A step of FSDP2 between two processes over gloo."""
    importlib.import_module("hvd_compress.fsdp")
    _on_two_ranks(_step_of_fsdp)
    return {}


def _step_of_fsdp() -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    hc = importlib.import_module("hvd_compress.fsdp")
    model = torch.nn.Linear(8, 8)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    hc.compress(model, hc.Compression.int8())
    model(torch.ones(8)).sum().backward()


def nccl() -> dict[str, Any]:
    """A sum on a GPU. Of one rank: a second one would need a second GPU."""
    if not any(map(os.path.exists, DRIVERS)):
        return {"devices": 0}
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available():
        return {"devices": 0}
    with tempfile.TemporaryDirectory() as folder:
        _join("nccl", folder, 0, 1)
        dist.all_reduce(torch.ones(8, device="cuda"))
        torch.cuda.synchronize()
    return {"devices": torch.cuda.device_count()}


def library(name: str, module: str) -> dict[str, Any]:
    """The version of a library, imported with the module of ours for it."""
    importlib.import_module(name)
    importlib.import_module(module)
    return {"version": importlib.metadata.version(name)}


def _join(backend: str, folder: str, rank: int, size: int) -> None:
    import torch.distributed as dist

    place, timeout = f"file://{folder}/meeting", timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(backend, init_method=place, rank=rank, world_size=size, timeout=timeout)


def _on_two_ranks(step: Callable[[], None]) -> None:
    """Run `step` on both ranks of a process group over gloo: this process and its child. Nothing ran in it before."""
    import torch

    importlib.import_module("torch._dynamo")  # takes the most of a step, which imports it: once, for both
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        rank = int(child == 0)
        try:
            _join("gloo", folder, rank, 2)
            step()
        except BaseException:
            if rank == 0:
                raise
            traceback.print_exc()
            os._exit(1)
        if rank == 1:
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise RuntimeError(f"the other rank ended with {status}")
