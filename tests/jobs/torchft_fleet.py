"""Replicas under torchft's lighthouse, which are killed, stopped and started while they train."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import torch
from torchft.coordination import LighthouseServer

from tests.jobs.comes_and_goes import LIMIT_S, runs
from tests.jobs.launch import CHECKOUT
from tests.jobs.programs.torchft_ddp import NUMEL, gradient

STEP_S = "0.05"


EVENTS = ("killed", "stopped", "stopped briefly")


class Fleet:
    """Replicas of one training, each a process.

    Attributes:
        processes: by replica, the last one.
    """

    def __init__(self, folder: Path, address: str, compression: str, quorum: str, program: str) -> None:
        self._folder, self._log = folder, (folder / "log").open("ab")
        self._program = [sys.executable, f"tests/jobs/programs/{program}.py"]
        self._shards = [""]
        if program == "torchft_sharded":
            self._program[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            self._shards = [" shard 0", " shard 1"]
        self._words = [str(folder), compression, STEP_S, quorum]
        self._variables = {
            **os.environ,
            "TORCHFT_LIGHTHOUSE": address,
            "HVD_COMPRESS_ADAPT": "0",
            "HVD_COMPRESS_TIMEOUT_S": "3",
            "PYTHONPATH": str(CHECKOUT),
        }
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *replicas: int) -> None:
        for replica in replicas:
            self.processes[replica] = self._start(replica, *self._words)

    def start_apart(self, replica: int, compression: str) -> subprocess.Popen[bytes]:
        """Return one of another compression, of which nothing is expected."""
        folder, _, *others = self._words
        return self._start(replica, folder, compression, *others)

    def _start(self, replica: int, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._program, str(replica), *words],
            start_new_session=True,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=CHECKOUT,
            env=self._variables,
        )

    def kill(self, replica: int) -> None:
        os.killpg(self.processes[replica].pid, signal.SIGKILL)
        self.processes[replica].wait()

    @contextmanager
    def stopped(self, replica: int) -> Iterator[None]:
        group = self.processes[replica].pid
        os.killpg(group, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(group, signal.SIGCONT)

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            failed = [each for each in self.processes.values() if each.poll() not in (None, 0, -signal.SIGKILL)]
            assert time.monotonic() < end, self.log()
            assert not failed, self.log()
            time.sleep(0.02)

    def steps(self, replica: int) -> int:
        """Return how many steps the last process of a replica has shown that count."""
        return self.log().count(f"\n{self.processes[replica].pid} step ")

    def until_steps(self, replica: int, more: int) -> None:
        wanted = self.steps(replica) + more
        self.until(lambda: self.steps(replica) >= wanted or self.processes[replica].poll() is not None)

    def happen(self, what: str, replica: int) -> None:
        """One of EVENTS."""
        if what == "killed":
            self.kill(replica)
            self.start(replica)
        else:
            with self.stopped(replica):
                time.sleep(0.5 if what == "stopped briefly" else 4.0)
        self.until_steps(replica, 2)

    def until_end(self) -> None:
        """Let all come to the end, a while from now."""
        (self._folder / "end.new").write_text(str(max(map(int, re.findall(r" step (\d+) of ", self.log()))) + 30))
        (self._folder / "end.new").rename(self._folder / "end")
        self.until(lambda: all(each.poll() is not None for each in self.processes.values()))

    def require_exact(self) -> None:
        """All that was computed in steps that count is in their results, or is owed; and replicas are alike."""
        for shard in self._shards:
            self._require_exact(f"[0-9]{shard}.pt")

    def _require_exact(self, files: str) -> None:
        ends = [torch.load(path, weights_only=True) for path in sorted(self._folder.glob(files))]
        assert len(ends) == len(self.processes), self.log()
        first = ends[0]
        for end in ends[1:]:
            assert torch.equal(end["weight"], first["weight"]), self.log()
            assert end["present"] == first["present"], self.log()
        computed = first.get("moved", torch.zeros(NUMEL))
        for step, replicas in enumerate(first["present"]):
            for replica in replicas:
                computed += gradient(step, replica)
        assert torch.equal(first["total"] + sum(end["owed"] for end in ends), computed), self.log()

    def close(self) -> None:
        for process in self.processes.values():
            with suppress(psutil.NoSuchProcess):
                if runs(process.pid):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._log.close()


@contextmanager
def fleet(folder: Path, compression: str, quorum: str, program: str = "torchft_ddp") -> Iterator[Fleet]:
    """Yield one that has a lighthouse, and no replica yet."""
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=1000, quorum_tick_ms=50, heartbeat_timeout_ms=2000
    )
    port = lighthouse.address().rsplit(":", 1)[1]
    made = Fleet(folder, f"http://127.0.0.1:{port}", compression, quorum, program)
    try:
        yield made
    finally:
        made.close()
        lighthouse.shutdown()
