"""Kill ranks and servers of a job with a journal at random moments, again and again, and compare its bits in the end.

    python benchmarks/embedding/kills.py --kills 50

Two ranks train, and one is a server (tests/jobs/programs/journaled.py). Each job goes on behind the last step of the
one before, until a rank of it is killed. Printed: how many steps each had to train again, and whether rows, states and
the dense part end as those of a job that nobody killed.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click

sys.path.append(str(Path(__file__).resolve().parents[2]))
from tests.jobs.launch import Job, launch

TRAINERS, SERVERS = 2, 1
RANKS = TRAINERS + SERVERS


def journaled(steps: int, folder: Path, *moment: str) -> Job:
    return launch("mpirun", "journaled", "horovod", str(steps), str(folder), str(SERVERS), *moment, ranks=RANKS)


def digests(job: Job) -> list[tuple[str, str]]:
    found = sorted(re.findall(r"\[rank (\d)\] (\w{16})", job.output))
    if len(found) != RANKS:
        raise click.ClickException(f"a job that was not killed has failed:\n{job.output}")
    return found


def begun(job: Job) -> int | None:
    """Return with which step a job has begun; None where it was killed while it read its journal."""
    found = re.search(r"begins with step (\d+)", job.output)
    return None if found is None else int(found[1])


@click.command()
@click.option("--kills", default=50, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(kills: int, seed: int) -> None:
    draw, killed, again = random.Random(seed), Counter[int](), Counter[int]()

    def count(reached: int, first: int | None) -> None:
        if first is not None:
            again[reached - first] += 1

    with tempfile.TemporaryDirectory() as folder:
        reached = 0  # steps that the killed rank had trained
        for number in range(kills):
            rank, step = draw.randrange(RANKS), reached + draw.randint(1, 12)
            job = journaled(step + 1000, Path(folder), str(rank), str(step), f"{draw.random() * 0.02:.4f}")
            if job.status == 0 or job.survivors:
                raise click.ClickException(f"kill {number} had no effect:\n{job.output}")
            if number:
                count(reached, begun(job))
            killed[rank] += 1
            reached = step
            click.echo(f"{number + 1} of {kills}: rank {rank} at step {step}", err=True)
        steps = reached + 10
        last = journaled(steps, Path(folder))
        count(reached, begun(last))
        whole = Path(folder) / "whole"
        same = digests(last) == digests(journaled(steps, whole))
    click.echo(f"{kills} kills: " + ", ".join(f"{killed[rank]} of rank {rank}" for rank in range(RANKS)))
    click.echo("steps of the killed rank that were trained again, or ahead of it (-): times")
    for steps_again, times in sorted(again.items()):
        click.echo(f"  {steps_again}: {times}")
    click.echo(f"bits after {steps} steps {'equal' if same else 'DIFFER FROM'} those of a job that nobody killed")
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
