"""What a step costs where ranks may come and go, and how soon those that are left take one when a rank has died.

    python -m benchmarks.elastic.step

Jobs by turns: under torchrun without hvd_compress.elastic; with it, where commit() keeps copies; and under
`hvd-compress run --min-np`, whose ranks stay. Ratios are to the first, of the same round.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.frame.circumstances import told
from benchmarks.frame.page import ms, ratio_cells, table

BIN = Path(sys.executable).parent
PROGRAM = ["-m", "benchmarks.elastic.rank"]
TORCHRUN = [str(BIN / "torchrun"), "--standalone", "--max-restarts", "3", "--nproc-per-node"]
ENVIRONMENT = {"HVD_COMPRESS_RUNTIME": "torch", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}


def run(ranks: int) -> list[str]:
    """Return the words that start a job whose ranks stay where one dies."""
    return [str(BIN / "hvd-compress"), "run", "-np", str(ranks), "--min-np", "1", sys.executable]


def lines(words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield what the ranks of a job say, and end it where nobody asks any more."""
    environment = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as job:
        assert job.stdout is not None
        try:
            yield from (json.loads(line) for line in job.stdout if line.startswith("{"))
        finally:
            job.terminate()


def step_s(words: Sequence[str]) -> float:
    """Return the mean of the steps of a job: it has the copies in it."""
    (found,) = [each["step_s"] for each in lines(words) if "step_s" in each]
    return float(found)


def recovery_s(ranks: int) -> float:
    """Return how long after a rank was killed the others have taken a step together, the slowest of them."""
    met, first = dict[int, dict[int, float]](), dict[int, list[float]]()
    victim, killed_s = 0, 0.0
    job = lines([*run(ranks), *PROGRAM, "elastic", "100000"])
    for each in job:
        if "ranks" in each:
            met.setdefault(each["ranks"], {})[each["rank"]] = each["process"]
        elif "first" in each and killed_s == 0.0 and len(met.get(ranks, ())) == ranks:
            first.setdefault(ranks, []).append(each["at_s"])
            if len(first[ranks]) == ranks:
                time.sleep(1.0)
                victim, killed_s = int(met[ranks][ranks - 1]), time.time()
                os.kill(victim, signal.SIGKILL)
        elif "first" in each and killed_s:
            first.setdefault(ranks - 1, []).append(each["at_s"])
            if len(first[ranks - 1]) == ranks - 1:
                job.close()
                return max(first[ranks - 1]) - killed_s
    raise RuntimeError("the job has ended before the ranks that were left had met")


@click.command(help=__doc__)
@click.option("--ranks", default=2, show_default=True, help="Of the jobs that are compared.")
@click.option("--rounds", default=8, show_default=True)
@click.option("--steps", default=150, show_default=True)
@click.option("--kills", default=7, show_default=True, help="Of a rank among four.")
def main(ranks: int, rounds: int, steps: int, kills: int) -> None:
    torchrun = [*TORCHRUN, str(ranks), *PROGRAM]
    jobs = {
        "torchrun": [*torchrun, "plain", str(steps)],
        "torchrun, copies in memory": [*torchrun, "elastic", str(steps)],
        "hvd-compress run --min-np": [*run(ranks), *PROGRAM, "elastic", str(steps)],
    }
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for place in range(rounds):
        for name, words in jobs.items() if place % 2 else reversed(jobs.items()):
            taken[name].append(step_s(words))
            click.echo(f"round {place + 1} of {rounds}: {name}: {ms(taken[name][-1:])} ms", err=True)
    base = taken["torchrun"]
    rows = [
        [name, ms(each), *ratio_cells([mine / other for mine, other in zip(each, base, strict=True)])]
        for name, each in taken.items()
    ]
    print(table(("job", "a step, ms", "of the first", "95 %"), rows))
    found = [recovery_s(4) for _ in range(kills)]
    middle, most = statistics.median(found), max(found)
    print(
        f"\n4 ranks, one killed {kills} times; until the others have taken a step: {middle:.2f} s, at most {most:.2f} s"
    )
    print(told())


if __name__ == "__main__":
    main()
