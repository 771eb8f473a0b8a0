"""Every rank asks for another ratio; each prints what it is told, and the job ends with an error."""

from __future__ import annotations

import os
from pathlib import Path

import quick_start  # noqa: F401
import torch

import hvd_compress.torch as hvd

hvd.init()
Path(os.environ["JOB_FOLDER"], f"{hvd.rank()}.pid").write_text(str(os.getpid()))
model = torch.nn.Linear(20, 30)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01),
    model.named_parameters(),
    hvd.Compression.topk(0.1 * (hvd.rank() + 1)),
)
model(torch.ones(20)).sum().backward()
try:
    optimizer.step()
except Exception as error:
    print(f"[rank {hvd.rank()}] {type(error).__name__}: {error}", flush=True)
    hvd.barrier()  # a launcher kills the other ranks when the first one ends
    raise
