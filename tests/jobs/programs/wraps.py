"""Wrap anew again and again: threads and files stay as they are after the second time.

usage: wraps.py {ddp,fsdp,drop_in}... [limit]

With "limit" rank 1 may open few more files in the end, while all models are kept.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from hvd_compress import fsdp
from hvd_compress.errors import ConfigError

WRAPS, STEPS, FEW_FILES = 12, 2, 40
GRACE_S = 20.0
"""For a thread that is ending."""


def model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()


def ddp() -> Any:
    wrapped = hc.compress(DistributedDataParallel(model()), hc.Compression.topk(0.5))
    train(wrapped)
    return wrapped


def of_fsdp() -> Any:
    from torch.distributed.fsdp import fully_shard

    sharded = fully_shard(model())
    train(fsdp.compress(sharded, hc.Compression.int8()))
    return sharded


def drop_in() -> Any:
    import hvd_compress.torch as hvd

    plain = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(plain.parameters(), lr=0.1), plain.named_parameters(), hvd.Compression.topk(0.5)
    )
    train(plain, optimizer)
    return optimizer


def held() -> dict[str, int]:
    """What this process has of the system, and of communicators."""
    found = {kind: len(os.listdir(f"/proc/self/{place}")) for kind, place in (("threads", "task"), ("files", "fd"))}
    if mpi := sys.modules.get("hvd_compress.engines.mpi"):
        found["communicators"] = sum(pool.made for pool in mpi._pools.values()) + len(mpi._meetings)
    return found


def keeps_nothing(name: str, wrap: Callable[[], Any]) -> None:
    second: dict[str, int] = {}
    for number in range(1, WRAPS + 1):
        wrap()
        gc.collect()
        if number == 2:
            second = held()
    end = time.monotonic() + GRACE_S
    while any(held()[kind] > second[kind] for kind in second) and time.monotonic() < end:
        time.sleep(0.05)
        gc.collect()
    found = held()
    assert all(found[kind] <= second[kind] for kind in second), f"{name}: {found}, and {second} after the second"
    if os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "0":
        print(f"{name} keeps nothing", flush=True)


def says_where_the_limit_is() -> None:
    if RANK == 1:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (held()["files"] + FEW_FILES, most))
    kept = []
    try:
        while len(kept) <= FEW_FILES:
            kept.append(ddp())
    except ConfigError as error:
        print(f"[rank {RANK}] {error}\n", end="", flush=True)  # one write: ranks share the pipe


FRONTS = {"ddp": ddp, "fsdp": of_fsdp, "drop_in": drop_in}
if __name__ == "__main__":
    if "drop_in" in sys.argv:
        import hvd_compress.torch as hvd

        hvd.init()
        RANK = hvd.rank()
    else:
        dist.init_process_group("gloo")
        RANK = dist.get_rank()
    for front in sys.argv[1:]:
        if front == "limit":
            says_where_the_limit_is()
        else:
            keeps_nothing(front, FRONTS[front])
