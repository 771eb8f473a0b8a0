"""What an engine records of its collectives, in one place for it and for the engines that were split from it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from hvd_compress.errors import CommunicationError


@dataclass(frozen=True)
class Call:
    """One finished collective: what it was, how many bytes a rank sent on average, and how long it took here.

    `tensor_bytes` is the size of this rank's tensor, by which calibrated curves are looked up; `started_s` is by
    time.perf_counter().
    """

    verb: str
    algorithm: str
    sent_bytes: int
    seconds: float
    tensor_bytes: int = 0
    started_s: float = 0.0


@dataclass
class Ledger:
    """The finished collectives of an engine, the one that runs, and why none can run any more."""

    calls: list[Call] = field(default_factory=list)
    pending: str = "before the first collective"
    place: str = ""
    running: bool = False
    lost: str | None = None


@dataclass
class Tally:
    """How many collectives an engine has begun and ended, with all of the earlier engines that had its transport.

    `spoiled`: after a failure.
    """

    begun: int = 0
    ended: int = 0
    spoiled: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether nothing is under way."""
        return self.begun == self.ended and not self.spoiled


class HasLedger(Protocol):
    ledger: Ledger


def in_ledger() -> Any:
    """Return a class attribute that reads and writes the field of the same name in the object's ledger."""
    return _InLedger()


class _InLedger:
    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, holder: HasLedger, owner: type | None = None) -> Any:
        return getattr(holder.ledger, self._name)

    def __set__(self, holder: HasLedger, value: Any) -> None:
        setattr(holder.ledger, self._name, value)


class Recorder(HasLedger, Protocol):
    tally: Tally

    def note(self, call: Call) -> None: ...


class Timed:
    """Records what runs, and notes a Call when it finished without an error."""

    def __init__(self, engine: Recorder, verb: str, algorithm: str, sent_bytes: int, size_bytes: int) -> None:
        self._engine, self._verb, self._algorithm, self._sent_bytes = engine, verb, algorithm, sent_bytes
        self._size_bytes = size_bytes
        self._words = f"{verb} ({algorithm}) of {size_bytes} bytes"

    def __enter__(self) -> None:
        ledger = self._engine.ledger
        ledger.pending = self._words
        ledger.running = True  # before `lost` is read: whoever sets it looks at this afterwards
        if ledger.lost is not None:
            ledger.running = False
            raise CommunicationError(ledger.lost)
        self._engine.tally.begun += 1
        self._start = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._engine.ledger.running = False
        if kind is None:
            self._engine.tally.ended += 1
            seconds = time.perf_counter() - self._start
            call = Call(self._verb, self._algorithm, self._sent_bytes, seconds, self._size_bytes, self._start)
            self._engine.note(call)
            self._engine.ledger.pending = f"after {self._words}"
