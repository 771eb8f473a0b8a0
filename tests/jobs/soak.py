"""Kill, stop, ask to leave and start ranks at random, for as long as one likes, and add up what was counted.

    python -m tests.jobs.soak --way run --events 60
    python -m tests.jobs.soak --way local --events 50
    python -m tests.jobs.soak --way torchrun --events 50
    python -m tests.jobs.soak --way torchft --events 50

Prints what was done, and whether every job has ended with all ranks alike and every whole number where it belongs; of
local steps, whose means round, whether they end at a loss.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from tests.jobs.comes_and_goes import Job, kill, launched, require_alike, require_exact, runs
from tests.jobs.test_elastic import COMMAND
from tests.jobs.test_elastic_torchrun import AGENT
from tests.jobs.torchft_fleet import EVENTS, fleet

STOPPED_S = 4.0
"""After which the others go on without a rank."""
LOCAL_STEPS = [("dense", "1", "0"), ("int4", "1", "0"), ("int4", "2", "2"), ("int4", "3", "1"), ("dense", "1", "4")]
"""Compression, fragments, steps of delay."""


class Soak:
    """One job, and what is done to it.

    Attributes:
        done: how often, by what it is called.
        met: processes that something was done to.
    """

    def __init__(self, job: Job, draw: random.Random, hosts: Path) -> None:
        self._job, self._draw, self._hosts = job, draw, hosts
        self._stays = -1
        self.met = set[int]()
        self.done: Counter[str] = Counter()

    def go(self, most: int, events: dict[str, Callable[[Soak], None]]) -> None:
        """Until the job has ended, or as many events have come to pass."""
        self._job.until_steps(1)
        self._stays = sorted(self._job.members().values())[self._draw.randrange(2)]  # all at once end a job
        while self._job.process.poll() is None and self.done.total() < most and not self._job.said(" ends: "):
            name = self._draw.choice(list(events))
            events[name](self)
            time.sleep(3 * self._draw.random())

    def _victims(self, name: str, count: int) -> list[int]:
        members = [each for each in self._job.members().values() if each != self._stays and runs(each)]
        found = self._draw.sample(members, min(len(members), count))
        self.done[name] += len(found)
        self.met.update(found)
        return found

    def kill_one(self) -> None:
        for each in self._victims("killed", 1):
            kill(each)

    def kill_two(self) -> None:
        for each in self._victims("killed, two at once", 2):
            kill(each)

    def stop(self) -> None:
        for each in self._victims("stopped", 1):
            self._send(each, signal.SIGSTOP)
            time.sleep(self._draw.choice((0.5, 1.5 * STOPPED_S)))  # too short to be left out, or long enough
            self._send(each, signal.SIGCONT)

    def ask_to_leave(self) -> None:
        for each in self._victims("asked to leave", 1):
            self._send(each, signal.SIGTERM)

    def name_other_hosts(self) -> None:
        self._hosts.write_text(f"localhost:{self._draw.randint(2, 4)}\n")
        self.done["places named"] += 1

    @staticmethod
    def _send(process: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(process, number)


ALL = {
    each.__name__: each for each in (Soak.kill_one, Soak.kill_two, Soak.stop, Soak.ask_to_leave, Soak.name_other_hosts)
}


def with_torchft(events: int, seed: int) -> None:
    """Replicas that keep what they owe are stopped, others are killed, too."""
    done, jobs = Counter[str](), 0
    while done.total() < events:
        draw = random.Random(seed + jobs)
        compression, quorum = draw.choice(("dense", "topk")), draw.choice(("async", "sync"))
        program = draw.choice(("torchft_ddp", "torchft_local"))
        with tempfile.TemporaryDirectory() as directory, fleet(Path(directory), compression, quorum, program) as job:
            job.start(0, 1, 2)
            job.until_steps(0, 5)
            for _ in range(min(10, events - done.total())):
                what = draw.choice(EVENTS if compression == "dense" else EVENTS[1:])
                job.happen(what, draw.randrange(3))
                done[what] += 1
                time.sleep(2 * draw.random())
            job.until_end()
            job.require_exact()
        jobs += 1
        click.echo(f"job {jobs}, {program}, {compression}, {quorum}: {dict(done)} so far: well", err=True)
    print(f"torchft: {jobs} jobs, seed {seed}: {dict(done)}; every sum exact, all replicas alike")


@click.command(help=__doc__)
@click.option("--way", type=click.Choice(("run", "local", "torchrun", "torchft")), default="run", show_default=True)
@click.option("--events", default=60, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(way: str, events: int, seed: int) -> None:
    if way == "torchft":
        with_torchft(events, seed)
        return
    done, jobs, steps, held, losses = Counter[str](), 0, 0, list[tuple[int, ...]](), list[float]()
    while done.total() < events:
        draw = random.Random(seed + jobs)
        with tempfile.TemporaryDirectory() as directory:
            hosts = Path(directory) / "hosts"
            hosts.write_text("localhost:3\n")
            options = ["-np", "3", "--min-np", "1", "--max-np", "4", "--host-discovery-script", f"cat {hosts}"]
            of_run = [COMMAND, "run", *options, sys.executable, "-m"]
            of_torchrun = [*AGENT, "--standalone", "--nproc-per-node", "2", "-m"]
            count, settings = "400" if way == "torchrun" else "1500", draw.choice(LOCAL_STEPS)
            words = {
                "run": [*of_run, "tests.jobs.programs.elastic", "dense", count, "0.02"],
                "local": [*of_run, "tests.jobs.programs.elastic_local", settings[0], count, "0.02", *settings[1:]],
                "torchrun": [*of_torchrun, "tests.jobs.programs.elastic_ddp", "dense", count, "0.02"],
            }[way]
            with launched(*words, timeout_s=60.0 if way == "torchrun" else STOPPED_S) as job:
                soak = Soak(job, draw, hosts)
                soak.go(events - done.total(), {"kill_one": Soak.kill_one} if way == "torchrun" else ALL)
                (require_alike if way == "local" else require_exact)(job, killed=soak.met)
                losses += [float(each[1]) for each in job.said(r" ends: loss (\S+),")]
                done += soak.done
                jobs, steps = jobs + 1, steps + int(count)
                held += [tuple(map(int, each.groups())) for each in job.said(r"(\d+) holds (\d+) files, (\d+) threads")]
                meetings = len(job.said("ranks have met anew"))
            click.echo(f"job {jobs}: {dict(soak.done)}, ranks that say that they met anew {meetings}: well", err=True)
    how = f"losses at most {max(losses):g}" if losses else "every sum exact"
    print(f"{way}: {jobs} jobs of {steps} steps, seed {seed}: {dict(done)}; {how}, all ranks alike")
    for process, count in Counter(each[0] for each in held).most_common(3):
        files = [each[1:] for each in held if each[0] == process]
        print(f"a process in {count} meetings held files and threads {files[:2]} in its first two, {files[-1]} at last")


if __name__ == "__main__":
    main()
