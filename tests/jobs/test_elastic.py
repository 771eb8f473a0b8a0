"""Jobs of `hvd-compress run` whose ranks are killed, stopped and started: nothing that was counted is lost."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.jobs.comes_and_goes import Job, kill, launched, require_alike, require_exact, runs

COMMAND = str(Path(sys.executable).parent / "hvd-compress")


def job(options: Sequence[str], *arguments: str, timeout_s: float = 60.0) -> AbstractContextManager[Job]:
    program = [sys.executable, "-m", "tests.jobs.programs.elastic"]
    return launched(COMMAND, "run", *options, *program, *arguments, timeout_s=timeout_s)


def test_a_rank_that_is_killed_and_another_that_comes_for_it() -> None:
    with job(["-np", "2", "--min-np", "1"], "dense", "150", "0.05") as running:
        running.until_steps(3)
        os.kill(running.members()[1], signal.SIGKILL)
        running.until_met(1, 1)
        running.until_met(2, 2)
        require_exact(running, 2)
        assert running.said(r"a process on localhost has ended by signal 9")
        # By whoever has noticed first: the coordinator, or the other rank.
        ended, closed = r"rank 1 \(process \d+ on .*\) has ended", "rank 0 .*rank 1 has closed its connection"
        assert running.said(f"ranks have met anew, 1 of them, after: ({ended}|{closed})"), running.lines
        assert running.said(r"ranks have met anew, 2 of them, after: process \d+ on .* has come")


@pytest.mark.parametrize("name", ["none", "dense"])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_kills(name: str, seed: int) -> None:
    """At any moment: within a step, while ranks meet, while one that has come is served."""
    draw, killed = random.Random(seed), set[int]()
    with job(["-np", "3", "--min-np", "1"], name, "400", "0.02") as running:
        running.until_steps(2)
        for _ in range(6):
            time.sleep(3 * draw.random())
            members = list(running.members().values())
            for victim in draw.sample(members, min(len(members) - 1, draw.choice((1, 1, 2)))):
                kill(victim)
                killed.add(victim)
        require_exact(running, killed=killed)


def test_a_rank_that_is_stopped_is_left_out_and_told() -> None:
    with job(["-np", "3", "--min-np", "2", "--max-np", "3"], "topk", "300", "0.05", timeout_s=8.0) as running:
        running.until_steps(2)
        stopped = running.members()[0]
        os.kill(stopped, signal.SIGSTOP)
        running.until_met(2, 1)
        os.kill(stopped, signal.SIGCONT)
        running.until(lambda: bool(running.said(r"JobEndedError: process \d+ on .*: the others have waited 8 s")))
        running.until_met(3, 2)
        assert running.end() == 0, running.lines
        assert [each[1] for each in running.said(r" ends: .* alike (\w+)")] == ["True"] * 3


def test_a_rank_that_stays_stopped_is_ended_and_the_job_with_it() -> None:
    with job(["-np", "2", "--min-np", "1"], "dense", "100", "0.05", timeout_s=4.0) as running:
        running.until_steps(2)
        stopped = running.members()[1]
        os.kill(stopped, signal.SIGSTOP)
        assert running.end() == 0, running.lines
        assert not runs(stopped)
        assert running.said(" ends: exact True, alike True")


FAILS_AT_LAST = """
import sys, time
import hvd_compress.torch as hvd

hvd.init()
rank = hvd.elastic.run(lambda state: hvd.rank())(hvd.elastic.ObjectState())
time.sleep(rank)
sys.exit(3 * rank)
"""


def test_a_process_that_fails_after_the_training_fails_the_job() -> None:
    with launched(COMMAND, "run", "-np", "2", "--min-np", "1", sys.executable, "-c", FAILS_AT_LAST) as running:
        assert running.end() == 1, running.lines
        assert running.said("a process on localhost has ended with status 3")


def test_ranks_that_come_lose_nothing_of_what_others_owe(tmp_path: Path) -> None:
    """By a script that names the hosts there are, as Horovod's."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")
    options = ["-np", "2", "--min-np", "2", "--max-np", "4", "--host-discovery-script", f"cat {hosts}"]
    with job(options, "topk", "300", "0.05") as running:
        running.until_steps(2)
        hosts.write_text("localhost:4\n")
        running.until(lambda: bool(running.said(" of 4$")))
        require_exact(running, 4)


def test_ranks_that_leave_hand_over_what_they_owe(tmp_path: Path) -> None:
    """One whose place a script names no more, and one by SIGTERM, for which another comes."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:4\n")
    options = ["-np", "4", "--min-np", "2", "--host-discovery-script", f"cat {hosts}"]
    with job(options, "topk", "400", "0.05") as running:
        running.until_steps(2)
        hosts.write_text("localhost:3\n")
        running.until_met(3, 1)
        running.until_steps(2)
        os.kill(running.members()[1], signal.SIGTERM)
        running.until_met(2, 1)
        running.until_met(3, 2)
        require_exact(running, 3)
        left = r"JobEndedError: process \d+ on \S+: it has left the job, as %s, and others have what it owed"
        assert running.said(left % "localhost takes 3 processes now")
        assert running.said(left % "SIGTERM has asked it to")


LOCAL = [
    ("dense", "1", "0", "5", 0),
    ("int4", "2", "2", "5", 0),
    ("int4", "1", "3", "5", 1),
    ("topk", "1", "0", "250", 2),
]
"""Compression, fragments, steps of delay, steps that are synchronous first, and a seed."""


@pytest.mark.parametrize(("name", "fragments", "delay", "first", "seed"), LOCAL)
def test_local_steps_go_on_where_ranks_are_killed_and_leave(
    name: str, fragments: str, delay: str, first: str, seed: int
) -> None:
    """In synchronous steps, within rounds, in exchanges and in finish(): ranks end alike, and have learned as well.

    Without any trouble the loss ends at 0.00 to 0.05; it begins at 15.
    """
    program, draw, gone = "tests.jobs.programs.elastic_local", random.Random(seed), set[int]()
    words = ["-np", "3", "--min-np", "1", sys.executable, "-m", program, name, "600", "0.02", fragments, delay, first]
    with launched(COMMAND, "run", *words) as running:
        running.until_steps(1)
        stays = draw.choice(list(running.members().values()))
        for _ in range(6):
            others = [each for each in running.members().values() if each != stays]
            victim, way = draw.choice(others or [0]), draw.choice((kill, leave))
            if victim:
                way(victim)
                gone.add(victim)
            time.sleep(2 * draw.random())
        require_alike(running, killed=gone)
        assert all(float(each[1]) < 0.5 for each in running.said(r" ends: loss (\S+),")), running.lines


def leave(process: int) -> None:
    if runs(process):
        os.kill(process, signal.SIGTERM)


def test_too_few_end_the_job_and_all_say_why(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:3\n")
    options = ["-np", "3", "--min-np", "2", "--host-discovery-script", f"cat {hosts}", "--elastic-timeout", "20"]
    with job(options, "dense", "10000", "0.05") as running:
        running.until_steps(2)
        hosts.write_text("localhost:1\n")
        assert running.end() == 1
        why = r"1 processes are there, and --min-np is 2: nobody has come within 20 s \(--elastic-timeout\)"
        assert running.said(rf"JobEndedError: process \d+ on .*: {why}")
        assert running.said(rf"hvd-compress: the job has ended: {why}")


def test_a_launcher_that_is_killed_ends_the_job() -> None:
    with job(["-np", "2", "--min-np", "1"], "dense", "10000", "0.05") as running:
        running.until_steps(2)
        members = running.members().values()
        running.process.kill()
        end = time.monotonic() + 60
        while any(map(runs, members)):
            assert time.monotonic() < end, running.lines
            time.sleep(0.1)
        running.end()
        text = "".join(running.lines)  # where both write at once, parts of lines stand between each other
        for each in members:
            assert re.search(rf"process {each} on \S+: the launcher has ended, and with it the job", text), text
