"""A process of a job whose ranks come and go: it says when it is ready, and learns with whom it meets."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from hvd_compress.engines.dialing import Endpoint, Listener, call, channel, cut, encode_message
from hvd_compress.engines.sockets import Meeting
from hvd_compress.errors import CommunicationError, JobEndedError
from hvd_compress.membership.arrivals import MemberArrivals
from hvd_compress.membership.coordinator import VARIABLE

_ANSWER_S = 5.0
"""What the coordinator may take to say who waits."""


class Member:
    """This process, and its connection with the coordinator.

    Attributes:
        generation: the number of the meeting it is in; 0 before the first.
        why: why that meeting has begun.
        over: why it is over; "" while it goes on.
        name: what others call this process.
        leaving: why it is to leave the job, once others have what it owes; "" while it stays.
    """

    def __init__(self, coordinator: Endpoint, timeout_s: float, start: int = 0) -> None:
        """Connect. Raises CommunicationError where nobody is there.

        Args:
            start: by which the launcher knows this process.
        """
        self._connection: Connection = channel(call(coordinator, 0, os.getpid(), timeout_s))
        self._listener = Listener()
        self.name, self._start = f"process {os.getpid()} on {socket.gethostname()}", start
        self.generation, self.why, self.over, self.leaving = 0, "", "", ""
        self._lock = threading.Lock()
        self._meeting: Meeting | None = None
        self._told: SimpleQueue[Meeting | None] = SimpleQueue()
        self._questions, self._answers = count(), SimpleQueue[tuple[int, dict[int, int]]]()
        self._ended = ""
        self._call: Callable[[str], None] = lambda why: None
        threading.Thread(target=self._hear, name="hvd-compress-membership", daemon=True).start()

    def meet(self) -> Meeting:
        """Leave the last meeting, and wait for the next one. Its engines end when it is over.

        Raises JobEndedError: the job goes on without this process, or not at all.
        """
        self._send("ready", self.name, self._listener.endpoint.told(), self._start)
        found = self._told.get()
        if found is None:
            self._told.put(None)  # for who asks again
            raise JobEndedError(f"{self.name}: {self._ended}")
        return found

    def when_over(self, call: Callable[[str], None]) -> None:
        """Call this with the reason when the meeting is over, or now where it is."""
        self._call = call
        if self.over:
            call(self.over)

    def fail(self, why: str) -> None:
        """An exchange of this meeting has failed here: it is over for all."""
        self._send("failed", self.generation, why)

    def waits(self, generation: int, group: int, wait: int) -> None:
        """This rank is in a wait for a group of ranks of a meeting, each by its number."""
        self._send("waits", generation, group, wait)

    def who_waits(self, generation: int, group: int) -> dict[int, int]:
        """Return, by the ranks of that group that have told, in which wait each is.

        Raises CommunicationError where the coordinator does not answer.
        """
        question, end_s = next(self._questions), monotonic() + _ANSWER_S
        self._send("who waits", generation, group, question)
        with suppress(Empty):
            while True:
                answered, found = self._answers.get(timeout=max(0.0, end_s - monotonic()))
                if answered == question:  # else it is of one that was not answered in time
                    return found
        raise CommunicationError(f"the launcher has not answered within {_ANSWER_S:g} s")

    def leave(self, why: str) -> None:
        """This process is to leave: the meeting is over for all, and in the next one it hands over what it owes."""
        self.leaving = why
        self._send("leaving")
        self.fail(f"it leaves, as {why}")

    def go(self) -> None:
        """This process is in the job no more."""
        self._ended = self._ended or "it has left the job"
        cut(self._connection)

    @property
    def has_ended(self) -> bool:
        """Whether the job goes on without this process, or not at all."""
        return bool(self._ended)

    def trains(self) -> None:
        """This process has all that the others know of the training."""
        self._send("trained")

    def finish(self) -> None:
        """This process has done all that it was to do: the others need not meet anew when it ends."""
        self._send("finished")

    def forget(self) -> None:
        """In a process that was forked: let connections go, which the other process still has."""
        self._connection.close()
        self._listener.close()

    def _send(self, kind: str, *fields: Any) -> None:
        # Where it is gone, the thread that hears says so to whoever waits.
        with suppress(OSError), self._lock:
            self._connection.send_bytes(encode_message(kind, *fields))

    def _hear(self) -> None:
        try:
            while True:
                kind, *fields = json.loads(self._connection.recv_bytes())
                if kind == "meet":
                    self.generation, rank, endpoints, self.why = fields
                    known = [Endpoint.of(each) for each in endpoints]
                    self._call = lambda why: None
                    self.over, self._meeting = "", Meeting(rank, known, self._listener, f"meeting {self.generation}")
                    self._meeting.arrivals = partial(
                        MemberArrivals,
                        partial(self.waits, self.generation),
                        partial(self.who_waits, self.generation),
                        rank,
                        Counter(),
                    )
                    self._told.put(self._meeting)
                elif kind == "over" and fields[0] == self.generation:
                    self._send("leaves", self.generation)
                    self._leave(fields[1])
                elif kind == "waits":
                    question, waits = fields
                    self._answers.put((question, dict(waits)))
                elif kind == "leave":
                    self.leave(fields[0])
                elif kind == "end":
                    self._ended = fields[0]
                    break
        except (EOFError, OSError):
            self._ended = self._ended or "the launcher has ended, and with it the job"
        self._leave(self._ended)
        self._told.put(None)

    def _leave(self, why: str) -> None:
        self.over = why
        if self._meeting is not None:
            self._meeting.end(why)
        self._call(why)


_member: Member | None = None


def _forget() -> None:
    """A process that is forked, as a worker of a DataLoader, would keep connections open when this one is gone."""
    if _member is not None:
        _member.forget()


os.register_at_fork(after_in_child=_forget)


def known() -> Member | None:
    """Return what member() has returned; None before."""
    return _member


def require_together() -> None:
    """Raise CommunicationError where ranks are to meet anew."""
    if _member is not None and _member.over:
        raise CommunicationError(_member.over)


def member(timeout_s: float) -> Member | None:
    """Return this process as a member of the job that has launched it; None where its ranks do not come and go.

    Raises CommunicationError where the coordinator does not answer in time.
    """
    global _member
    if _member is None and VARIABLE in os.environ:
        endpoint, start = json.loads(os.environ[VARIABLE])
        _member = Member(Endpoint.of(endpoint), timeout_s, start)
    return _member
