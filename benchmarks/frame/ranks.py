"""The ranks of a job under mpirun, in the lab or on one machine: who this one is, and the slowest of all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

PORT = 29_500


def rank() -> int:
    return int(os.environ["OMPI_COMM_WORLD_RANK"])


def size() -> int:
    return int(os.environ["OMPI_COMM_WORLD_SIZE"])


def say(text: str) -> None:
    """Print by rank 0."""
    if rank() == 0:
        print(text, flush=True)


def connect(store: str | None = None) -> None:
    """Connect the ranks by torch.distributed over gloo.

    Args:
        store: where they meet; by default rank 0 listens, on the first host in a lab.
    """
    dist.init_process_group("gloo", init_method=store or _listening(), rank=rank(), world_size=size())


def _listening() -> str:
    from hvd_compress.netlab.network import INTERFACE, address
    from hvd_compress.netlab.places import NAME_VARIABLE

    if NAME_VARIABLE not in os.environ:
        return f"tcp://127.0.0.1:{PORT}"
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    return f"tcp://{address(1)}:{PORT}"


@contextmanager
def over_gloo(store: str | None = None) -> Iterator[None]:
    """Within this block ranks of one thread each are connected; all leave it together."""
    torch.set_num_threads(1)
    connect(store)
    yield
    dist.barrier()
    dist.destroy_process_group()


def together() -> None:
    """Wait for all ranks; they go on at nearly the same time.

    Gloo's allreduce is a ring, which releases ranks one after another, by a latency each; its barrier is not.
    """
    if dist.is_initialized():
        dist.barrier()
    else:
        slowest(0.0)


def slowest(number: float) -> float:
    """Return the largest of all ranks' numbers, on every rank.

    By torch.distributed where it connects ranks, else by Horovod.
    """
    found = torch.tensor([number], dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return float(found)
    import hvd_compress.torch as hvd

    return float(hvd.allreduce(found, op=hvd.Max, name="slowest"))


def from_rank_0(number: float) -> float:
    """Return the number of rank 0 on every rank, by torch.distributed."""
    found = torch.tensor(number, dtype=torch.float64)
    dist.broadcast(found, 0)
    return float(found)
