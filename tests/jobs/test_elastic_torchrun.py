"""Jobs that torchrun starts anew when a rank is killed, or a host comes or goes: they go on from copies in memory."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from tests.jobs.comes_and_goes import Job, kill, launched, require_exact

AGENT = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "20"]


def job(options: Sequence[str], program: str, *arguments: str) -> AbstractContextManager[Job]:
    return launched(*AGENT, *options, "-m", f"tests.jobs.programs.{program}", *arguments)


@pytest.mark.parametrize(("program", "name"), [("elastic", "topk"), ("elastic_ddp", "none"), ("elastic_ddp", "topk")])
def test_random_kills(program: str, name: str) -> None:
    draw = random.Random(program + name)
    with job(["--standalone", "--nproc-per-node", "2"], program, name, "150", "0.05") as running:
        for times in range(1, 3):
            running.until_met(2, times)
            running.until_steps(2)
            time.sleep(3 * draw.random())
            kill(draw.choice(list(running.members().values())))
        require_exact(running, 2)
        assert len(running.said(r" enters step [1-9]\d* as rank \d of 2$")) == 4, (
            "they have gone on, and not begun anew"
        )
        assert len(running.said(r" owes [1-9]\d* elements")) == (2 if name == "topk" else 0)
        end = time.monotonic() + 60
        while list(Path("/dev/shm").glob(f"hvd_compress-{os.getuid()}/*-{running.process.pid}-*")):
            assert time.monotonic() < end
            time.sleep(0.1)


def test_a_host_that_is_lost_and_another_that_comes() -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    options = ["--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    options += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf"]
    timing, arguments = "last_call_timeout=2,join_timeout=120", ("elastic_ddp", "dense", "400", "0.05")
    with job([*options, f"{timing},is_host=true"], *arguments) as first:
        options.append(f"{timing},is_host=false")
        with job(options, *arguments) as second:
            first.until(lambda: bool(first.said(r" of 2$") and second.said(r" of 2$")))
            time.sleep(2)
            workers = psutil.Process(second.process.pid).children(recursive=True)
            second.process.send_signal(signal.SIGKILL)
            for each in workers:
                kill(each.pid)
        first.until(lambda: bool(first.said(r" enters step [1-9]\d* as rank 0 of 1$")))
        with job(options, *arguments) as third:
            require_exact(first, 1)
            require_exact(third, 1)
            assert third.said(r" enters step [1-9]\d* as rank \d of 2$")
