"""The process that decides who is in a job: a thread for those that come, and one for each member."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from hvd_compress.engines.dialing import Endpoint, Listener, channel, cut, encode_message
from hvd_compress.membership.roster import Drop, End, Meet, Order, Over, Roster

VARIABLE = "HVD_COMPRESS_COORDINATOR"
"""Where a process of the job finds its coordinator, and the number of its start, as JSON."""
_TICK_S = 0.2
"""So often it looks at the time."""
_STUCK_S = 5.0
"""A process that is stopped: buffers hold thousands of messages, and everybody else waits meanwhile."""
_MOST_BYTES = 1 << 20
"""Of a message."""


@dataclass
class _Member:
    connection: Connection
    name: str
    start: int
    endpoint: Any = None


class Coordinator:
    """Decides who meets, as Roster does, and tells members so over connections that each of them opens.

    Attributes:
        endpoint: where, and what who comes must bring.
        dropped: starts of processes without which the others go on.
        leaving: starts of processes that leave by themselves.
    """

    def __init__(self, roster: Roster) -> None:
        """Wait for processes."""
        self._roster, self._lock, self._numbers = roster, threading.Lock(), count()
        self._members: dict[int, _Member] = {}
        self.dropped, self.leaving = set[int](), set[int]()
        self._dismissed: dict[int, str] = {}
        self._waits: dict[tuple[int, int], dict[int, int]] = {}
        self._listener = Listener()
        self.endpoint: Endpoint = self._listener.endpoint
        self._closing = False
        self._thread = threading.Thread(target=self._accept_all, name="hvd-compress-coordinator", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> str:
        """Why the job has ended; "" while it goes on."""
        return self._roster.ended

    @property
    def is_finishing(self) -> bool:
        """Whether some members have done all that they were to do: nobody comes or goes any more."""
        return self._roster.is_finishing

    def dismiss(self, start: int, why: str) -> None:
        """A process is to leave the job, once the others have what it owes."""
        with self._lock:
            self._dismissed[start] = why
            self._tell([number for number, each in self._members.items() if each.start == start], "leave", why)

    def ended_process(self, start: int) -> None:
        """A process has ended: whatever holds its connection open, it is gone."""
        with self._lock:
            for each in self._members.values():
                if each.start == start:
                    cut(each.connection)

    def close(self) -> None:
        """The job is over: let threads end. Members that are still there find their coordinator gone."""
        self._closing = True
        self._thread.join()
        self._listener.close()
        with self._lock:
            for member in self._members.values():
                cut(member.connection)

    def _accept_all(self) -> None:
        while not self._closing:
            found = self._listener.take(_TICK_S)
            if found is not None:
                connection = channel(found, _STUCK_S)
                number = next(self._numbers)
                threading.Thread(
                    target=self._serve, args=(number, connection), name=f"hvd-compress-member-{number}", daemon=True
                ).start()
            with self._lock:
                self._carry_out(self._roster.decide(time.monotonic()))

    def _serve(self, number: int, connection: Connection) -> None:
        why = "has ended"
        try:
            while True:
                kind, *fields = json.loads(connection.recv_bytes(_MOST_BYTES))
                with self._lock:
                    self._carry_out(self._answer(number, connection, kind, fields))
                    self._carry_out(self._roster.decide(time.monotonic()))
        except (EOFError, OSError):
            pass
        except (ValueError, TypeError, KeyError) as error:
            why = f"has said what nobody understands ({error})"
        with self._lock:
            self._members.pop(number, None)
            connection.close()
            self._carry_out(self._roster.left(number, why, time.monotonic()))
            self._carry_out(self._roster.decide(time.monotonic()))

    def _answer(self, number: int, connection: Connection, kind: str, fields: Sequence[Any]) -> Iterable[Order]:
        now = time.monotonic()
        if kind == "ready":
            name, endpoint, start = fields
            known = self._members.setdefault(number, _Member(connection, name, start))
            if known.endpoint is None:
                self._roster.came(number, name)
                if start in self._dismissed:  # before it was there
                    self._tell([number], "leave", self._dismissed[start])
            known.endpoint = endpoint
            return self._roster.ready(number, now)
        if kind == "failed":
            generation, why = fields
            return self._roster.failed(number, generation, why, now)
        if kind == "leaves":
            (generation,) = fields
            self._roster.leaves(number, generation)
            return []
        if kind == "trained":
            self._roster.trained(number)
            return []
        if kind == "leaving":
            self.leaving.add(self._members[number].start)
            return []
        if kind == "finished":
            self._roster.finished(number)
            return []
        if kind == "waits":
            generation, group, wait = fields
            if (rank := self._roster.rank_in(number, generation)) is not None:
                self._waits.setdefault((generation, group), {})[rank] = int(wait)
            return []
        if kind == "who waits":
            generation, group, question = fields
            self._tell([number], "waits", question, sorted(self._waits.get((generation, group), {}).items()))
            return []
        raise ValueError(f"a message called {kind!r}")

    def _carry_out(self, orders: Iterable[Order]) -> None:
        for order in orders:
            if isinstance(order, Over):
                self._tell(order.members, "over", order.generation, order.why)
            elif isinstance(order, Meet):
                self._waits.clear()
                endpoints = [self._members[each].endpoint for each in order.members]
                for rank, each in enumerate(order.members):
                    self._tell([each], "meet", order.generation, rank, endpoints, order.why)
            elif isinstance(order, Drop):
                self._tell([order.member], "end", order.why)
                if order.member in self._members:
                    self.dropped.add(self._members[order.member].start)
                    cut(self._members[order.member].connection)
            elif isinstance(order, End):
                self._tell(list(self._members), "end", order.why)

    def _tell(self, members: Iterable[int], kind: str, *fields: Any) -> None:
        for number in members:
            member = self._members.get(number)
            if member is None:
                continue  # its thread has found that it is gone
            try:
                member.connection.send_bytes(encode_message(kind, *fields))
            except OSError:  # the same, or its thread will: what was not read ends with the connection
                cut(member.connection)
