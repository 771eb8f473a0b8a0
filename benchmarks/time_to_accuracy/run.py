"""Seconds to a given loss: loss against steps without a network, times seconds a step on emulated networks.

    python benchmarks/time_to_accuracy/run.py loss       (hours on 2 cores)
    python benchmarks/time_to_accuracy/run.py seconds    (root)
    python benchmarks/time_to_accuracy/run.py page

What each run found is kept in build/time_to_accuracy, so that an interrupted benchmark goes on where it stopped.
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("HVD_COMPRESS_NUM_THREADS", "1")  # in one process ranks take turns on the cores

import click
from losses import MOST, wanted
from methods import METHODS
from tasks import TASKS

_tasks = click.option("--tasks", default=",".join(TASKS), show_default=True)
_methods = click.option("--methods", default=",".join(METHODS), show_default=True)


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@_tasks
@_methods
@click.option("--seeds", default="1,2,3", show_default=True)
@click.option("--most", default=MOST, show_default=True, help="Steps after which a slow method is given up.")
def loss(tasks: str, methods: str, seeds: str, most: int) -> None:
    """Train with 4 ranks in process, without a network."""
    runs = wanted(tasks.split(","), methods.split(","), [int(seed) for seed in seeds.split(",")])
    missing = [run for run in runs if run.finished(most) is None]
    click.echo(f"{len(runs)} runs, {len(missing)} of them to do")
    start = time.monotonic()
    for number, run in enumerate(missing, start=1):
        click.echo(f"{number} of {len(missing)}: {run.task}, {run.curve}, seed {run.seed}")
        found = run.train(lambda taken, loss: click.echo(f"  {taken} steps: {loss:.3f}"), most)
        click.echo(f"  {found['seconds']:.0f} s; {(time.monotonic() - start) / 60:.0f} min in all")


if __name__ == "__main__":
    main()
