"""A policy that tells what it decides."""

from __future__ import annotations

from collections.abc import Callable

from hvd_compress.events.history import Event, History
from hvd_compress.policies.base import DecisionPolicy


class TellingPolicy(DecisionPolicy):
    """Has a history, of which each event is told to whoever watches."""

    def __init__(self) -> None:
        self._watchers: list[Callable[[Event], None]] = []
        self._history = History(watchers=self._watchers)

    @property
    def history(self) -> History | None:
        return self._history

    def watch(self, watcher: Callable[[Event], None]) -> None:
        self._watchers.append(watcher)
