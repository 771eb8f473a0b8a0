"""Trains by local steps; in the middle of a round rank 1 meets what is named on the command line.

usage: local_trouble.py MISFORTUNE
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path

import torch
from meeting import meet

import hvd_compress.torch as hvd
from hvd_compress.local import LocalSteps

Path(os.environ["JOB_FOLDER"], f"{os.getpid()}.pid").write_text(str(os.getpid()))
STEPS, UNLUCKY = 20, 10


def fail() -> None:
    raise ValueError("bad luck")


MISFORTUNES = {
    "none": lambda local: None,
    "is killed": lambda local: os.kill(os.getpid(), signal.SIGKILL),
    "is stopped": lambda local: os.kill(os.getpid(), signal.SIGSTOP),
    "raises": lambda local: fail(),
    "leaves": lambda local: sys.exit(0),
    "evaluates alone": lambda local: local.averaged().__enter__(),
}


def main(misfortune: str) -> None:
    meet()
    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Linear(20, 30)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    local = LocalSteps(optimizer, model, every=4, start_after=3, delay=2)
    for step in range(STEPS):
        if step == UNLUCKY and hvd.rank() == 1:
            MISFORTUNES[misfortune](local)
        optimizer.zero_grad()
        model(torch.randn(8, 20) + hvd.rank()).square().mean().backward()
        if step == 0:  # what backward() and the first step load takes long, too
            meet(before="step")
        optimizer.step()
    local.finish()
    print(f"[rank {hvd.rank()}] is done", flush=True)
    hvd.shutdown()


try:
    main(sys.argv[1])
except Exception as error:
    print(f"[rank {os.environ.get('RANK', os.environ.get('OMPI_COMM_WORLD_RANK'))}] {type(error).__name__}: {error}")
    traceback.print_exc()
    raise
