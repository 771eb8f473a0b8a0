"""The network changes while a job runs: is the controller's choice right again, and after how many steps?

As root: `python benchmarks/controller/change.py`. Four hosts exchange one gradient; the lab goes from one network to
the next and back, each time after a choice has stood for a while. After 30 steps every candidate is measured. Prints,
and writes to benchmarks/results/controller-change.json, for each change: the steps until the last choice was made, and
how much longer the chosen one takes than the best.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from grid import regret
from rich.console import Console
from rich.table import Table

from hvd_compress.netlab import Lab

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "controller-change.json"
STEPS = 30
"""The bound: within so many steps after a change, the choice is right again."""
NETWORKS = (("1ms", "1gbit"), ("1ms", "50mbit"), ("20ms", "1gbit"), ("0.2ms", "200mbit"), ("1ms", "1gbit"))
JOBS = ((1_000_000, 0.1), (1_000_000, 0.01), (4_000_000, 0.01))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--jobs", type=int, default=len(JOBS), help="how many of the jobs")
    arguments = parser.parse_args()
    rows = []
    for numel, ratio in JOBS[: arguments.jobs]:
        rows += run(arguments.hosts, numel, ratio)
        arguments.results.write_text(json.dumps(rows, indent=1))
    show(rows)


def run(hosts: int, numel: int, ratio: float) -> list[dict]:
    rows = []
    with Lab(hosts, *NETWORKS[0]) as lab, tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HVD_COMPRESS_CACHE": folder, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(HERE / "changing.py"), folder, str(numel), str(ratio), str(len(NETWORKS))]
        job = lab.start([*command, str(STEPS)], env=environment, stdout=subprocess.PIPE, text=True)
        for number, (latency, bandwidth) in enumerate(NETWORKS):
            wait_for(Path(folder) / f"ready-{number}", job)
            lab.set(latency, bandwidth)
            (Path(folder) / f"changed-{number}").touch()
        out, _ = job.communicate(timeout=1200)
        if job.returncode != 0:
            raise SystemExit(f"{numel} elements: a rank ended with status {job.returncode}")
        for text in out.splitlines():
            if text.startswith("row "):
                row = json.loads(text.removeprefix("row "))
                latency, bandwidth = NETWORKS[row["network"]]
                rows.append({"numel": numel, "ratio": ratio, "latency": latency, "bandwidth": bandwidth, **row})
                print(line(rows[-1]), flush=True)
    return rows


def wait_for(path: Path, job: subprocess.Popen) -> None:
    while not path.exists():
        if job.poll() is not None:
            raise SystemExit(f"the job ended with status {job.returncode} before {path.name}")
        time.sleep(0.01)


def line(row: dict) -> str:
    best = min(row["measured"], key=row["measured"].__getitem__)
    return (
        f"{row['numel']:>9} {row['ratio']:<5} to {row['latency']:>5} {row['bandwidth']:>8}: {row['chosen']:<34} "
        f"{regret(row, row['chosen']):6.1%}  best {best:<34} {row['measured'][best] * 1e3:8.1f} ms, "
        f"was {row['before']:<32} last choice after {row['steps']} steps"
    )


def show(rows: list[dict]) -> None:
    changes = [row for row in rows if row["network"] > 0]
    right = [
        row for row in changes if row["settled"] and regret(row, row["chosen"]) <= 0.10
    ]  # what is on trial is no choice
    table = Table(
        "changes", f"right (within 10 %) after {STEPS} steps", "worst regret", "steps to the last choice, most"
    )
    worst, most = max(regret(row, row["chosen"]) for row in changes), max(row["steps"] for row in changes)
    table.add_row(str(len(changes)), str(len(right)), f"{worst:.0%}", str(most))
    Console().print(table)


if __name__ == "__main__":
    main()
