"""A job of processes on this machine, without a launcher."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_job(ranks: int, program: Callable[..., Any], *arguments: object) -> Any:
    """Run `program(*arguments)` in `ranks` processes with one thread each, over gloo; return what rank 0 returns."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HVD_COMPRESS_ADAPT": "0"}
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank, (ranks, Path(folder), program, arguments), nprocs=ranks, start_method="spawn")
        return torch.load(Path(folder, "found"), weights_only=False)


def _rank(rank: int, ranks: int, folder: Path, program: Callable[..., Any], arguments: Sequence[object]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    found = program(*arguments)
    if rank == 0:
        torch.save(found, folder / "found")
    dist.barrier()
    dist.destroy_process_group()
