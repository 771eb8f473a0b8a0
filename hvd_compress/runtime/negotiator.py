"""The thread of a rank that hears what others want, and how the answers come to all."""

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
from hvd_compress.runtime.coordinator import Coordinator
from hvd_compress.runtime.line import Shorthand, connect, cut, packed
from hvd_compress.runtime.request import LEAVE, Request, Response
from hvd_compress.warned import warn_caller

STALLED_S = 60.0
"""As Horovod's: after so long rank 0 warns of who is missing."""
GONE = "is gone: its process has ended, or is stopped"
LOOK_S = 5.0
"""While something waits, rank 0 looks so often whether it waits too long."""


class Negotiator:
    """Brings requests to the coordinator, which is at rank 0, and its answers to all ranks in one order.

    A request leaves in the thread that submits it; one thread receives what comes, and sleeps meanwhile. Rank 0
    answers while at most one answer is unfinished there: what becomes ready in the meantime is fused.

    Args:
        engine: over all ranks. The constructor is collective over it.
        fusion_bytes: as Coordinator.
        timeout_s: how long a tensor waits for ranks that do not submit it.
        deliver: takes each answer, one after the other, the same on all ranks.
        lost: called once, with words, when rank 0 or a rank that has not left is gone.
    """

    def __init__(
        self,
        engine: Engine,
        fusion_bytes: int,
        timeout_s: float,
        deliver: Callable[[Response], None],
        lost: Callable[[str], None],
    ) -> None:
        self._rank, self._timeout_s = engine.rank, timeout_s
        self._deliver, self._lost = deliver, lost
        self._lock = threading.Lock()
        self._lines = connect(engine, timeout_s)
        self._heard = {rank: Shorthand() for rank in self._lines}
        self._told = Shorthand()
        self._coordinator = Coordinator(engine.world_size, fusion_bytes) if not self._rank else None
        self._unfinished = 0
        self._left: set[int] = set()
        self._ended = self._left_itself = False
        self._pause_s = min(LOOK_S, timeout_s / 2)
        self._heard_at = self._told_at = self._look_at = time.monotonic()
        self._pipe = os.pipe()  # wakes it
        self._thread = threading.Thread(target=self._listen, name="hvd-compress-runtime-line", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> None:
        """This rank asks for tensors, in this order."""
        with self._lock:
            if self._coordinator is None:
                self._send(packed("ask", [self._told.encode(request) for request in requests]))
                return
            for request in requests:
                self._coordinator.submit(0, request, time.monotonic())
            self._answer()

    def join(self) -> None:
        """This rank has no more to ask for."""
        with self._lock:
            if self._coordinator is None:
                self._send(packed("join"))
                return
            self._coordinator.join(0)
            self._answer()

    def finished(self) -> None:
        """An answer that was delivered is carried out."""
        with self._lock:
            if self._coordinator is not None:
                self._unfinished -= 1
                self._answer()

    def close(self) -> None:
        """Leave: what others ask for from now on fails where this rank would have to take part.

        What was answered before is delivered: rank 0 says "bye" after it.
        """
        with self._lock:
            if self._left_itself:
                return
            self._left_itself, self._ended = True, self._coordinator is not None
            message = packed("leave", self._why_it_leaves())
            for line in self._lines.values():
                _try_to_send(line, message)
        self._wake()
        self._thread.join(self._timeout_s)
        self._ended = True
        self._wake()
        self._thread.join()
        for line in self._lines.values():
            line.close()
        for end in self._pipe:
            os.close(end)

    def _why_it_leaves(self) -> str:
        """Rank 0 knows of a rank that has left before: the cause, perhaps."""
        before = self._coordinator.first_gone() if self._coordinator is not None else ""
        return f"rank {self._rank} has shut down{before and ', after ' + before}"

    def _send(self, message: bytes) -> None:
        """To rank 0, which may be gone: the thread that listens notices, and says so."""
        _try_to_send(self._lines[0], message)

    def _wake(self) -> None:
        os.write(self._pipe[1], b".")

    def _listen(self) -> None:
        try:
            self._hear_all()
        except Exception as error:  # whatever it is, nobody may wait for a thread that has ended
            why = f"rank {self._rank} hears nothing of other ranks any more: {error!r}"
            if not self._rank:
                for line in self._lines.values():
                    _try_to_send(line, packed("lost", why))
            self._lost(why)
            raise

    def _hear_all(self) -> None:
        pause_s = self._pause_s if self._lines else None
        with DefaultSelector() as sources:
            sources.register(self._pipe[0], EVENT_READ)
            for rank, line in self._lines.items():
                sources.register(line, EVENT_READ, rank)
            while not self._ended and (len(sources.get_map()) > 1 or not self._rank):
                for ready, _ in sources.select(pause_s):
                    if ready.data is None:
                        os.read(ready.fd, 4096)
                    elif not self._hear(ready.data, self._lines[ready.data]):
                        sources.unregister(ready.fileobj)
                if not self._is_in_time():
                    return

    def _is_in_time(self) -> bool:
        """Look whether anything waits too long; on other ranks, whether rank 0 is silent: no more is heard then."""
        now = time.monotonic()
        if now < self._look_at:
            return True
        self._look_at = now + self._pause_s / 10
        if self._coordinator is not None:
            self._look_at_time(now)
        elif now - self._heard_at > self._timeout_s + LOOK_S:
            self._lost(
                f"rank 0 has been silent for {self._timeout_s + LOOK_S:g} s: it is stopped, or cannot be reached"
            )
            return False
        return True

    def _hear(self, rank: int, line: Connection) -> bool:
        """Take a message; return whether more may come."""
        try:
            kind, *said = json.loads(line.recv_bytes())
            self._heard_at = time.monotonic()
        except (EOFError, OSError):
            self._miss(rank)
            return False
        if self._coordinator is None:
            return self._obey(kind, said)
        with self._lock:
            if kind == "ask":
                for each in said[0]:
                    self._coordinator.submit(rank, self._heard[rank].decode(each), time.monotonic())
            elif kind == "join":
                self._coordinator.join(rank)
            else:
                self._left.add(rank)
                self._coordinator.leave(rank, "has shut down")
                _try_to_send(line, packed("bye"))
            self._answer()
        return bool(kind != "leave")

    def _obey(self, kind: str, said: list[Any]) -> bool:
        if kind == "do":
            requests, *others = said[0]
            rest = Response((), *others)
            response = rest._replace(
                requests=tuple(self._heard[0].decode(each) for each in requests),
                to=tuple(rest.to),
                sizes=tuple(tuple(each) if isinstance(each, list) else each for each in rest.sizes),
                absent=tuple(rest.absent),
            )
            self._deliver(response)
        elif kind == "lost":
            self._lost(said[0])
        elif kind == "leave":
            self._left.add(0)
            why = f"{said[0]}, and no rank goes on without it"
            self._deliver(Response((Request(LEAVE, LEAVE),), why, missing=True))  # after what was answered before
        return kind in ("do", "alive")

    def _miss(self, rank: int) -> None:
        if self._left_itself or rank in self._left:
            return
        why = f"rank {rank} {GONE}"
        with self._lock:
            if self._coordinator is not None:
                self._coordinator.leave(rank, GONE)
                for other, line in self._lines.items():
                    if other != rank:
                        _try_to_send(line, packed("lost", why))
        self._lost(why)

    def _answer(self) -> None:
        """Tell all ranks what to do next, where rank 0 has nothing else to do. Held: the lock."""
        assert self._coordinator is not None
        if self._ended or self._unfinished > 1:
            return
        for response in self._coordinator.take():
            said = [[self._told.encode(request) for request in response.requests], *response[1:]]
            message = packed("do", said)
            for line in self._lines.values():
                _try_to_send(line, message)
            self._unfinished += 1
            self._deliver(response)

    def _look_at_time(self, now: float) -> None:
        with self._lock:
            assert self._coordinator is not None
            if now - self._told_at > self._pause_s:
                self._told_at = now
                for line in self._lines.values():
                    _try_to_send(line, packed("alive"))
            late = list(self._coordinator.overdue(now, min(STALLED_S, self._timeout_s / 2)))
            self._coordinator.give_up(now, self._timeout_s)
            self._answer()
        for request, missing, seconds in late:
            with suppress(Warning):  # that are errors, by python -W: not this thread's end
                warn_caller(
                    f"{request.verb} of {request.name!r} has waited {seconds:.0f} s for ranks {missing}: they may have "
                    f"taken another branch, or be slow; it fails after {self._timeout_s:g} s"
                )


def _try_to_send(line: Connection, message: bytes) -> None:
    """To a rank that may be gone, which is noticed where one reads; or be stopped, and take nothing any more."""
    try:
        line.send_bytes(message)
    except BlockingIOError:
        cut(line)  # a part of the message may have left
    except OSError:
        return
