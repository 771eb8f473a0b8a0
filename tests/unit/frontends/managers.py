"""A manager such as torchft's, of one rank among threads, and how their ranks meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from hvd_compress.engines.sockets import Meeting
from hvd_compress.frontends.ddp.quorum import Quorum


class Manager:
    """Of one rank: all take part, unless a test says so."""

    def __init__(self) -> None:
        self.step, self.participants, self.takes_part = 0, 2, True
        self.error: Exception | None = None
        self.commits = True
        self.fails_to_begin: Exception | None = None

    def start_quorum(self) -> None:
        pass

    def should_commit(self) -> bool:
        self.step += self.commits
        return self.commits

    def wait_quorum(self) -> None:
        self.error = self.fails_to_begin

    def errored(self) -> Exception | None:
        return self.error

    def report_error(self, e: Exception) -> None:
        self.error = e

    def is_participating(self) -> bool:
        return self.takes_part

    def num_participants(self) -> int:
        return self.participants

    def current_step(self) -> int:
        return self.step


def meet(number: int, *ranks: Any) -> None:
    for place, rank in enumerate(ranks):
        endpoints = [each.listener.endpoint for each in ranks]
        rank.quorum = Quorum(number, Meeting(place, endpoints, rank.listener, f"quorum {number}"))


def together(ranks: Sequence[Any], body: Callable[[Any], Any]) -> list[Any]:
    found: dict[int, Any] = {}

    def run(rank: Any) -> None:
        try:
            found[rank.rank] = body(rank)
        except BaseException as error:
            found[rank.rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return [found[rank.rank] for rank in ranks]
