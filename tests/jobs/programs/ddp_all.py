"""Under torchrun: train a few steps by DDP with every compressor of the conformance suite, and compare the ranks."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

import hvd_compress.ddp as hc
from tests.harness import chosen
from tests.unit.frontends.ddp.training import Given, check_ranks_equal, compressed, optimizer_of

STEPS = 3

dist.init_process_group("gloo")
rank = dist.get_rank()
Path(os.environ["JOB_FOLDER"], f"{rank}.pid").write_text(str(os.getpid()))
torch.set_num_threads(1)
for name, request in chosen().items():
    ddp = compressed(Given(), request, bucket_cap_mb=0.0008)
    optimizer = optimizer_of(ddp)
    before = [parameter.detach().clone() for parameter in ddp.module.parameters()]
    for step in range(STEPS):
        optimizer.zero_grad()
        ddp(rank, step).backward()
        optimizer.step()
        check_ranks_equal(ddp.module, f"{step} of {name}")
    assert len(hc.of(ddp).decisions) > 1, "several buckets, or their order is not tested"
    assert any(not torch.equal(a, b) for a, b in zip(before, ddp.module.parameters(), strict=True)), name
    if rank == 0:
        print(f"all ranks have trained with {name}", flush=True)
dist.barrier()
dist.destroy_process_group()
