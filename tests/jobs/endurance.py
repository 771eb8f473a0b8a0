"""One job of very many steps, in which a rank is killed, and another comes for it, again and again.

    python -m tests.jobs.endurance --steps 1000000 --every 10000

Prints what a process that stayed held in memory, threads and files, and whether every whole number was counted.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click
import psutil

from benchmarks.frame.page import table
from tests.jobs.comes_and_goes import Job, kill, launched
from tests.jobs.test_elastic import COMMAND

SOON_S = 12.0
"""A host whose processes end sooner gets no more."""


def lived_s(process: int) -> float:
    try:
        return time.time() - psutil.Process(process).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def said(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in list(job.lines) if line.startswith("{")]


@click.command(help=__doc__)
@click.option("--steps", default=1_000_000, show_default=True)
@click.option("--every", default=10_000, show_default=True, help="Steps between deaths.")
@click.option("--seconds", default=3600.0, show_default=True, help="After which the rest is left out.")
def main(steps: int, every: int, seconds: float) -> None:
    words = ["-np", "2", "--min-np", "1", sys.executable, "-m", "tests.jobs.programs.endures", str(steps), str(every)]
    begun, deaths, place, stays = time.monotonic(), 0, 0, 0
    with launched(COMMAND, "run", *words) as job:
        while job.process.poll() is None and time.monotonic() - begun < seconds:
            time.sleep(0.5)
            found = said(job)
            ranks = {each["rank"]: each["pid"] for each in found if "size" in each}
            now = max((each["step"] for each in found if "step" in each), default=0)
            met = [each for each in found if "size" in each]
            if not met or met[-1]["size"] != 2:
                continue
            stays = stays or ranks[0]
            victims = [each["pid"] for each in met[-2:] if each["pid"] != stays and lived_s(each["pid"]) > SOON_S]
            if now >= place + every and now < steps - every and victims:
                kill(victims[0])
                deaths, place = deaths + 1, place + every
                if deaths % 10 == 1:
                    click.echo(f"step {now}, {deaths} deaths, {time.monotonic() - begun:.0f} s", err=True)
        finished = job.process.poll() is not None
    found = said(job)
    own = [each for each in found if each["pid"] == stays and "rss_kib" in each]
    rows = [
        [f"{each['step']:,}", f"{each['rss_kib'] / 1024:.1f}", each["threads"], each["files"], each["shared"]]
        for each in (own[0], *own[len(own) // 10 :: max(1, len(own) // 10)], own[-1])
    ]
    ends = [each["exact"] for each in found if "ends" in each]
    print(f"{own[-1]['step']:,} steps, {deaths} deaths, in {time.monotonic() - begun:.0f} s: ", end="")
    print(f"ended {finished and job.process.returncode == 0}, every sum exact {bool(ends) and all(ends)}")
    print(table(["step", "MiB", "threads", "files", "files in /dev/shm"], rows))
    sys.exit(not (finished and job.process.returncode == 0 and bool(ends) and all(ends)))


if __name__ == "__main__":
    main()
