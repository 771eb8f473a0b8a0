"""Adaptive against fixed methods, training on a network that changes: schedules C1 and C2 in the lab, several seeds.

    python benchmarks/flexible_communication/run.py          (root; an hour and a half)

Each job is a launch of job.py on four emulated hosts. What it found is added to build/flexible_communication/runs.jsonl
method by method, so that an interrupted benchmark goes on where it stopped. The page goes to
benchmarks/results/flexible-communication.md, its pictures beside it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

from page import write_page

from hvd_compress.netlab import Lab

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "flexible_communication"
RESULT = ROOT / "benchmarks" / "results" / "flexible-communication"
SCHEDULES = ("c1-lab", "c2-lab")
PEER = "horovod"
"""Plain Horovod, without this package."""
FIXED = (
    PEER,
    "dense",
    *(f"{scheme} {ratio}" for ratio in ("0.1", "0.01", "0.001") for scheme in ("allgather", "star")),
)
FULL = ("star 0.1", "adaptive 0.1", "adaptive knee")
"""Trained in full unless others are named: what is promised, and the fixed method that it is measured by."""
PACE = 6
"""What one step of every so many takes tells the time of the methods that are not trained in full."""


@dataclass(frozen=True)
class Run:
    """One training. Without a schedule it is on one machine without a network, for its accuracy alone."""

    method: str
    schedule: str | None
    seed: int
    steps: int


@dataclass(frozen=True)
class Plan:
    """What is to be trained: `full` methods under each schedule with each seed, the others for accuracy and pace."""

    full: tuple[str, ...]
    seeds: int
    steps: int

    def runs(self) -> list[Run]:
        """In an order in which neighbours can share a job, what matters most first."""
        seeds = range(1, self.seeds + 1)
        others = [method for method in FIXED if method not in self.full]
        trained = [Run(m, s, seed, self.steps) for seed in seeds for s in SCHEDULES for m in self.full]
        first = len(trained) // self.seeds
        return [
            *trained[:first],
            *(Run(m, s, 1, self.steps // PACE) for s in SCHEDULES for m in others),
            *trained[first:],
            *(Run(m, None, seed, self.steps) for seed in seeds for m in others if m != PEER),
        ]


@click.command(help=__doc__)
@click.option("--steps", default=300, show_default=True, type=click.IntRange(min=50), help="A multiple of 50 each.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1), help="How many; they are 1, 2, ...")
@click.option("--full", default=",".join(FULL), show_default=True, help="Methods to train in full.")
@click.option("--untimed", is_flag=True, help="Only what needs no quiet machine: the accuracy of fixed methods.")
@click.option("--jobs", type=click.IntRange(min=0), help="Stop after so many jobs; the next call goes on.")
@click.option("--batch-size", default=64, show_default=True, type=click.IntRange(min=1), help="Of one rank.")
@click.option("--lr", default=0.02, show_default=True, help="Peak of the learning rate.")
def main(steps: int, seeds: int, full: str, untimed: bool, jobs: int | None, batch_size: int, lr: float) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    plan = Plan(tuple(full.split(",")), seeds, steps - steps % 50)
    settings = {"batch_size": batch_size, "lr": lr}
    wanted = [run for run in plan.runs() if run.schedule is None or not untimed]
    start = time.monotonic()
    launched = 0
    while (missing := [run for run in wanted if run not in found(settings)]) and launched != jobs:
        job = [run for run in missing if _group(run) == _group(missing[0])]
        click.echo(
            f"{time.monotonic() - start:5.0f} s, {len(missing)} runs to do: "
            f"{job[0].schedule or 'no network'}, seed {job[0].seed}, {job[0].steps} steps: "
            f"{', '.join(run.method for run in job)}"
        )
        launch(job, settings)
        launched += 1
    there = found(settings)
    lacking = [run for run in plan.runs() if run not in there]
    click.echo(f"{time.monotonic() - start:5.0f} s, {len(lacking)} of {len(plan.runs())} runs are still to do")
    if not lacking:  # what was trained beside the plan is shown, too
        write_page([record for run, record in there.items() if run.steps in (plan.steps, plan.steps // PACE)], RESULT)


def _group(run: Run) -> tuple[str | None, int, int, bool]:
    return run.schedule, run.seed, run.steps, run.method == PEER


def found(settings: dict[str, Any]) -> dict[Run, dict[str, Any]]:
    """What earlier launches with the same settings found; the last one counts."""
    file = BUILD / "runs.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    same = [record for record in records if settings.items() <= record.items()]
    return {Run(**{key: record[key] for key in ("method", "schedule", "seed", "steps")}): record for record in same}


def launch(job: Sequence[Run], settings: dict[str, Any]) -> None:
    """Train in the lab, or, without a schedule, on one host of it, where ranks meet in its memory.

    Raises:
        click.ClickException: the training failed.
    """
    wanted = {
        **asdict(job[0]),
        **settings,
        "methods": [run.method for run in job],
        "results": str(BUILD / "runs.jsonl"),
    }
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "HVD_COMPRESS_CACHE": str(BUILD / "cache"),  # calibrated once for all runs, as jobs of one shape on a cluster
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("HOROVOD_CYCLE_TIME", None)
    if job[0].method != PEER:
        # Horovod lets ranks compare notes every millisecond, also where it is given nothing to send. Beyond the first
        # steps ours gives it nothing, and here four ranks share two cores: that took up to a third of a step.
        environment["HOROVOD_CYCLE_TIME"] = "20"
    hosts, slots = (4, 1) if job[0].schedule else (1, 4)
    # The name is part of its hosts' names, and curves are kept by hosts.
    name = "flexible-communication" if job[0].schedule else None
    with Lab(hosts, "1ms", "1gbit", slots, name) as lab:
        status = lab.run([sys.executable, str(HERE / "job.py"), json.dumps(wanted)], env=environment).returncode
    if status != 0:
        raise click.ClickException(f"exit status {status} of job.py {json.dumps(wanted)}")


if __name__ == "__main__":
    main()
