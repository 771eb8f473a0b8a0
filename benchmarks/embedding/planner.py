"""How many examples a second one core plans: 26 features each, for the batches of all ranks.

    python benchmarks/embedding/planner.py
    python benchmarks/embedding/planner.py --skew head

Rows are drawn in bursts, as criteo_like does, or 95.5 % of them from a head of 4,200 rows a table, whose rows most
batches use. Each rank finds the distinct rows of its own ids, and plans with those of all. The floor adds up the ids,
which reads them once; the peer is numpy.unique of a whole batch, the first thing a planner in NumPy does. The paper
reports 3.27 million examples a second for a server of 72 threads (Bagpipe, 5.4.3).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import torch

from hvd_compress.native.embedding import NativeLookahead, UniqueRows

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from recommendation.skew import Head
from recommendation.synthetic import criteo_like

PERIOD = 24
SKEWS = {"bursts": None, "head": Head(4200, share=0.955, alpha=0.4)}


def seconds(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


@click.command(help=__doc__)
@click.option("--ranks", default=8, show_default=True)
@click.option("--batch-size", default=16_384, show_default=True, help="Of all ranks.")
@click.option("--lookaheads", default="1,10,50,200", show_default=True)
@click.option("--steps", default=40, show_default=True)
@click.option(
    "--skew", type=click.Choice(list(SKEWS)), default="bursts", show_default=True, help="Of the tables' rows."
)
def main(ranks: int, batch_size: int, lookaheads: str, steps: int, skew: str) -> None:
    torch.set_num_threads(1)
    sources = [
        criteo_like(batch_size=batch_size // ranks, steps=1, skew=SKEWS[skew], rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(sources[0].tables)[:-1]]))
    batches = [
        [(source.batch(step).ids + offsets).reshape(-1).contiguous() for source in sources] for step in range(PERIOD)
    ]
    whole = [torch.cat(batch) for batch in batches]
    floor = statistics.median(seconds(ids.sum) for ids in whole)
    peer = statistics.median(seconds(lambda ids=ids: np.unique(ids.numpy())) for ids in whole)
    pairs = sum(torch.unique(ids).numel() for ids in batches[0])
    distinct = torch.unique(whole[0]).numel()
    print(f"{ranks} ranks, {batch_size} examples, skew {skew}; million examples a second and core")
    print(f"the first batch has {distinct} distinct rows, {pairs} if those of each rank are counted")
    print(f"floor, ids read once: {batch_size / floor / 1e6:.1f}; peer, numpy.unique: {batch_size / peer / 1e6:.2f}")
    print("| L | planner | own distinct rows and planner | distinct rows of all ranks and planner | of the peer |")
    print("| --- | --- | --- | --- | --- |")
    for ahead in map(int, lookaheads.split(",")):
        unique_s, planner_s = _measured(batches, ranks, ahead, steps)
        rank_s = unique_s / ranks + planner_s
        each = [batch_size / taken / 1e6 for taken in (planner_s, rank_s, unique_s + planner_s)]
        print(f"| {ahead} | {' | '.join(f'{rate:.2f}' for rate in each)} | {peer / (unique_s + planner_s):.1f} |")


def _measured(batches: list[list[torch.Tensor]], ranks: int, ahead: int, steps: int) -> tuple[float, float]:
    """Return the seconds that a batch takes, as medians: distinct rows of all ranks, and the planner of one."""
    everybody = list(range(ranks))
    planner, unique = NativeLookahead(ranks, 0, everybody, everybody, 2**30, ahead), UniqueRows()
    unique_s, planner_s = [], []
    for step in range(ahead + 20 + steps):
        batch = batches[step % PERIOD]
        rows: list[torch.Tensor] = []
        unique_s.append(seconds(lambda: rows.extend(unique.collect(ids)[0] for ids in batch)))  # noqa: B023
        joined, lengths = torch.cat(rows), [len(each) for each in rows]
        added_s = seconds(lambda: planner.add(joined, lengths))  # noqa: B023
        planner_s.append(added_s + (seconds(planner.plan) if step + 1 >= ahead else 0.0))
    return statistics.median(unique_s[-steps:]), statistics.median(planner_s[-steps:])


if __name__ == "__main__":
    main()
