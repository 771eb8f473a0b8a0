"""What the programs of this folder share: the ranks of a job, windows of DDP models in turns, ratios with intervals."""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Step = Callable[[], None]


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


def in_turns(steps: Sequence[Step], rounds: int, length: int) -> list[list[float]]:
    """Return for each round the seconds of a step of each kind, as the slowest rank sees it.

    A round is one window of `length` steps of each; their order goes through all permutations.
    """
    for step in steps:
        _window(step, 5)
    orders = list(permutations(range(len(steps))))
    rows = []
    for number in range(rounds):
        taken = {kind: _window(steps[kind], length) for kind in orders[number % len(orders)]}
        rows.append([taken[kind] for kind in range(len(steps))])
    return rows


def _window(step: Step, length: int) -> float:
    dist.barrier()
    start_s = time.perf_counter()
    for _ in range(length):
        step()
    slowest = torch.tensor((time.perf_counter() - start_s) / length)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def median_with_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and its 95 % interval by bootstrap, from 2000 draws."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[50], medians[1949]


def cells(rows: Sequence[Sequence[float]]) -> list[str]:
    """Return the cells of a table for rounds of (peer, peer again, ours): ms of the peer and ours, ratio, noise."""
    columns = list(zip(*rows, strict=True))
    found = [f"{1e3 * statistics.median(columns[kind]):.1f}" for kind in (0, 2)]
    for kind in (2, 1):
        ratio, low, high = median_with_interval([row[kind] / row[0] for row in rows])
        found += [f"{ratio:.3f}", f"{low:.3f} to {high:.3f}"]
    return found


def table_head(first: Sequence[str], peer: str, ours: str) -> str:
    """Return the head of a table whose rows are `first` and `cells`."""
    names = [*first, f"{peer}, ms", f"{ours}, ms", "ratio", "95 % interval", "noise", "95 % interval"]
    rule = ["---"] * len(first) + ["---:", "---:", "---:", "---", "---:", "---"]
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, rule))
