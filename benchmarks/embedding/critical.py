"""How many bytes a step waits for, counted, by the designs of Bagpipe's section 5.2.3.

    python benchmarks/embedding/critical.py

All ranks' planners plan the same batches of the generator that imitates Criteo's; nothing is sent. Counted is what
leaves a rank for another, ids aside, on average over steps and ranks: each row as its elements and, where it goes with
its optimizer's state, that of row-wise Adagrad. The first table has the paper's own figures, in rows of all ranks. The
paper's replicated cache reduces all rows of a batch over all ranks; ours sends them only if a coming batch uses them.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import click
import numpy as np
import torch

from hvd_compress.native.embedding import Counts, Lane, NativeLookahead, UniqueRows

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from recommendation.synthetic import criteo_like

DESIGNS = {
    "replicated cache": {"replicated": True, "delayed": False},
    "LRPP without delay": {"replicated": False, "delayed": False},
    "LRPP with delay": {"replicated": False, "delayed": True},
}
PAPER = {"distinct": 65_000, "used by several ranks": 48_000, "and in the next step": 22_700}


def sent_bytes(lane: Lane, rank: int, dim: int) -> int:
    """Return what a rank sends to others in a lane."""
    widths = [(lane.gradients, dim), (lane.records, dim + 1), (lane.rows_to, dim), (lane.records_to, dim + 1)]
    return sum(4 * width * (sum(lists.lengths) - lists.lengths[rank]) for lists, width in widths)


def planned(design: str, batches: list[list[torch.Tensor]], ahead: int, dim: int) -> tuple[float, float, list[Counts]]:
    """Return the bytes that a rank sends in each lane of a step, and counts of the steps."""
    ranks = len(batches[0])
    everybody = list(range(ranks))
    planners = [
        NativeLookahead(ranks, rank, everybody, everybody, 2**30, ahead, **DESIGNS[design]) for rank in everybody
    ]
    critical, later, counts = [], [], []
    for number, rows in enumerate(batches):
        for planner in planners:
            planner.add(torch.cat(rows), [len(each) for each in rows])
        if number + 1 < ahead:
            continue
        plans = [planner.plan() for planner in planners]
        if plans[0].counts.used:
            critical += [sent_bytes(plan.critical, rank, dim) for rank, plan in enumerate(plans)]
            later += [sent_bytes(plan.later, rank, dim) for rank, plan in enumerate(plans)]
            counts.append(plans[0].counts)
    return statistics.fmean(critical), statistics.fmean(later), counts


@click.command(help=__doc__)
@click.option("--ranks", default=8, show_default=True)
@click.option("--batch-size", default=16_384, show_default=True, help="Of all ranks.")
@click.option("--scale", default=1.0, show_default=True, help="Of the tables' rows.")
@click.option("--lookahead", default=20, show_default=True)
@click.option("--dim", default=48, show_default=True)
@click.option("--steps", default=10, show_default=True)
def main(ranks: int, batch_size: int, scale: float, lookahead: int, dim: int, steps: int) -> None:
    sources = [
        criteo_like(scale, batch_size=batch_size // ranks, steps=1, rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(sources[0].tables)[:-1]]))
    unique = UniqueRows()
    batches = [
        [unique.collect((source.batch(step).ids + offsets).reshape(-1))[0] for source in sources]
        for step in range(lookahead + steps)
    ]
    found = {design: planned(design, batches, lookahead, dim) for design in DESIGNS}
    counts = found["LRPP with delay"][2]
    ours = {
        "distinct": statistics.fmean(each.used for each in counts),
        "used by several ranks": statistics.fmean(each.used - each.single_user for each in counts),
        "and in the next step": statistics.fmean(each.sync_now for each in counts),
    }
    print(f"{ranks} ranks, {batch_size} examples, L = {lookahead}, rows of {dim} elements, {len(counts)} steps")
    print("| rows of a step | generator | paper | of the paper |\n| --- | --- | --- | --- |")
    for name, rows in PAPER.items():
        print(f"| {name} | {ours[name]:.0f} | {rows} | {ours[name] / rows:.2f} |")
    allreduced = 2 * (ranks - 1) / ranks * 4 * dim * ours["distinct"]
    first = found["replicated cache"][0]
    heads = "design", "critical, kB a rank", "of the paper's replicated cache", "of ours", "behind, kB"
    print(f"\n| {' | '.join(heads)} |\n|" + " --- |" * 5)
    print(f"| replicated cache by an allreduce | {allreduced / 1e3:.0f} | 1.00 | {allreduced / first:.2f} | 0 |")
    for design, (critical, later, _) in found.items():
        shares = f"{critical / allreduced:.2f} | {critical / first:.2f}"
        print(f"| {design} | {critical / 1e3:.0f} | {shares} | {later / 1e3:.0f} |")


if __name__ == "__main__":
    main()
