"""What does the controller cost once it has chosen?

As root: `python benchmarks/controller/overhead.py`. Four hosts exchange gradients. Each job runs twice: with a pause
that stands for forward and backward pass, behind which ranks compare their times, and without one, so that nothing
hides what the controller does. Blocks of steps with it and without it (the same choices, pinned) alternate in one run.
Prints, and writes to benchmarks/results/controller-overhead.json, the shares of the step's time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvd_compress.netlab import Lab

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "controller-overhead.json"
JOBS = (("0.2ms", "1gbit", 1_000_000, 1), ("1ms", "1gbit", 1_000_000, 8), ("1ms", "200mbit", 4_000_000, 4))
COMPUTING_S = (0.05, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = []
    with Lab(given.hosts, "1ms", "1gbit") as lab:
        for (latency, bandwidth, numel, buckets), computing_s in product(JOBS, COMPUTING_S):
            lab.set(latency, bandwidth)
            with tempfile.TemporaryDirectory() as cache:
                environment = {**os.environ, "HVD_COMPRESS_CACHE": cache, "OMP_NUM_THREADS": "1"}
                command = [sys.executable, str(HERE / "steady.py"), str(numel), str(buckets), str(given.blocks)]
                command.append(str(computing_s))
                done = lab.run(command, env=environment, stdout=subprocess.PIPE, text=True)
            if done.returncode != 0:
                raise SystemExit(f"a rank ended with status {done.returncode}")
            row = json.loads(next(text for text in done.stdout.splitlines() if text.startswith("{")))
            job = {"latency": latency, "bandwidth": bandwidth, "numel": numel, "buckets": buckets}
            rows.append({**job, "computing_s": computing_s, **row})
            given.results.write_text(json.dumps(rows, indent=1))
    show(rows)


def show(rows: list[dict]) -> None:
    table = Table(
        "network",
        "job",
        "computing [ms]",
        "step [ms]",
        "with / without",
        "between steps",
        "agreeing, beside the next step",
    )
    for row in rows:
        table.add_row(
            f"{row['latency']} {row['bandwidth']}",
            f"{row['numel']:,} in {row['buckets']}",
            f"{row['computing_s'] * 1e3:.0f}",
            f"{row['without_s'] * 1e3:.1f}",
            f"{row['ratio']:.3f}",
            f"{row['steering_s'] / row['without_s']:.2%}",
            f"{row['agreeing_s'] / row['without_s']:.2%}",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
