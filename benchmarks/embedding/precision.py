"""GB of float32 rows a second that one core encodes for the network and decodes, by precision.

    python benchmarks/embedding/precision.py

The floor is a copy of the rows in float32; speeds are shares of it, too.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import torch

from hvd_compress.embedding.precision import PRECISIONS


def seconds(call: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start_s)
    return statistics.median(taken)


@click.command(help=__doc__)
@click.option("--rows", default=3000, show_default=True)
@click.option("--dim", default=48, show_default=True)
@click.option("--repeats", default=300, show_default=True)
def main(rows: int, dim: int, repeats: int) -> None:
    torch.set_num_threads(1)
    values = torch.randn(rows, dim, generator=torch.Generator().manual_seed(1))
    gigabytes = 1e-9 * values.numel() * values.element_size()
    floor = gigabytes / seconds(values.clone, repeats)
    print(f"{rows} rows of {dim} elements, one core, torch {torch.__version__}; floor, a copy: {floor:.1f} GB/s")
    print("| rows | encoded, GB/s | of the floor | decoded, GB/s | of the floor |\n|" + " --- |" * 5)
    for name, precision in PRECISIONS.items():
        if precision.lossy:
            words = precision.encode(values)
            speeds = [
                gigabytes / seconds(lambda: precision.encode(values), repeats),  # noqa: B023
                gigabytes / seconds(lambda: precision.decode(words, dim), repeats),  # noqa: B023
            ]
            print(f"| {name} | {' | '.join(f'{each:.1f} | {each / floor:.2f}' for each in speeds)} |")


if __name__ == "__main__":
    main()
