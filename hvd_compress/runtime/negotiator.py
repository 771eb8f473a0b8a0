"""The thread of a rank that receives what others ask for, and how the answers come to all."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from hvd_compress.engines.base import Engine
from hvd_compress.engines.dialing import cut, encode_message
from hvd_compress.runtime.connections import RequestCache, connect
from hvd_compress.runtime.coordinator import Coordinator
from hvd_compress.runtime.request import LEAVE, Request, Response
from hvd_compress.warned import warn_caller

STALLED_S = 60.0
"""As Horovod's: after so long rank 0 warns of who is missing."""
GONE = "is gone: its process has ended, or is stopped"
CHECK_S = 5.0
"""While something waits, rank 0 looks so often whether it waits too long."""


class Negotiator:
    """Brings requests to the coordinator, which is at rank 0, and its answers to all ranks in one order.

    A request leaves in the thread that submits it; one thread receives what comes, and sleeps meanwhile. Rank 0
    keeps at most two answers unfinished, so that one moves while the next is known; what completes meanwhile is fused.

    Args:
        engine: over all ranks. The constructor is collective over it.
        fusion_bytes: as Coordinator.
        timeout_s: how long a tensor waits for ranks that do not submit it.
        deliver: takes each answer, one after the other, the same on all ranks.
        lost: called with words when rank 0, or a rank that has not left, is gone, or has lost its own runtime.
        watch: called now and then, with time.monotonic(), where there are other ranks.
    """

    def __init__(
        self,
        engine: Engine,
        fusion_bytes: int,
        timeout_s: float,
        deliver: Callable[[Response], None],
        lost: Callable[[str], None],
        watch: Callable[[float], None],
    ) -> None:
        self._rank, self._timeout_s = engine.rank, timeout_s
        self._deliver, self._on_lost, self._watch = deliver, lost, watch
        self._lock = threading.Lock()
        self._connections = connect(engine, timeout_s)
        self._received = {rank: RequestCache() for rank in self._connections}
        self._sent = RequestCache()
        self._coordinator = Coordinator(engine.world_size, fusion_bytes) if not self._rank else None
        self._unfinished = 0
        self._left: set[int] = set()
        self._ended = self._closing = False
        self._check_s = min(CHECK_S, timeout_s / 2)
        self._received_at = self._alive_sent_at = self._next_check_at = time.monotonic()
        self._pipe = os.pipe()  # wakes it
        self._thread = threading.Thread(target=self._listen, name="hvd-compress-runtime-line", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> None:
        """This rank asks for tensors, in this order."""
        with self._lock:
            if self._coordinator is None:
                self._send(encode_message("ask", [self._sent.encode(request) for request in requests]))
                return
            for request in requests:
                self._coordinator.submit(0, request, time.monotonic())
            self._send_responses()

    def join(self) -> None:
        """This rank has no more to ask for."""
        with self._lock:
            if self._coordinator is None:
                self._send(encode_message("join"))
                return
            self._coordinator.join(0, time.monotonic())
            self._send_responses()

    def finished(self) -> None:
        """An answer that was delivered is carried out."""
        with self._lock:
            if self._coordinator is not None:
                self._unfinished -= 1
                self._send_responses()

    def close(self) -> None:
        """Leave: what others ask for from now on fails where this rank would have to take part.

        What was answered before is delivered: rank 0 says "bye" after it.
        """
        with self._lock:
            if self._closing:
                return
            self._closing, self._ended = True, self._coordinator is not None
            message = encode_message("leave", self._why_it_leaves())
            for connection in self._connections.values():
                _try_to_send(connection, message)
        self._wake()
        self._thread.join(self._timeout_s)
        if self._thread.is_alive():
            self._on_lost(f"rank 0 did not answer within {self._timeout_s:g} s of shutdown()")
        self._ended = True
        self._wake()
        self._thread.join()
        for connection in self._connections.values():
            connection.close()
        for end in self._pipe:
            os.close(end)

    def report_lost(self, why: str) -> None:
        """This rank cannot go on; neither can the others, who would wait for it where it was to take part."""
        with self._lock:
            for connection in self._connections.values():
                _try_to_send(connection, encode_message("lost", why))

    def _why_it_leaves(self) -> str:
        """Rank 0 knows of a rank that has left before: the cause, perhaps."""
        before = self._coordinator.first_gone() if self._coordinator is not None else ""
        return f"rank {self._rank} has shut down{before and ', after ' + before}"

    def forget(self) -> None:
        """In a process that was forked: close what it has inherited, and say nothing."""
        self._closing = True
        for connection in self._connections.values():
            connection.close()

    def _send(self, message: bytes) -> None:
        """To rank 0, which may be gone: the thread that listens notices, and says so."""
        _try_to_send(self._connections[0], message)

    def _wake(self) -> None:
        os.write(self._pipe[1], b".")

    def _listen(self) -> None:
        try:
            self._receive_all()
        except Exception as error:  # whatever it is, nobody may wait for a thread that has ended
            why = f"rank {self._rank} receives nothing from other ranks any more: {error!r}"
            if not self._rank:
                for connection in self._connections.values():
                    _try_to_send(connection, encode_message("lost", why))
            self._on_lost(why)
            raise

    def _receive_all(self) -> None:
        pause_s = self._check_s if self._connections else None
        with DefaultSelector() as sources:
            sources.register(self._pipe[0], EVENT_READ)
            for rank, connection in self._connections.items():
                sources.register(connection, EVENT_READ, rank)
            while not self._ended and (len(sources.get_map()) > 1 or not self._rank):
                for ready, _ in sources.select(pause_s):
                    if ready.data is None:
                        os.read(ready.fd, 4096)
                    elif not self._receive(ready.data, self._connections[ready.data]):
                        sources.unregister(ready.fileobj)
                if not self._check_time():
                    return

    def _check_time(self) -> bool:
        """Check what waits too long; on other ranks, whether rank 0 is silent. Return whether to go on receiving."""
        now = time.monotonic()
        if now < self._next_check_at:
            return True
        self._next_check_at = now + self._check_s / 10
        self._watch(now)
        if self._coordinator is not None:
            self._check_deadlines(now)
        elif now - self._received_at > self._timeout_s + CHECK_S:
            self._on_lost(
                f"rank 0 has been silent for {self._timeout_s + CHECK_S:g} s: it is stopped, or cannot be reached"
            )
            return False
        return True

    def _receive(self, rank: int, connection: Connection) -> bool:
        """Take a message; return whether more may come."""
        try:
            kind, *fields = json.loads(connection.recv_bytes())
            self._received_at = time.monotonic()
        except (EOFError, OSError):
            self._on_disconnect(rank)
            return False
        if self._coordinator is None:
            return self._handle_answer(kind, fields)
        with self._lock:
            if kind == "ask":
                for each in fields[0]:
                    self._coordinator.submit(rank, self._received[rank].decode(each), time.monotonic())
            elif kind == "join":
                self._coordinator.join(rank, time.monotonic())
            elif kind == "leave":
                self._left.add(rank)
                self._coordinator.leave(rank, "has shut down")
                _try_to_send(connection, encode_message("bye"))
            self._send_responses()
        if kind == "lost":
            self.report_lost(fields[0])
            self._on_lost(fields[0])
        return bool(kind != "leave")

    def _handle_answer(self, kind: str, fields: list[Any]) -> bool:
        if kind == "do":
            requests, *others = fields[0]
            rest = Response((), *others)
            response = rest._replace(
                requests=tuple(self._received[0].decode(each) for each in requests),
                to=tuple(rest.to),
                sizes=tuple(tuple(each) if isinstance(each, list) else each for each in rest.sizes),
                absent=tuple(rest.absent),
            )
            self._deliver(response)
        elif kind == "lost":
            self._on_lost(fields[0])
        elif kind == "leave":
            self._left.add(0)
            why = f"{fields[0]}, and no rank goes on without it"
            self._deliver(Response((Request(LEAVE, LEAVE),), why, missing=True))  # after what was answered before
        return kind in ("do", "alive")

    def _on_disconnect(self, rank: int) -> None:
        if self._closing or rank in self._left:
            return
        why = f"rank {rank} {GONE}"
        with self._lock:
            if self._coordinator is not None:
                self._coordinator.leave(rank, GONE)
                for other, connection in self._connections.items():
                    if other != rank:
                        _try_to_send(connection, encode_message("lost", why))
        self._on_lost(why)

    def _send_responses(self) -> None:
        """Send all ranks what to do next, where rank 0 has nothing else to do, and errors at once. Held: the lock."""
        assert self._coordinator is not None
        if self._ended:
            return
        for response in self._coordinator.take(errors_alone=self._unfinished > 1):
            fields = [[self._sent.encode(request) for request in response.requests], *response[1:]]
            message = encode_message("do", fields)
            for connection in self._connections.values():
                _try_to_send(connection, message)
            self._unfinished += 1
            self._deliver(response)

    def _check_deadlines(self, now: float) -> None:
        with self._lock:
            assert self._coordinator is not None
            if now - self._alive_sent_at > self._check_s:
                self._alive_sent_at = now
                for connection in self._connections.values():
                    _try_to_send(connection, encode_message("alive"))
            late = list(self._coordinator.overdue(now, min(STALLED_S, self._timeout_s / 2)))
            self._coordinator.expire(now, self._timeout_s)
            self._send_responses()
        for request, missing, seconds in late:
            with suppress(Warning):  # that are errors, by python -W: not this thread's end
                warn_caller(
                    f"{request.verb} of {request.name!r} has waited {seconds:.0f} s for ranks {missing}: they may have "
                    f"taken another branch, or be slow; it fails after HVD_COMPRESS_TIMEOUT_S, {self._timeout_s:g} s"
                )


def _try_to_send(connection: Connection, message: bytes) -> None:
    """To a rank that may be gone, which is noticed where one reads; or be stopped, and take nothing any more."""
    try:
        connection.send_bytes(message)
    except BlockingIOError:
        cut(connection)  # a part of the message may have left
    except OSError:
        return
