"""Connections between rank 0 and all others, on which a thread sleeps until something comes."""

from __future__ import annotations

import socket
from multiprocessing.connection import Connection
from typing import Any

from hvd_compress.engines.base import Engine
from hvd_compress.engines.dialing import Endpoint, Listener, call, channel
from hvd_compress.runtime.request import Request

REMEMBERED = 4096
"""Requests that both ends of a connection know by number."""
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
        endpoint = Endpoint.of(engine.allgather_json(None)[0])
        return {0: _connection(call(endpoint, 0, engine.rank, timeout_s), timeout_s)}
    listener = Listener()
    try:
        engine.allgather_json(listener.endpoint.told())
        found = listener.accept(0, range(1, engine.world_size), timeout_s)
        return {rank: _connection(each, timeout_s) for rank, each in found.items()}
    finally:
        listener.close()


def _connection(found: socket.socket, timeout_s: float) -> Connection:
    """Return a connection that raises BlockingIOError where its other end reads nothing, or stops within a message."""
    return channel(found, min(timeout_s, _STUCK_S), min(timeout_s, _STUCK_S))


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
