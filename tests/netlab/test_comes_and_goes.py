"""A job over hosts of the lab whose lines are bad, or fail: what is slow is waited for, what is gone is left out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvd_compress.netlab import Lab, network
from hvd_compress.netlab.network import INTERFACE
from hvd_compress.netlab.relay import PROGRAM
from tests.jobs.comes_and_goes import Job, require_exact
from tests.netlab.rights import require_lab

pytestmark = pytest.mark.level2
COMMAND = str(Path(sys.executable).parent / "hvd-compress")


@pytest.fixture(scope="module", autouse=True)
def _rights() -> None:
    require_lab()


@contextmanager
def job(
    lab: Lab,
    tools: Path,
    *arguments: str,
    timeout_s: float,
    least: int,
    program: str = "elastic",
    variables: Mapping[str, str] | None = None,
) -> Iterator[Job]:
    """Run a job with a rank on each host, which its launcher enters where it would log in by ssh."""
    ssh = tools / "ssh"
    ssh.write_text(f'#!/bin/sh\nshift 2\nexec {PROGRAM} agent "$@"\n')
    ssh.chmod(0o755)
    pids = lab._relay.host_pids
    hosts = [f"{name}:1" for name in pids]
    variables = {
        **(variables or {}),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "HVD_COMPRESS_NETLAB_HOSTS": ",".join(f"{name}={pid}" for name, pid in pids.items()),
    }
    options = ["-np", str(len(hosts)), "--min-np", str(least), "-H", ",".join(hosts)]
    words = [COMMAND, "run", *options, sys.executable, "-m", f"tests.jobs.programs.{program}", *arguments]
    made = Job(lab._relay.on_head(words), timeout_s, variables)
    try:
        yield made
    finally:
        made.close()


def unplug(lab: Lab, host: int) -> None:
    ip(lab, host, f"link set {INTERFACE} down")


def plug_in(lab: Lab, host: int) -> None:
    """With that comes what the host knew of others."""
    known = [
        line
        for line in network.script(host, lab.hosts, linux_tcp=True).splitlines()
        if line.startswith(("route", "neigh"))
    ]
    ip(lab, host, f"link set {INTERFACE} up", *known)


def ip(lab: Lab, host: int, *lines: str) -> None:
    with lab.start_on(host, ["ip", "-batch", "-"], stdin=subprocess.PIPE, text=True) as done:
        done.communicate("\n".join(lines) + "\n")
        assert done.returncode == 0


def test_packets_that_are_lost_and_a_line_that_drops_for_seconds_are_waited_for(tmp_path: Path) -> None:
    with (
        Lab(3, "1ms", "100mbit", loss=0.01, linux_tcp=True) as lab,
        job(lab, tmp_path, "dense", "100", "0.02", timeout_s=60.0, least=1) as running,
    ):
        running.until_steps(2)
        before = len(running.said(r"^step \d+"))
        unplug(lab, 2)
        time.sleep(4)
        assert len(running.said(r"^step \d+")) <= before + 1  # of a step that had ended
        plug_in(lab, 2)
        require_exact(running, 3)
        assert not running.said("met anew"), running.lines
        assert lab.status().dropped_frames > 0


def test_a_host_that_cannot_be_reached_is_left_out_by_name_and_comes_back(tmp_path: Path) -> None:
    with (
        Lab(3, "1ms", "100mbit", linux_tcp=True) as lab,
        job(lab, tmp_path, "dense", "1500", "0.02", timeout_s=5.0, least=2) as running,
    ):
        running.until_steps(2)
        unplug(lab, 3)
        running.until_met(2, 1)
        plug_in(lab, 3)
        running.until_met(3, 2)
        require_exact(running, 3)
        who = r"rank \d \(process \d+ on \S+\): rank \d, step \d+, .*: no answer within 5 s .*: rank \d has not arrived"
        assert running.said(f"ranks have met anew, 2 of them, after: {who}"), running.lines


def test_auto_sees_that_a_line_has_a_tenth_of_its_bandwidth_and_nobody_is_left_out(tmp_path: Path) -> None:
    """In a job that a host has left before, and has come back to."""
    end, variables = tmp_path / "end", {"HVD_COMPRESS_ADAPT": "1", "HVD_COMPRESS_CACHE": str(tmp_path)}
    with (
        Lab(3, "1ms", "100mbit", linux_tcp=True) as lab,
        job(lab, tmp_path, str(end), timeout_s=8.0, least=2, program="elastic_auto", variables=variables) as running,
    ):
        running.until_steps(3)
        unplug(lab, 3)
        running.until_met(2, 1)
        plug_in(lab, 3)
        running.until_met(3, 2)
        seen = r"^step \d+, (\d+) networks"
        running.until(lambda: len(running.since_meeting(seen)) >= 200)
        meetings, before = len(running.said(" enters step ")), int(running.since_meeting(seen)[-1][1])
        lab.set(bandwidth="10mbit")
        running.until(lambda: int(running.since_meeting(seen)[-1][1]) > before)
        end.touch()
        assert running.end() == 0, running.lines
        assert [each[1] for each in running.said(r" ends: alike (\w+)")] == ["True"] * 3
        assert len(running.said(" enters step ")) == meetings, running.lines
