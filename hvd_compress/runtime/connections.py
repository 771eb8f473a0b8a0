"""Connections between rank 0 and all others, on which a thread sleeps until something comes."""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import secrets
import socket
import struct
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hvd_compress.engines.base import Engine
from hvd_compress.errors import CommunicationError
from hvd_compress.runtime.request import Request

REMEMBERED = 4096
"""Requests that both ends of a connection know by number."""
_SIOCGIFADDR = 0x8915
_IPV6 = Path("/proc/net/if_inet6")
"""Addresses of IPv6, in hexadecimal digits; the fourth word of a line is 00 for those that other hosts can reach."""
_TOKEN_BYTES = 32
_WELCOME = b"w"
_WELCOME_S = 30.0
"""So long rank 0 may be busy with other callers."""
_HANDSHAKE_S = 3.0
"""So long one address, and one caller, may take: others may answer."""
_PAUSE_S = 0.1
_STUCK_S = 5.0
"""A process that is stopped: buffers hold thousands of messages, and everybody else waits meanwhile."""


def connect(engine: Engine, timeout_s: float) -> dict[int, Connection]:
    """Return by rank the connections that this rank has: rank 0 one with each other, those one with rank 0.

    Collective over the engine, by which rank 0 tells where it listens, and a token that who connects must bring.

    Raises CommunicationError where somebody does not come in time.
    """
    if engine.world_size == 1:
        return {}
    if engine.rank:
        endpoint = engine.allgather_json(None)[0]
        return {0: _call(engine.rank, endpoint, timeout_s)}
    with _server(engine.world_size) as server:
        token = secrets.token_bytes(_TOKEN_BYTES)
        engine.allgather_json([_addresses(), server.getsockname()[1], token.hex()])
        end = time.monotonic() + timeout_s
        connections: dict[int, Connection] = {}
        while len(connections) < engine.world_size - 1:
            server.settimeout(max(0.01, end - time.monotonic()))
            try:
                found, _ = server.accept()
            except TimeoutError:
                missing = [rank for rank in range(1, engine.world_size) if rank not in connections]
                raise CommunicationError(f"ranks {missing} did not connect to rank 0 in {timeout_s:g} s") from None
            rank = _rank_of(found, token)
            if rank is None:
                found.close()
                continue
            if rank in connections:  # it did not get the answer in time, and calls again
                connections[rank].close()
            connections[rank] = _connection(found, timeout_s)
        return connections


def _server(backlog: int) -> socket.socket:
    """Return one that hears IPv4, and IPv6 where this host has both."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # it is switched off
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=backlog)


def _rank_of(found: socket.socket, token: bytes) -> int | None:
    """Return which rank has connected, and welcome it; None for a stranger, or one that is gone again."""
    found.settimeout(_HANDSHAKE_S)
    received = b""
    try:
        while len(received) < _TOKEN_BYTES + 4 and (more := found.recv(_TOKEN_BYTES + 4 - len(received))):
            received += more
        if len(received) < _TOKEN_BYTES + 4 or not hmac.compare_digest(received[:_TOKEN_BYTES], token):
            return None
        found.sendall(_WELCOME)
    except OSError:
        return None
    return int.from_bytes(received[_TOKEN_BYTES:], "big")


def _call(rank: int, endpoint: Any, timeout_s: float) -> Connection:
    addresses, port, token = endpoint
    end = time.monotonic() + timeout_s
    failed: Exception | None = None
    while True:
        for address in addresses:
            try:
                found = socket.create_connection((address, port), _HANDSHAKE_S)
                found.sendall(bytes.fromhex(token) + rank.to_bytes(4, "big"))
                found.settimeout(max(_HANDSHAKE_S, min(_WELCOME_S, end - time.monotonic())))
                if found.recv(len(_WELCOME)) == _WELCOME:
                    return _connection(found, timeout_s)
                found.close()  # somebody else listens there
            except OSError as error:
                failed = error
        if time.monotonic() > end:
            raise CommunicationError(
                f"rank {rank} cannot connect to rank 0 at {addresses} port {port}: {failed}; allow TCP between hosts"
            )
        time.sleep(_PAUSE_S)


def _connection(found: socket.socket, timeout_s: float) -> Connection:
    """Return a connection that raises BlockingIOError where its other end reads nothing, or stops within a message."""
    found.settimeout(None)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seconds = min(timeout_s, _STUCK_S)
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        found.setsockopt(socket.SOL_SOCKET, option, limit)
    return Connection(found.detach())


def cut(connection: Connection) -> None:
    """Let both ends read that it is over."""
    with socket.socket(fileno=os.dup(connection.fileno())) as found, suppress(OSError):  # it may be over already
        found.shutdown(socket.SHUT_RDWR)


def _addresses() -> list[str]:
    """Return this host's addresses, the loopback last: another host would find itself by it."""
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                packed = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an address
                continue
            found.append(socket.inet_ntoa(packed[20:24]))
    if _IPV6.exists():
        lines = [line.split() for line in _IPV6.read_text().splitlines()]
        found += [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line[0])) for line in lines if line[3] == "00"]
    return sorted(found, key=lambda address: address.startswith("127."))


class RequestCache:
    """One end of a connection: a request that was sent before is a number. Both ends number alike."""

    def __init__(self) -> None:
        self._numbers: dict[Request, int] = {}
        self._known: list[Request] = []

    def encode(self, request: Request) -> Any:
        """Return what to send for a request, as JSON."""
        number = self._numbers.get(request)
        if number is not None:
            return number
        self._learn(request)
        return request

    def decode(self, sent: Any) -> Request:
        """Return the request that the other end has encoded."""
        if isinstance(sent, int):
            return self._known[sent]
        request = Request.of(sent)
        self._learn(request)
        return request

    def _learn(self, request: Request) -> None:
        if len(self._known) == REMEMBERED:  # names that nobody gave are new each time
            self._numbers.clear()
            self._known.clear()
        self._numbers[request] = len(self._known)
        self._known.append(request)


def encode_message(kind: str, *fields: Any) -> bytes:
    """Return a message."""
    return json.dumps([kind, *fields], separators=(",", ":")).encode()
