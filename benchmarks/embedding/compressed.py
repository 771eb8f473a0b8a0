"""Loss against steps, and bytes a step, of DLRM whose synchronised rows travel in several precisions.

    python benchmarks/embedding/compressed.py

The small model on the generator that imitates Criteo's data, ranks in threads of one process. A batch is scored before
it is trained on, so no example of a score has been seen before. Bytes are what a rank sends to others, counted, ids
aside, on average over ranks and the steps behind the first window. The floor of a loss is what seeds make of it.
"""

from __future__ import annotations

import copy
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import torch

from hvd_compress.embedding import CachedEmbedding, Lookahead, RowwiseAdagrad
from hvd_compress.embedding.precision import PRECISIONS
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from recommendation.metrics import loss_of
from recommendation.models import MODELS
from recommendation.sizes import SMALL
from recommendation.synthetic import criteo_like


class Run(NamedTuple):
    """Of one rank: the loss of each step, and what it has sent in the two lanes of each exchange."""

    losses: list[float]
    critical_bytes: list[int]
    later_bytes: list[int]


def training(precision: str, seed: int, steps: int, batch_size: int, scale: float) -> Callable[[InProcessEngine], Run]:
    torch.manual_seed(seed)
    initial = MODELS["dlrm"](SMALL["dlrm"])

    def body(engine: InProcessEngine) -> Run:
        place = {"rank": engine.rank, "world_size": engine.world_size}
        source = criteo_like(scale, batch_size=batch_size, steps=steps, seed=seed, **place)
        model = copy.deepcopy(initial)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
        embedding = CachedEmbedding(source.tables, SMALL["dlrm"].dim, optimizer=RowwiseAdagrad(0.05), seed=seed)
        loader = Lookahead(
            source, {2: embedding}, cache_rows=200_000, lookahead=20, engine=engine, sync_precision=precision
        )
        run = Run([], [], [])
        for batch in loader:
            run.critical_bytes.append(loader.moved.critical_bytes)
            run.later_bytes.append(loader.moved.later_bytes)
            loss = loss_of(model(batch.dense, embedding(batch.ids)), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            total = torch.cat([each.flatten() for each in gradients])
            engine.allreduce(total)
            for each, part in zip(gradients, torch.split(total, [each.numel() for each in gradients]), strict=True):
                each.copy_(part.view_as(each)).div_(engine.world_size)
            optimizer.step()
            run.losses.append(loss.item())
        loader.close()
        return run

    return body


@click.command(help=__doc__)
@click.option("--ranks", default=4, show_default=True)
@click.option("--batch-size", default=64, show_default=True, help="Of a rank.")
@click.option("--scale", default=0.01, show_default=True, help="Of the tables' rows.")
@click.option("--steps", default=240, show_default=True)
@click.option("--window", default=80, show_default=True, help="Steps that a loss is the mean of.")
@click.option("--seeds", default=2, show_default=True)
def main(ranks: int, batch_size: int, scale: float, steps: int, window: int, seeds: int) -> None:
    torch.set_num_threads(1)
    ends = list(range(window, steps + 1, window))
    print(f"{ranks} ranks, {batch_size} examples each, {seeds} seeds, torch {torch.__version__}")
    heads = (
        *(f"loss to step {end}" for end in ends),
        "of exact's (seeds)",
        "critical, kB",
        "behind, kB",
        "both, of exact",
    )
    print(f"| rows | {' | '.join(heads)} |\n|" + " --- |" * (len(heads) + 1))
    exact_losses: list[float] = []
    exact_bytes = 0.0
    for precision in PRECISIONS:
        runs = [run_ranks(ranks, training(precision, seed, steps, batch_size, scale)) for seed in range(1, seeds + 1)]
        losses = [
            [statistics.fmean(loss for run in of_seed for loss in run.losses[end - window : end]) for end in ends]
            for of_seed in runs
        ]
        last = [each[-1] for each in losses]
        critical, later = (
            statistics.fmean(sent for of_seed in runs for run in of_seed for sent in run[lane][window:])
            for lane in (1, 2)
        )
        exact_losses, exact_bytes = exact_losses or last, exact_bytes or critical + later
        ratios = [loss / exact for loss, exact in zip(last, exact_losses, strict=True)]
        cells = (
            *(f"{statistics.fmean(of_end):.4f}" for of_end in zip(*losses, strict=True)),
            f"{statistics.fmean(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})",
            *(f"{1e-3 * each:.1f}" for each in (critical, later)),
            f"{(critical + later) / exact_bytes:.2f}",
        )
        print(f"| {precision} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
