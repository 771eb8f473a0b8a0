"""Train with the collective left open, as a user would by default; rank 1 may be killed in the middle.

usage: adapt.py NONE_OR_KILLED
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import quick_start  # noqa: F401
import torch

import hvd_compress.torch as hvd

STEPS, UNLUCKY_STEP = 100, 5


def main(misfortune: str) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(200, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), hvd.Compression.topk(0.01))
    inputs = torch.randn(4, 200, generator=torch.Generator().manual_seed(hvd.rank()))
    step = 0
    while step < STEPS or not hvd.of(optimizer).controller.settled:  # a busy machine may have the round begin anew
        if misfortune == "killed" and step == UNLUCKY_STEP:
            hvd.barrier()  # all have ended the steps before it
            if hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
        step += 1
    (decision,) = hvd.of(optimizer).decisions.values()
    total = sum(float(parameter.double().sum()) for parameter in model.parameters())
    print(f"[rank {hvd.rank()}] chose {decision.collective} {decision.algorithm}, ends at {total!r}", flush=True)


if __name__ == "__main__":
    hvd.init()
    Path(os.environ["JOB_FOLDER"], f"{hvd.rank()}.pid").write_text(str(os.getpid()))
    try:
        main(sys.argv[1])
    except Exception as error:
        print(f"[rank {hvd.rank()}] {type(error).__name__}: {error}", flush=True)
        raise
