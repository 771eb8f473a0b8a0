"""Connections between processes of a job: who listens, who calls, and by what they know each other."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_compress.errors import CommunicationError, ConfigError

if TYPE_CHECKING:
    from hvd_compress.native.links import Links

_TOKEN_BYTES = 32
_SIOCGIFADDR = 0x8915
_IPV6 = Path("/proc/net/if_inet6")
"""Addresses of IPv6, in hexadecimal digits; the fourth word of a line is 00 for those that other hosts can reach."""
_HELLO = struct.Struct("!QI")
"""After the token: the number of the group that is being made, and the rank in the job."""
_WELCOME = b"w"
_WELCOME_S = 30.0
"""So long the other end may be busy with other callers."""
_FIRST_S = 0.4
"""So long an address may take at first: one that cannot be reached from here must not keep others waiting."""
_HANDSHAKE_S = 3.0
"""So long one address, and one caller, may take: others may answer."""
_PAUSE_S = 0.1
_BACKLOG = 1024


@dataclass(frozen=True)
class Endpoint:
    """Where a process listens, and what who connects must bring."""

    addresses: tuple[str, ...]
    port: int
    token: bytes

    @classmethod
    def of(cls, told: Any) -> Endpoint:
        """Return what another rank has told()."""
        addresses, port, token = told
        return cls(tuple(addresses), int(port), bytes.fromhex(token))

    def told(self) -> list[Any]:
        """Return it for JSON."""
        return [list(self.addresses), self.port, self.token.hex()]


class Listener:
    """Where other processes of the job connect to this one: each brings its token, and says who it is.

    Several threads may accept connections, each for a group of its own.
    """

    def __init__(self) -> None:
        """Listen, on the addresses of the interface that GLOO_SOCKET_IFNAME names, else on all.

        Raises ConfigError where there is no such interface.
        """
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0].strip()
        addresses = _addresses(interface)
        self._server = _server(addresses[0] if interface else "")
        port, token = self._server.getsockname()[1], secrets.token_bytes(_TOKEN_BYTES)
        self.endpoint = Endpoint(tuple(addresses), port, token)
        self._lock = threading.Lock()
        self._called: dict[tuple[int, int], socket.socket] = {}

    def accept(
        self, group: int, ranks: Iterable[int], timeout_s: float, refuse: Callable[[], None] = lambda: None
    ) -> dict[int, socket.socket]:
        """Return by rank the connections of those that call for a group.

        Args:
            refuse: raises what ends the waiting early.

        Raises CommunicationError where some do not call in time.
        """
        wanted, end = [(group, rank) for rank in ranks], time.monotonic() + timeout_s
        self._forget_gone()
        while True:
            with self._lock:
                if all(each in self._called for each in wanted):
                    return {each[1]: self._called.pop(each) for each in wanted}
                self._take_one(end)
            refuse()
            if time.monotonic() > end:
                missing = [each[1] for each in wanted if each not in self._called]
                raise CommunicationError(f"ranks {missing} did not connect within {timeout_s:g} s: they may have ended")

    def take(self, timeout_s: float) -> socket.socket | None:
        """Return a connection of whoever calls; None where nobody does in time, but strangers."""
        found = self._next(timeout_s)
        return None if found is None else found[1]

    def _take_one(self, end: float) -> None:
        found = self._next(max(0.001, min(_PAUSE_S, end - time.monotonic())))
        if found is None:
            return
        named, connection = found
        if named in self._called:  # it did not get the answer in time, and calls again
            self._called[named].close()
        self._called[named] = connection

    def _forget_gone(self) -> None:
        """Close what was accepted for a group that was not made, as another rank had ended."""
        with self._lock:
            for named, found in list(self._called.items()):
                if _is_gone(found):
                    found.close()
                    del self._called[named]

    def _next(self, timeout_s: float) -> tuple[tuple[int, int], socket.socket] | None:
        """Return who calls next, as group and rank, and the connection."""
        self._server.settimeout(timeout_s)
        try:
            found, _ = self._server.accept()
        except OSError:  # nobody has called in time; or one that is gone again, or this process may open no more files
            return None
        named = _welcomed(found, self.endpoint.token)
        if named is None:
            found.close()
            return None
        return named, found

    def close(self) -> None:
        """Listen no more; connections that were not accepted are closed."""
        self._server.close()
        for found in self._called.values():
            found.close()
        self._called.clear()


def call(
    endpoint: Endpoint, group: int, rank: int, timeout_s: float, refuse: Callable[[], None] = lambda: None
) -> socket.socket:
    """Return a connection to who listens there, as this rank of a group.

    Args:
        rank: of this process, in the job.
        refuse: raises what ends the attempts early.

    Raises CommunicationError where nobody answers in time.
    """
    end, limit_s = time.monotonic() + timeout_s, _FIRST_S
    failed: Exception | None = None
    while True:
        for address in endpoint.addresses:
            refuse()
            try:
                found = socket.create_connection((address, endpoint.port), limit_s)
            except OSError as error:
                failed = error
                continue
            try:
                found.sendall(endpoint.token + _HELLO.pack(group, rank))
                if _answer(found, max(_HANDSHAKE_S, min(_WELCOME_S, end - time.monotonic())), refuse) == _WELCOME:
                    found.settimeout(None)
                    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return found
            except OSError as error:
                failed = error
            found.close()  # somebody else may listen there
        if time.monotonic() > end:
            where = f"{', '.join(endpoint.addresses)} port {endpoint.port}"
            raise CommunicationError(f"rank {rank} cannot connect to {where}: {failed}; allow TCP between hosts")
        time.sleep(_PAUSE_S)
        limit_s = min(2 * limit_s, _HANDSHAKE_S)


def _is_gone(found: socket.socket) -> bool:
    """Return whether the other end has closed a connection of which nothing was read."""
    try:
        return not found.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _answer(found: socket.socket, timeout_s: float, refuse: Callable[[], None]) -> bytes:
    end = time.monotonic() + timeout_s
    found.settimeout(_PAUSE_S)
    while True:
        try:
            return found.recv(len(_WELCOME))
        except TimeoutError:
            refuse()
            if time.monotonic() > end:
                raise


def channel(found: socket.socket, sends_s: float | None = None, receives_s: float | None = None) -> Connection:
    """Return a connection for messages. It takes the socket over.

    Args:
        sends_s: after which it raises BlockingIOError where its other end reads nothing; None for never.
        receives_s: the same where nothing comes.
    """
    for option, seconds in ((socket.SO_SNDTIMEO, sends_s), (socket.SO_RCVTIMEO, receives_s)):
        if seconds is not None:
            found.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))
    return Connection(found.detach())


def cut(connection: Connection) -> None:
    """Let both ends read that it is over."""
    with socket.socket(fileno=os.dup(connection.fileno())) as found, suppress(OSError):  # it may be over already
        found.shutdown(socket.SHUT_RDWR)


def encode_message(kind: str, *fields: Any) -> bytes:
    """Return a message."""
    return json.dumps([kind, *fields], separators=(",", ":")).encode()


def connect(
    own: int,
    endpoints: Mapping[int, Endpoint],
    listener: Listener,
    ranks: Sequence[int],
    name: str,
    timeout_s: float,
    refuse: Callable[[], None] = lambda: None,
) -> Links:
    """Return links between some ranks of a job, this one among them. Collective over them.

    Each calls those of lower numbers, and then waits for the others to call: nobody waits in a circle.

    Args:
        own: the number of this rank.
        endpoints: by rank, where it listens; this one by `listener`.
        ranks: in ascending order.
        name: the same on all of them, and another one for each call.
        timeout_s: how long they may take to come.
        refuse: raises what ends the waiting early.

    Raises CommunicationError where not all come.
    """
    from hvd_compress.native.links import Links  # a launcher listens, and needs no torch

    group, place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"), ranks.index(own)
    found = {rank: call(endpoints[rank], group, own, timeout_s, refuse) for rank in ranks[:place]}
    found |= listener.accept(group, ranks[place + 1 :], timeout_s, refuse)
    return Links([found.get(rank) for rank in ranks], ranks)


def _welcomed(found: socket.socket, token: bytes) -> tuple[int, int] | None:
    """Return for which group who has connected, and welcome it; None for a stranger, or one that is gone again."""
    received, length, end = b"", _TOKEN_BYTES + _HELLO.size, time.monotonic() + _HANDSHAKE_S
    try:
        while len(received) < length:
            found.settimeout(max(0.001, end - time.monotonic()))
            more = found.recv(length - len(received))
            if not more:
                return None
            received += more
        if len(received) < length or not hmac.compare_digest(received[:_TOKEN_BYTES], token):
            return None
        found.sendall(_WELCOME)
        found.settimeout(None)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        return None
    group, rank = _HELLO.unpack(received[_TOKEN_BYTES:])
    return group, rank


def _server(address: str) -> socket.socket:
    """Return one that hears an address, or all: of IPv4, and of IPv6 where this host has both."""
    if address:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, 0), family=family, backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # it is switched off
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=_BACKLOG)


def _addresses(interface: str = "") -> list[str]:
    """Return this host's addresses, the loopback last: another host would find itself by it. Of one interface, its own.

    Raises ConfigError where there is no such interface, or it has no address.
    """
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            if interface not in ("", name):
                continue
            try:
                packed = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an address
                continue
            found.append(socket.inet_ntoa(packed[20:24]))
    if _IPV6.exists():
        lines = [line.split() for line in _IPV6.read_text().splitlines()]
        found += [
            socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line[0]))
            for line in lines
            if line[3] == "00" and interface in ("", line[5])
        ]
    if interface and not found:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise ConfigError(f"GLOO_SOCKET_IFNAME={interface} names no interface with an address here: there are {names}")
    return sorted(found, key=lambda address: address.startswith("127."))
