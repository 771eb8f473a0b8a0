"""What a lab carries, measured from host to host with plain sockets."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass

from hvd_compress.errors import CommunicationError
from hvd_compress.netlab.lab import Lab
from hvd_compress.netlab.network import address

_PINGS = 100
_PINGING_S = 1.0


@dataclass(frozen=True)
class Figures:
    """Measured while nothing else, and while every host sends to the next one as fast as it can.

    Attributes:
        idle_latency_s: one way between hosts 1 and 3 (2 where there are no more), the median.
        loaded_latency_s: the same while all hosts send; None for 2 hosts, where it would wait behind
            these bytes.
        bytes_per_s: what each host received from the one before; none for a single host.
    """

    idle_latency_s: float
    loaded_latency_s: float | None
    bytes_per_s: tuple[float, ...]


def measure(lab: Lab, seconds: float = 2.0) -> Figures:
    """Raises CommunicationError where a measurement fails; needs at least 2 hosts."""
    pinged = lab.hosts if lab.hosts == 2 else 3
    pings = str(min(_PINGS, 1 + int(_PINGING_S / (2 * lab.status().links[0].latency_s + 0.002))))
    with _Probes(lab) as probes:
        probes.start(pinged, "echo").wait_until_ready()
        idle = probes.start(1, "ping", address(pinged), pings).number()
        sinks = [probes.start(host, "sink", str(seconds)) for host in range(1, lab.hosts + 1)]
        for sink in sinks:
            sink.wait_until_ready()
        sources = [probes.start(host, "source", address(host % lab.hosts + 1)) for host in range(1, lab.hosts + 1)]
        for source in sources:
            source.wait_until_ready()
        for source in sources:
            source.go()
        loaded = None
        if lab.hosts > 2:
            loaded = probes.start(1, "ping", address(pinged), pings).number()
        rates = tuple(sink.number() for sink in sinks)
    return Figures(idle, loaded, rates)


class _Probe:
    def __init__(self, lab: Lab, host: int, words: tuple[str, ...]) -> None:
        command = [sys.executable, "-m", "hvd_compress.netlab.probe", *words]
        self.what = f"{words[0]} on host {host}"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = lab.start_on(host, command, text=True, **pipes)

    def wait_until_ready(self) -> None:
        assert self.process.stdout
        if self.process.stdout.readline() != "ready\n":
            self._fail()

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def number(self) -> float:
        output, _ = self.process.communicate()
        if self.process.returncode != 0:
            self._fail()
        return float(output)

    def _fail(self) -> None:
        _, complaint = self.process.communicate()
        last = complaint.strip().splitlines()[-1:] or [f"status {self.process.returncode}"]
        raise CommunicationError(f"measuring the lab failed in {self.what}: {last[0]}")


class _Probes(ExitStack):
    """Those that were started are ended with the block."""

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self._lab = lab

    def start(self, host: int, *words: str) -> _Probe:
        probe = _Probe(self._lab, host, words)
        self.enter_context(probe.process)
        self.callback(probe.process.kill)
        return probe
