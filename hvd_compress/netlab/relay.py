"""The process that is a lab: the compiled relay, whose end is the end of all hosts."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError
from hvd_compress.netlab import network, places
from hvd_compress.netlab.link import Link, Trouble

PROGRAM = Path(__file__).parent / "netlab_relay"
MAX_HOSTS = 64
_counter = itertools.count()


@dataclass(frozen=True)
class Status:
    """What the relay says of itself.

    Attributes:
        links: of hosts 1, 2, ...
        sent_bytes: that each host has sent to others, with headers.
        is_realtime: whether the relay goes before other processes. Without, waiting ranks make it late.
        latest_s: the longest that a frame was delivered after it was due.
        lost_frames: frames that the kernel did not take, for want of memory.
        dropped_frames: frames that the lab's `loss` has dropped.
        late_share: the share of all frames that was delivered more than 0.3 ms after it was due.
    """

    links: tuple[Link, ...]
    sent_bytes: tuple[int, ...]
    is_realtime: bool
    latest_s: float
    lost_frames: int
    dropped_frames: int
    late_share: float


class Relay:
    """Hosts 1 to `hosts` and the head, connected. Raises UnsupportedError where this process may not make them."""

    def __init__(self, name: str | None, hosts: int, link: Link, trouble: Trouble, linux_tcp: bool = False) -> None:
        _check_machine()
        others = places.running()  # and what dead ones have left is gone
        self.name = name or f"lab{os.getpid()}-{next(_counter)}"
        if self.name in others:
            raise ConfigError(f"a lab {self.name!r} is running already: choose another name")
        places.FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
        latency_ns, socket = round(1e9 * link.latency_s), places.socket_of(self.name)
        line = [latency_ns, link.bytes_per_s, round(1e9 * trouble.jitter_s), trouble.loss]
        words = [PROGRAM, "relay", hosts, *line, self.name, socket, os.getpid()]
        # A session of its own: Ctrl-C is for the job, and the lab ends after it.
        self._process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            self._find_hosts()
        except BaseException:
            self._end()  # and no more: the name may be that of another lab
            raise
        try:
            self._set_up(linux_tcp, by_packet=trouble.loss > 0)
        except BaseException:
            self.close()
            raise

    def _find_hosts(self) -> None:
        assert self._process.stdout
        line = self._process.stdout.readline().split()
        if not line:
            _, complaint = self._process.communicate()
            raise UnsupportedError(f"the network lab cannot start: {complaint.strip() or 'the relay ended'}")
        self._head, *pids = map(int, line)
        self.host_pids = {f"{self.name}-{host}": pid for host, pid in enumerate(pids, start=1)}

    def on_head(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` where jobs are started from: it reaches all hosts, and is not held up."""
        return [str(PROGRAM), "enter", str(self._head), *command]

    def on_host(self, host: int, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on a host, 1 being the first."""
        pid = self.host_pids[f"{self.name}-{host}"]
        return self.on_head([str(PROGRAM), "enter", str(pid), *command])

    def bind(self, host: int, core: int) -> None:
        """Let what is started on a host from now on run on one core."""
        program = f"import os; os.sched_setaffinity(1, {{{core}}})"  # its first process, from which others take it
        subprocess.run(self.on_host(host, [sys.executable, "-c", program]), check=True)

    def status(self) -> Status:
        first, *rows = places.ask(self.name, "show").splitlines()
        values = first.split()
        fields = [row.split() for row in rows]
        return Status(
            links=tuple(Link(float(latency_ns) / 1e9, float(rate)) for _, latency_ns, rate, _ in fields),
            sent_bytes=tuple(int(sent) for *_, sent in fields),
            is_realtime=values[1] == "1",
            latest_s=int(values[3]) / 1e9,
            lost_frames=int(values[5]),
            dropped_frames=int(values[11]),
            late_share=int(values[9]) / max(1, int(values[7])),
        )

    def check_alive(self) -> None:
        """Raises CommunicationError when the relay has ended, and all hosts with it."""
        if self._process.poll() is not None:
            assert self._process.stderr
            said = "" if self._process.stderr.closed else self._process.stderr.read().strip()
            ended = f"the relay of the lab {self.name!r} ended with status {self._process.returncode}"
            raise CommunicationError(f"{ended}, and all hosts with it" + (f": {said}" if said else ""))

    def close(self) -> None:
        """End the relay, all hosts and whatever runs on them."""
        self._end()
        places.socket_of(self.name).unlink(missing_ok=True)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream:
                stream.close()

    def _set_up(self, linux_tcp: bool, by_packet: bool) -> None:
        hosts = len(self.host_pids)
        commands = [self.on_head(["sh"]), *(self.on_host(host, ["sh"]) for host in range(1, hosts + 1))]
        processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for command in commands
        ]
        for port, process in enumerate(processes):
            output, _ = process.communicate(network.script(port, hosts, linux_tcp, by_packet))
            if process.returncode != 0:
                raise UnsupportedError(f"the network of host {port} cannot be set up: {output.strip()}")


def _check_machine() -> None:
    if sys.platform != "linux":
        raise UnsupportedError("the network lab runs on Linux alone: its hosts are network namespaces with TAP devices")
    if not PROGRAM.exists():
        raise UnsupportedError(
            f"{PROGRAM} is missing, the relay of the network lab: hvd_compress was built without it; install it again, "
            "without HVD_COMPRESS_RELAY=0, or run `make native` in a checkout"
        )
    if os.geteuid() != 0:
        raise UnsupportedError("the network lab makes network namespaces and TAP devices: run it as root")
    if shutil.which("ip") is None:
        raise UnsupportedError("the network lab needs the command ip: install iproute2")
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        raise UnsupportedError(f"the network lab needs TAP devices, and /dev/net/tun does not open: {error}") from None
