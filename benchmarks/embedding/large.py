r"""Train a table that is larger than memory should hold, in files that all ranks of a machine map.

    mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python benchmarks/embedding/large.py --gigabytes 20

Every row of the files is written first (--no-fill leaves holes), so that the system has to choose which pages stay in
memory. Printed: a step behind the cache, the same with a table of a million rows in memory, the ratio, and what each
rank has in memory of its own.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import numpy as np
import psutil
import torch

import hvd_compress.torch as hvd
from hvd_compress.embedding import CachedEmbedding, Lookahead, RowwiseAdagrad

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from recommendation.skew import Zipf

DIM = 64
FILL_ROWS = 200_000


def steps_s(embedding: CachedEmbedding, batches: list[torch.Tensor], cache_rows: int) -> list[float]:
    loader = Lookahead(batches, {lambda batch: batch: embedding}, cache_rows=cache_rows, lookahead=20)
    taken = []
    start_s = time.perf_counter()
    for ids in loader:
        embedding(ids).square().mean().backward()
        taken.append(time.perf_counter() - start_s)
        start_s = time.perf_counter()
    loader.close()
    return taken[len(taken) // 5 :]


def filled(embedding: CachedEmbedding) -> None:
    """Write all rows of this rank's file."""
    loader = Lookahead([], {0: embedding}, cache_rows=1)
    loader.state_dict()
    shard = embedding.shard
    assert shard is not None
    for first in range(0, shard.rows, FILL_ROWS):
        shard.read(torch.arange(first, min(first + FILL_ROWS, shard.rows)))


@click.command(help=__doc__)
@click.option("--gigabytes", default=20.0, show_default=True)
@click.option("--folder", default=Path("build/large"), type=click.Path(path_type=Path))
@click.option("--batch-size", default=4096, show_default=True, help="Ids of a rank.")
@click.option("--steps", default=100, show_default=True)
@click.option("--fill/--no-fill", default=True, show_default=True)
def main(gigabytes: float, folder: Path, batch_size: int, steps: int, fill: bool) -> None:
    hvd.init()
    torch.set_num_threads(1)
    rows = int(gigabytes * 1e9 / (4 * (DIM + 1)))
    draw = np.random.default_rng(hvd.rank())
    batches = [torch.from_numpy(Zipf(0.8).draw(draw.random(batch_size), rows)) for _ in range(steps)]
    large = CachedEmbedding(rows, DIM, optimizer=RowwiseAdagrad(0.05), folder=folder, name="large")
    start_s = time.perf_counter()
    if fill:
        filled(large)
    hvd.allgather_object(0)
    filled_s = time.perf_counter() - start_s
    file_s = statistics.median(steps_s(large, batches, 20 * batch_size))
    own_bytes = psutil.Process().memory_full_info().uss
    shrunk = [ids % 1_000_000 for ids in batches]
    memory_s = statistics.median(
        steps_s(CachedEmbedding(1_000_000, DIM, optimizer=RowwiseAdagrad(0.05), name="memory"), shrunk, 20 * batch_size)
    )
    uss = hvd.allgather_object(own_bytes)
    if hvd.rank() == 0:
        size_bytes = sum(each.stat().st_size for each in folder.iterdir())
        blocks = sum(512 * each.stat().st_blocks for each in folder.iterdir())
        memory = psutil.virtual_memory()
        print(
            f"{hvd.size()} ranks, {rows} rows in files of {size_bytes / 1e9:.1f} GB, {blocks / 1e9:.1f} on disk; ",
            end="",
        )
        print(f"machine of {memory.total / 1e9:.1f} GB; written in {filled_s:.0f} s")
        print(f"step {1e3 * file_s:.1f} ms, in memory {1e3 * memory_s:.1f} ms, ratio {file_s / memory_s:.2f}")
        print(f"own memory of ranks: {', '.join(f'{each / 1e9:.2f}' for each in uss)} GB")
    hvd.allgather_object(0)
    if hvd.rank() == 0:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
