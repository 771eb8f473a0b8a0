"""What does the controller cost once it has chosen?

As root: `python benchmarks/controller/overhead.py`. Four hosts exchange gradients. Each job runs twice: with a pause
that stands for forward and backward pass, and without one, so that little hides what the controller does. Windows with
it, from behind one comparison until behind the next, and as many steps without it (the same choices, pinned) alternate
in one run. Prints, and writes to build/controller/overhead.json, the shares of the step's time; behind the median, how
far off it may be, nine times of ten.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

import launching
from figures import FOLDER, save
from rich.console import Console
from rich.table import Table
from tables import head, row

from hvd_compress.netlab import Lab

RESULTS = FOLDER / "overhead.json"
JOBS = (("0.2ms", "1gbit", 1_000_000, 1), ("1ms", "1gbit", 1_000_000, 8), ("1ms", "200mbit", 4_000_000, 4))
COMPUTING_S = (0.05, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="measure nothing, print the table of what was measured")
    given = parser.parse_args()
    if given.page:
        print(page(json.loads(given.results.read_text())))
        return
    rows = []
    with Lab(given.hosts, "1ms", "1gbit") as lab:
        for (latency, bandwidth, numel, buckets), computing_s in product(JOBS, COMPUTING_S):
            lab.set(latency, bandwidth)
            (found,) = launching.run(lab, "steady.py", numel, buckets, given.pairs, computing_s)
            job = {"latency": latency, "bandwidth": bandwidth, "numel": numel, "buckets": buckets}
            rows.append({**job, "computing_s": computing_s, **found})
            save(given.results, rows)
    show(rows)


TITLES = (
    "network",
    "job",
    "computing, ms",
    "step, ms",
    "with / without, median of pairs",
    "in all",
    "between steps",
    "agreeing, beside a step",
)


def show(rows: list[dict]) -> None:
    table = Table(*TITLES)
    for found in rows:
        table.add_row(*cells(found))
    Console(width=140).print(table)


def page(rows: list[dict]) -> str:
    """Return the table of benchmarks/results/controller.md."""
    return "\n".join([*head(*TITLES), *(row(*cells(found)) for found in rows)]) + "\n"


def cells(found: dict) -> tuple[str, ...]:
    return (
        f"{found['latency']} {found['bandwidth']}",
        f"{found['numel']:,} in {found['buckets']}",
        f"{found['computing_s'] * 1e3:.0f}",
        f"{found['without_s'] * 1e3:.1f}",
        f"{found['ratio']:.3f} ({found['ratio_from']:.3f} to {found['ratio_to']:.3f})",
        f"{found['with_s'] / found['without_s']:.3f}",
        f"{found['steering_s'] / found['without_s']:.2%}",
        f"{found['agreeing_s'] / found['without_s']:.2%}",
    )


if __name__ == "__main__":
    main()
