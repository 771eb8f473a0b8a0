"""What the programs of this folder share: the ranks of a job, and the rows of a table."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.turns import ms, ratio_cells


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


def slowest(number: float) -> float:
    """Return the largest of all ranks' numbers."""
    found = torch.tensor(number)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def cells(rows: Sequence[Sequence[float]]) -> list[str]:
    """Return the cells of a table for rounds of (peer, peer again, ours): ms of the peer and ours, ratio, noise."""
    columns = list(zip(*rows, strict=True))
    found = [ms(columns[kind]) for kind in (0, 2)]
    for kind in (2, 1):
        found += ratio_cells([row[kind] / row[0] for row in rows])
    return found


def table_head(first: Sequence[str], peer: str, ours: str) -> str:
    """Return the head of a table whose rows are `first` and `cells`."""
    names = [*first, f"{peer}, ms", f"{ours}, ms", "ratio", "95 % interval", "noise", "95 % interval"]
    rule = ["---"] * len(first) + ["---:", "---:", "---:", "---", "---:", "---"]
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, rule))
