"""An emulated network of hosts on this machine, and the jobs that run on it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from hvd_compress.checks import check_whole
from hvd_compress.errors import ConfigError
from hvd_compress.netlab import mpi, places
from hvd_compress.netlab.link import Link, Trouble, parse_bandwidth, parse_latency
from hvd_compress.netlab.relay import MAX_HOSTS, PROGRAM, Relay, Status
from hvd_compress.netlab.schedule import Schedule

_GRACE_S = 5.0
"""What a job may take to end when it is asked to."""


class Lab:
    """Hosts that reach each other over lines of a given latency and bandwidth, for as long as a `with` block lasts.

        with Lab(hosts=4, latency="1ms", bandwidth="1gbit") as lab:
            lab.run(["python", "train.py"])
            lab.set(latency="20ms", host=2)
            lab.run(["python", "train.py"])

    Everything ends with the block, or with this process, however it ends. Labs do not see each other.

    Args:
        hosts: 1 to 64; they are numbered from 1, and rank 0 runs on host 1.
        latency: of one way between two hosts, with a unit: "4ms".
        bandwidth: of each host's line, in each direction at once, with a unit: "1gbit".
        slots: ranks on each host.
        name: by which `hvd-compress netlab set` knows it; one is made up otherwise.
        jitter: a frame arrives up to so much later, with a unit, in the order in which it was sent.
        loss: the share of packets that is lost, 0.01 being 1 %. Then each packet travels by itself, which costs the
            machine about as much as 20 times the bandwidth.
        own_cores: host n and all that runs on it has core n of this machine for itself, beside the relay.
        linux_tcp: leave TCP as Linux has it, with windows that open slowly, and again after a pause; by default it
            leaves the lines the bottleneck.

    Raises:
        ConfigError: a value is no latency or bandwidth, or is out of range.
        UnsupportedError: this process or machine cannot make a lab; the message says what is missing.
    """

    def __init__(
        self,
        hosts: int,
        latency: str,
        bandwidth: str,
        slots: int = 1,
        name: str | None = None,
        *,
        jitter: str = "0s",
        loss: float = 0.0,
        own_cores: bool = False,
        linux_tcp: bool = False,
    ) -> None:
        check_whole("hosts", hosts, 1, MAX_HOSTS)
        check_whole("slots", slots, 1)
        if name is not None and not (name.isascii() and name.replace("-", "").isalnum() and len(name) <= 40):
            raise ConfigError(f"{name!r} is no name for a lab: use up to 40 letters, digits and hyphens")
        cores = sorted(os.sched_getaffinity(0))
        if own_cores and hosts > len(cores):
            raise ConfigError(f"{hosts} hosts cannot have a core each on a machine of {len(cores)}: have fewer hosts")
        self.hosts, self.slots = hosts, slots
        self._relay = Relay(name, hosts, Link.parse(latency, bandwidth), Trouble.parse(jitter, loss), linux_tcp)
        try:
            for host, core in enumerate(cores[:hosts] if own_cores else (), start=1):
                self._relay.bind(host, core)
        except BaseException:
            self._relay.close()
            raise

    @property
    def name(self) -> str:
        return self._relay.name

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the hosts and everything that runs on them."""
        self._relay.close()

    def set(self, latency: str | None = None, bandwidth: str | None = None, host: int | None = None) -> None:
        """Change all lines, or that of one host, from now on; what is None stays. Raises ConfigError."""
        change(self.name, latency, bandwidth, host)

    def status(self) -> Status:
        """The present links, what each host has sent, and how punctual the relay was."""
        return self._relay.status()

    @contextmanager
    def following(self, schedule: Schedule, epoch_s: float | None = None) -> Iterator[None]:
        """Within this block the network changes as `schedule` says, from now on; then it stays as it is.

        Raises ConfigError where the schedule counts epochs and `epoch_s`, the seconds of one, is missing.
        """
        changes = schedule.in_seconds(epoch_s).changes
        set_link(self.name, changes[0].link)
        start, done = time.monotonic(), threading.Event()
        failures: list[Exception] = []

        def follow() -> None:
            try:
                for change in changes[1:]:
                    if done.wait(max(0.0, start + change.at - time.monotonic())):
                        return
                    set_link(self.name, change.link)
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=follow, name="netlab schedule", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        if failures:
            raise failures[0]

    def start(
        self, program: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start `program` on every host, `slots` times, as an MPI job, and return its launcher.

        The network can change while it runs. `env` (os.environ) and the working directory are those of all ranks,
        `options` are of subprocess.Popen. Raises UnsupportedError where there is no mpirun.
        """
        self._relay.check_alive()
        pids = self._relay.host_pids
        environment = mpi.environment(os.environ if env is None else env, f"{PROGRAM} agent", pids)
        environment[places.NAME_VARIABLE] = self.name
        command = mpi.command(list(pids), self.slots, [str(PROGRAM), "start", *program])
        return subprocess.Popen(self._relay.on_head(command), env=environment, **options)

    def run(
        self,
        program: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run `program` on every host as start() does, and wait for it.

        Returns status and, where `options` ask for pipes, the output. Raises what start() does,
        subprocess.TimeoutExpired after `timeout_s`, when the job has been ended, and CommunicationError when the lab
        ended under the job.
        """
        job = self.start(program, env, **options)
        try:
            output, errors = job.communicate(timeout=timeout_s)
        except BaseException:
            _end(job)
            raise
        self._relay.check_alive()
        return subprocess.CompletedProcess(job.args, job.returncode, output, errors)

    def start_on(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start any command on one host, without MPI. `options` are of subprocess.Popen."""
        self._relay.check_alive()
        if not 1 <= host <= self.hosts:
            raise ConfigError(f"there is no host {host}: this lab has hosts 1 to {self.hosts}")
        return subprocess.Popen(self._relay.on_host(host, command), **options)


def change(name: str, latency: str | None, bandwidth: str | None, host: int | None) -> None:
    """Change the lines of a running lab, of all hosts or of one. Raises ConfigError, also where there is none."""
    latency_ns = "-" if latency is None else str(round(1e9 * parse_latency(latency)))
    bytes_per_s = "-" if bandwidth is None else str(parse_bandwidth(bandwidth))
    places.ask(name, f"set {'all' if host is None else host} {latency_ns} {bytes_per_s}")


def set_link(name: str, link: Link) -> None:
    """Change the lines of all hosts of a running lab. Raises ConfigError where there is none."""
    places.ask(name, f"set all {round(1e9 * link.latency_s)} {link.bytes_per_s}")


def _end(job: subprocess.Popen[Any]) -> None:
    job.send_signal(signal.SIGTERM)
    try:
        job.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        job.kill()
        job.communicate()
