"""Train a few steps by each compression, or until all is chosen; rank 0 writes a log and scalars of each to $LOGS."""

from __future__ import annotations

import os
from pathlib import Path

import quick_start  # noqa: F401
import torch

import hvd_compress.torch as hvd
from tests.brought import brought
from tests.harness import backward, make_parameters

STEPS = 5

hvd.init()
Path(os.environ["JOB_FOLDER"], f"{hvd.rank()}.pid").write_text(str(os.getpid()))
torch.set_num_threads(1)
logs = Path(os.environ["LOGS"])
requests = {
    "int4": hvd.Compression.int4(),
    "plan": hvd.Compression.plan(logs / "plan.json"),
    "momentum": hvd.Compression.momentum(warmup_steps=2),
    "topk": hvd.Compression.topk(0.05),  # by real steps, unless that is switched off
    **dict(brought("FIXED")),
}
for name, request in requests.items():
    os.environ |= {"HVD_COMPRESS_LOG": str(logs / f"{name}.jsonl"), "HVD_COMPRESS_TENSORBOARD": str(logs / name)}
    parameters = make_parameters()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters.values(), lr=0.1), parameters.items(), request)
    step = 0
    while step < STEPS or (hvd.of(optimizer).controller is not None and not hvd.of(optimizer).controller.settled):
        optimizer.zero_grad()
        backward(parameters, hvd.rank(), step)
        optimizer.step()
        step += 1
    print(f"[rank {hvd.rank()}] {name}: {len(hvd.of(optimizer).decisions)} buckets", flush=True)
    print(
        f"[rank {hvd.rank()}] reasons of {name}: {[way.reason for way in hvd.of(optimizer).decisions.values()]}",
        flush=True,
    )
