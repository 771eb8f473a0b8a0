"""Train some steps under HVD_COMPRESS_PROFILE, by Horovod's optimizer or by DDP; prints what was trained.

usage: profiled.py horovod|ddp
       profiled.py planned PLAN, by DDP with a bucket for each parameter
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import torch

STEPS = 8


def model_of() -> torch.nn.Module:
    torch.manual_seed(1)
    layers = (torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 40), torch.nn.Tanh())
    return torch.nn.Sequential(*layers, torch.nn.Linear(40, 3))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    for step in range(STEPS):
        images = torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * rank + step))
        optimizer.zero_grad()
        model(images).square().sum().backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    print(f"[rank {rank}] trained to {digest}", flush=True)


def by_horovod() -> None:
    import tests.jobs.programs.quick_start  # noqa: F401, I001 (before torch.optim)

    import hvd_compress.torch as hvd

    hvd.init()
    prepare(hvd.rank())
    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        model.named_parameters(),
        hvd.Compression.topk(0.1).by(collective="allgather"),
    )
    train(model, optimizer, hvd.rank())


def by_ddp(plan: str | None = None) -> None:
    import torch.distributed as dist

    import hvd_compress.ddp as hc

    dist.init_process_group("gloo")
    prepare(dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(model_of(), bucket_cap_mb=1e-6 if plan else 0.004)
    hc.compress(model, hc.Compression.plan(plan) if plan else hc.Compression.topk(0.1).by(collective="allgather"))
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


def prepare(rank: int) -> None:
    Path(os.environ["JOB_FOLDER"], f"{rank}.pid").write_text(str(os.getpid()))
    torch.set_num_threads(1)


if __name__ == "__main__":
    if sys.argv[1] == "planned":
        by_ddp(plan=sys.argv[2])
    else:
        {"horovod": by_horovod, "ddp": by_ddp}[sys.argv[1]]()
