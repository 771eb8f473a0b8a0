"""How a rank waits for others: for how long, and what a timeout says of who is missing and what to do."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import TypeVar

from hvd_compress.engines.arrivals import Arrivals, describe
from hvd_compress.engines.base import Engine
from hvd_compress.errors import CommunicationError
from hvd_compress.session.failure import Failure
from hvd_compress.session.worker import Worker

T = TypeVar("T")

ANNOUNCE_S = 1.0
"""A rank that has waited so long for others tells them that it waits."""
ANSWER_S = 10.0
"""How long a message of a timeout waits for the launcher to say who is missing."""
LATE = (
    "A rank that evaluates, saves or loads data meanwhile is late: raise HVD_COMPRESS_TIMEOUT_S, on all ranks, or let "
    "all ranks do it. Otherwise that rank waits in a collective that not all ranks call, such as hvd.allreduce() "
    "within `if hvd.rank() == 0`, or averaged() and finish() of local steps, has died, is stopped, takes fewer steps, "
    "or goes another way (a stock compression, hvd.join(), rollout())"
)
SLOW = (
    "Where ranks name different places, one calls what others do not, such as end_epoch(), profile_ccr(), averaged() "
    "or finish() of local steps: call it on all ranks. Where the network is slow, raise HVD_COMPRESS_TIMEOUT_S, on all "
    "ranks"
)


class Waits:
    """The waits of a rank for others. Ranks count them, from 1: all begin theirs in the same order."""

    def __init__(self, timeout_s: float, arrivals: Arrivals | None, failure: Failure) -> None:
        """Nothing is waited for yet.

        Args:
            timeout_s: how long ranks may let each other wait.
            arrivals: tells which ranks a timeout was spent on; without it nothing is known of them.
            failure: learns of what is waited for and fails, or does not come.
        """
        self.timeout_s = timeout_s
        self._messenger: Worker | None = None  # from the first long wait on
        self._arrivals, self._failure, self._number = arrivals or Arrivals(), failure, 0

    def open(self) -> None:
        """Called before the first wait, by all ranks."""
        self._arrivals.open()

    def begin(self, measuring_s: float = 0.0) -> float:
        """Begin the next wait, and return its deadline, by time.monotonic().

        `measuring_s`: what is waited for may take to measure, in addition to what ranks may let each other wait.
        """
        self._number += 1
        return time.monotonic() + measuring_s + self.timeout_s

    def result(self, future: Future[T], deadline: float, label: str, engine: Engine | None = None) -> T:
        """Wait for what other ranks have a part in, as a part of the wait that has begun.

        `engine`: on which it is launched, by default that of the first track.

        Raises CommunicationError where it does not come, and what it raises.
        """
        try:
            first = min(ANNOUNCE_S, self.timeout_s / 4)
            wait([future], max(0.0, min(first, deadline - time.monotonic())))
            if not future.done():
                self.announce()
            return future.result(min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX))
        except FutureTimeout:
            waited = f"{self.timeout_s:g} s (HVD_COMPRESS_TIMEOUT_S)"
            doing = _doing(label, engine or self._failure.engine)
            failure = CommunicationError(f"{label}: no answer within {waited} in {doing}: {self._missing()}")
            self._failure.fail(failure)
            raise failure from None
        except BaseException as error:
            self._failure.fail(error)
            raise

    def stop(self, wait_s: float) -> None:
        """Let the thread for messages end, and close the connection that the arrivals may have of their own."""
        if self._messenger is not None:
            self._messenger.stop(wait_s)
        self._arrivals = Arrivals()

    def announce(self) -> None:
        """Tell others that this rank waits. What keeps it from that must not end a step that may still come to pass."""
        if self._messenger is None:
            self._messenger = Worker("hvd-compress-arrivals")
        self._messenger.submit(partial(self._tell, self._number))

    def _tell(self, number: int) -> None:
        try:
            self._arrivals.announce(number)
        except Exception as error:
            self._arrivals = Arrivals(f"which one cannot be told: {type(error).__name__}: {error}")

    def _missing(self) -> str:
        """Say who has not arrived where this rank waits, and what to do."""
        assert self._messenger is not None
        try:
            missing = self._messenger.submit(self._who).result(ANSWER_S)
            return f"{describe(missing, self._arrivals.obstacle)}. {LATE if missing != () else SLOW}"
        except FutureTimeout:
            why = f"the launcher has not answered within {ANSWER_S:g} s"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        return f"{describe(None, f'which one cannot be told: {why}')}. {LATE}"

    def _who(self) -> tuple[int, ...] | None:
        return self._arrivals.missing(self._number)


def _doing(label: str, engine: Engine | None) -> str:
    """Say in which collective an engine is, and for whom where that is not who waits."""
    if engine is None:
        return "the choice of the engine"
    return engine.pending if engine.place.endswith(label) else f"{engine.pending} ({engine.place})"
