"""Starts the processes of a job whose ranks come and go, and others where some have ended or hosts have come."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import click

from hvd_compress.membership.coordinator import VARIABLE, Coordinator
from hvd_compress.membership.hosts import LOCAL, PASSED_ON
from hvd_compress.membership.roster import Roster

_TICK_S = 0.1
_DISCOVER_S = 1.0
_FAILURES = 3
"""Of processes in a row, each within _SOON_S of its start, after which a host gets no more."""
_SOON_S = 10.0
_TERM_S = 10.0
_LEAVE_S = 60.0
"""What a process may take to hand over what it owes."""


@dataclass
class _Started:
    """A process.

    Attributes:
        number: of its start.
        leaves_s: when it was asked to leave, or the others went on without it.
        is_terminated: whether it got SIGTERM.
    """

    process: subprocess.Popen[bytes]
    number: int
    started_s: float
    leaves_s: float | None = None
    is_terminated: bool = False


@dataclass
class _Host:
    slots: int = 0
    running: list[_Started] = field(default_factory=list)
    failures: int = 0


class Launcher:
    """The processes of one job. Each finds the coordinator in its environment."""

    def __init__(
        self,
        program: Sequence[str],
        hosts: Callable[[], Mapping[str, int]],
        roster: Roster,
        most: int,
        environment: Mapping[str, str],
    ) -> None:
        """Nothing is started yet.

        Args:
            hosts: returns how many processes each host takes now.
            most: processes at a time.
        """
        self._program, self._discover, self._most, self._environment = program, hosts, most, dict(environment)
        self._coordinator = Coordinator(roster)
        self._hosts: dict[str, _Host] = {}
        self._finishing = self._failed = False
        self._starts = count()
        self._discovered_s = -_DISCOVER_S

    def run(self) -> int:
        """Return the exit status of the job: 0 where all processes that were left have ended well."""
        before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
        before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
        try:
            while not self._is_over():
                self._start_others()
                self._end_those_that_leave()
                time.sleep(_TICK_S)
            status = int(self._failed or bool(self._coordinator.ended))
        except KeyboardInterrupt:
            status = 130
        finally:
            self._coordinator.close()
            self._terminate()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._coordinator.ended:
            click.echo(f"hvd-compress: the job has ended: {self._coordinator.ended}", err=True)
        return status

    def _is_over(self) -> bool:
        for name, host in self._hosts.items():
            for each in list(host.running):
                if each.process.poll() is not None:
                    host.running.remove(each)
                    self._ended(name, host, each)
        is_running = any(host.running for host in self._hosts.values())
        has_slots = any(host.slots and host.failures < _FAILURES for host in self._hosts.values())
        if self._coordinator.ended or self._finishing:
            return not is_running
        if is_running or has_slots or not self._hosts:
            return False
        self._failed = True
        return True

    def _ended(self, name: str, host: _Host, ended: _Started) -> None:
        status, lived_s = ended.process.returncode, time.monotonic() - ended.started_s
        self._coordinator.ended_process(ended.number)
        if ended.leaves_s is not None or ended.number in self._coordinator.dropped | self._coordinator.leaving:
            return
        if status == 0:
            self._finishing = True
            return
        self._failed = self._failed or self._finishing  # nobody takes its place any more
        host.failures = host.failures + 1 if lived_s < _SOON_S else 0
        what = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        more = f"; {name} gets no more, after {_FAILURES} that did at once" if host.failures == _FAILURES else ""
        if not self._coordinator.ended:
            click.echo(f"hvd-compress: a process on {name} has {what}{more}", err=True)

    def _start_others(self) -> None:
        if self._finishing or self._coordinator.is_finishing or self._coordinator.ended:
            return
        if time.monotonic() - self._discovered_s >= _DISCOVER_S:
            self._discovered_s = time.monotonic()
            found = self._discover()
            for name in {*found, *self._hosts}:
                self._hosts.setdefault(name, _Host()).slots = found.get(name, 0)
        for name in sorted(self._hosts):
            host = self._hosts[name]
            for each in host.running[host.slots :]:
                if each.leaves_s is None:
                    each.leaves_s = time.monotonic()
                    self._coordinator.dismiss(each.number, f"{name} takes {host.slots} processes now")
            while host.failures < _FAILURES and len(host.running) < host.slots and self._count() < self._most:
                number = next(self._starts)
                host.running.append(_Started(self._started(name, number), number, time.monotonic()))

    def _end_those_that_leave(self) -> None:
        now_s = time.monotonic()
        for each in (each for host in self._hosts.values() for each in host.running):
            if each.leaves_s is None and each.number in self._coordinator.dropped:
                each.leaves_s = now_s - _LEAVE_S + _TERM_S  # what it owes nobody can take over; it may still say why
            elif each.leaves_s is None and each.number in self._coordinator.leaving:
                each.leaves_s = now_s
            waited_s = 0.0 if each.leaves_s is None else now_s - each.leaves_s
            if waited_s >= _LEAVE_S and not each.is_terminated:
                each.process.terminate()
                each.is_terminated = True
            if waited_s >= _LEAVE_S + _TERM_S:
                each.process.kill()

    def _count(self) -> int:
        return sum(len(host.running) for host in self._hosts.values())

    def _started(self, host: str, number: int) -> subprocess.Popen[bytes]:
        endpoint = json.dumps([self._coordinator.endpoint.told(), number])
        if host == LOCAL:
            return subprocess.Popen(self._program, env={**self._environment, VARIABLE: endpoint})
        names = sorted(name for name in self._environment if name.startswith(PASSED_ON))
        passed = [f"{name}={self._environment[name]}" for name in names]
        script = (
            f"IFS= read -r {VARIABLE}; export {VARIABLE}; cd {shlex.quote(os.getcwd())} && "
            f"exec env {shlex.join([*passed, *self._program])} < /dev/null"
        )
        # The token comes by the pipe: arguments of a command are for all users of a host to see.
        process = subprocess.Popen(["ssh", "-o", "BatchMode=yes", host, script], stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(f"{endpoint}\n".encode())
        process.stdin.close()
        return process

    def _terminate(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        left = [each.process for host in self._hosts.values() for each in host.running]
        for process in left:
            process.terminate()
        end = time.monotonic() + _TERM_S
        for process in left:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
