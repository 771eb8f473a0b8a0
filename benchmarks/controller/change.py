"""The network changes while a job runs: is the controller's choice right again, and after how many steps?

As root: `python benchmarks/controller/change.py`. Four hosts exchange one gradient, after a pause that stands for
forward and backward pass; the lab goes from one network to the next and back, each time after a choice has stood for a
while. After 30 steps every candidate is measured, and then the chosen one and the fastest anew, in turns. Prints, and
writes to build/controller/change.json, for each change: the steps until the last choice was made, and how much longer
the chosen one takes than the best, by either measurement.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import launching
from figures import FOLDER, save
from rich.console import Console
from rich.table import Table
from tables import best, head, outdone, regret, row

from hvd_compress.netlab import Lab

RESULTS = FOLDER / "change.json"
STEPS = 30
"""The bound: within so many steps after a change, the choice is right again."""
NETWORKS = (("1ms", "1gbit"), ("1ms", "50mbit"), ("20ms", "1gbit"), ("0.2ms", "200mbit"), ("1ms", "1gbit"))
COMPUTING_S = 0.05
"""The pause."""
JOBS = ((1_000_000, 0.1), (1_000_000, 0.01), (4_000_000, 0.01))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--jobs", type=int, default=len(JOBS), help="how many of the jobs")
    parser.add_argument("--computing", type=float, default=COMPUTING_S, help="seconds of the pause")
    parser.add_argument("--page", action="store_true", help="measure nothing, print the table of what was measured")
    arguments = parser.parse_args()
    if arguments.page:
        print(page(json.loads(arguments.results.read_text())))
        return
    rows = []
    for numel, ratio in JOBS[: arguments.jobs]:
        rows += run(arguments.hosts, numel, ratio, arguments.computing)
        save(arguments.results, rows)
    show(rows)


def run(hosts: int, numel: int, ratio: float, computing_s: float) -> list[dict]:
    rows = []
    with Lab(hosts, *NETWORKS[0]) as lab, tempfile.TemporaryDirectory() as folder:
        words = launching.command("changing.py", folder, numel, ratio, len(NETWORKS), STEPS, computing_s)
        job = lab.start(words, env=launching.environment(folder), stdout=subprocess.PIPE, text=True)
        for number, (latency, bandwidth) in enumerate(NETWORKS):
            wait_for(Path(folder) / f"ready-{number}", job)
            lab.set(latency, bandwidth)
            (Path(folder) / f"changed-{number}").touch()
        out, _ = job.communicate(timeout=1200)
        if job.returncode != 0:
            raise SystemExit(f"{numel} elements: a rank ended with status {job.returncode}")
        for found in launching.answers(out):
            latency, bandwidth = NETWORKS[found["network"]]
            rows.append({"numel": numel, "ratio": ratio, "latency": latency, "bandwidth": bandwidth, **found})
            print(line(rows[-1]), flush=True)
    return rows


def wait_for(path: Path, job: subprocess.Popen) -> None:
    while not path.exists():
        if job.poll() is not None:
            raise SystemExit(f"the job ended with status {job.returncode} before {path.name}")
        time.sleep(0.01)


def line(cell: dict) -> str:
    return (
        f"{cell['numel']:>9} {cell['ratio']:<5} to {cell['latency']:>5} {cell['bandwidth']:>8}: {cell['chosen']:<34} "
        f"{outdone(cell, cell['chosen']):6.1%} in turns, {regret(cell, cell['chosen']):6.1%} among all, "
        f"best {best(cell):<34} {cell['measured'][best(cell)] * 1e3:8.1f} ms, "
        f"was {cell['before']:<32} last choice after {cell['steps']} steps"
    )


def page(rows: list[dict]) -> str:
    """Return the table of benchmarks/results/controller.md; what is on trial after 30 steps is no choice."""
    titles = ("job", "changed to", "used before", "believed after", "chosen after", "then used")
    lines = [*head(*titles, "longer, in turns", "among all", "than the best", "ms")]
    for cell in rows:
        if cell["network"] == 0:
            continue
        believed = next((event["step"] for event in cell["events"] if event["kind"] == "network"), "")
        used = cell["chosen"] if cell["settled"] else "on trial"
        job, network = f"{cell['numel']:,} at {cell['ratio']}", f"{cell['latency']} {cell['bandwidth']}"
        longer = [f"{by(cell, cell['chosen']):.1%}" for by in (outdone, regret)]
        figures = *longer, best(cell), f"{cell['measured'][best(cell)] * 1e3:.1f}"
        lines.append(row(job, network, cell["before"], believed, cell["steps"] or "", used, *figures))
    return "\n".join(lines) + "\n"


def show(rows: list[dict]) -> None:
    changes = [cell for cell in rows if cell["network"] > 0]
    table = Table("", f"within 10 % after {STEPS} steps", "longest", "steps to the last choice, most", title="changes")
    most = max(cell["steps"] for cell in changes)
    for name, by in (("in turns", outdone), ("among all", regret)):
        longer = [by(cell, cell["chosen"]) for cell in changes]
        right = [part for cell, part in zip(changes, longer, strict=True) if cell["settled"] and part <= 0.10]
        table.add_row(name, f"{len(right)} of {len(changes)}", f"{max(longer):.0%}", str(most))
    Console().print(table)


if __name__ == "__main__":
    main()
