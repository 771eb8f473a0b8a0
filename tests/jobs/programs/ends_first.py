"""Rank 0 broadcasts twice and ends; rank 1 is slower, and still in the first one when Horovod shuts MPI down."""

from __future__ import annotations

import os
import time
from pathlib import Path

import quick_start  # noqa: F401
import torch

import hvd_compress.torch as hvd

hvd.init()  # before mpi4py is imported: so MPI is Horovod's, which also ends it

from hvd_compress.engines import mpi_shutdown  # noqa: E402
from hvd_compress.engines.mpi import MpiEngine  # noqa: E402

# On a busy machine more time may pass between two collectives, and they may take longer.
mpi_shutdown._QUIET_S, mpi_shutdown.GRACE_S = 2.0, 100.0


class SlowEngine(MpiEngine):
    """Is preempted in each collective."""

    def _broadcast(self, tensor: torch.Tensor, root: int, algorithm: str) -> None:
        super()._broadcast(tensor, root, algorithm)
        time.sleep(0.4)


Path(os.environ["JOB_FOLDER"], f"{hvd.rank()}.pid").write_text(str(os.getpid()))
engine = SlowEngine() if hvd.rank() == 1 else MpiEngine()
received = []
for number in (3.0, 4.0):
    tensor = torch.full((2,), number if hvd.rank() == 0 else 0.0)
    engine.broadcast(tensor, 0)
    received.append(float(tensor.sum()))
print(f"[rank {hvd.rank()}] received {received}", flush=True)
