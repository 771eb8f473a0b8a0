"""A program that keeps `import horovod.torch as hvd`, and is given hvd_compress before or after hvd.init().

usage: patched.py before|after
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import quick_start  # noqa: F401

from hvd_compress import of

# isort: split
import horovod.torch as hvd
import torch


def give() -> None:
    import hvd_compress

    hvd_compress.patch_horovod()


def train(compression: object) -> tuple[object, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(4):
        optimizer.zero_grad()
        torch.manual_seed(10 * step + hvd.rank())
        model(torch.randn(4, 20)).square().sum().backward()
        optimizer.step()
    return optimizer, torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


if __name__ == "__main__":
    if sys.argv[1] == "before":
        give()
        hvd.init()
    else:
        hvd.init()
        give()
    Path(os.environ["JOB_FOLDER"], f"{hvd.rank()}.pid").write_text(str(os.getpid()))
    _, stock = train(hvd.Compression.none)
    optimizer, exact = train(hvd.Compression.topk(1.0).by(collective="star", algorithm="ring"))
    torch.testing.assert_close(exact, stock, rtol=1e-5, atol=1e-6)
    (decision,) = of(optimizer).decisions.values()
    print(f"[rank {hvd.rank()}] sent by {decision.collective} with {decision.algorithm}", flush=True)
