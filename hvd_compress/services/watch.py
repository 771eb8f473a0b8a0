"""Ranks compare what their steps took, and notice together that the network is another one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.events.history import Event, History
from hvd_compress.services.agreement import Agreed, Agreement
from hvd_compress.services.base import BucketMetrics, SeenStep, Service
from hvd_compress.services.detector import Alarm

Note = TypeVar("Note")


class Watching(Protocol[Note]):
    """A policy that has a watch. All of it is the same on all ranks, but what note() and tell() return.

    Attributes:
        every: after how many steps ranks compare them; 0 while nothing is to be watched.
        is_awaited: whether nothing can be decided before what is being compared is there.
    """

    @property
    def every(self) -> int: ...

    @property
    def is_awaited(self) -> bool: ...

    def note(self, metrics: Sequence[BucketMetrics]) -> Note | None:
        """Return what is to be known of a step when it is compared; None where it is not to be compared, nor compared
        steps to be taken now. After a change of the way, leave out the first step, as it is not like those after it.

        Args:
            metrics: what this rank measured of its buckets.
        """

    def tell(self, notes: Sequence[Note]) -> Sequence[float]:
        """Return what ranks tell each other with the times of the steps of these notes: as many figures on all."""

    def on_steps(self, step: int, agreed: Agreed, notes: Sequence[Note]) -> float | None:
        """Take the steps that were compared; step `step` is over, and not recorded yet.

        Return what exchanges took in them, for the alarm; None where that says nothing, as while ways are tried. Once
        another way is chosen the policy says `alarm.forget()`, and `alarm.expect()` where it knows what to expect; with
        `found=2` the next windows count for less, as where a checkpoint says it.
        """

    def on_alarm(self, step: int) -> None:
        """The network is another one, by what exchanges took up to this step."""


class Watch(Service, Generic[Note]):
    """Compares the steps of all ranks for a policy, which takes them in on_steps(), and a new network in on_alarm().

    Times are recorded step by step, compared by a small all-gather after the exchanges of one step, and taken after a
    later one, so nobody waits for them.

    Attributes:
        alarm: hears what exchanges take.
        is_first: whether the coming step is the first of its buckets, which is not like those after it.
    """

    def __init__(self, policy: Watching[Note], history: History) -> None:
        """Nothing is watched before begin(). `history`: has each alarm added."""
        self._policy: Watching[Note] = weakref.proxy(policy)  # which has this watch
        self._history = history
        self._agreement = Agreement()
        self._notes: list[Note] = []  # of the steps that are recorded
        self._compared: list[Note] = []
        self._launch: Launch
        self.alarm = Alarm()
        self.is_first = True

    @property
    def recorded(self) -> int:
        """Steps that are to be compared."""
        return self._agreement.recorded

    def begin(self, launch: Launch) -> None:
        """Buckets are others: forget the steps of those before."""
        self._launch, self.is_first = launch, True
        self.drop()

    def drop(self) -> None:
        """Forget what was recorded, and what is being compared."""
        self._agreement.drop()
        self._notes, self._compared = [], []

    def measure(self, call: Callable[[Engine], None], step: int, measuring_s: float | None) -> None:
        """Measure the network after step `step`, for about `measuring_s` seconds. Collective."""
        self._launch(call, f"after step {step}, measuring the network", measuring_s or 0.0)()

    def launched(self, step: int) -> None:
        agreement, every = self._agreement, self._policy.every
        if every and not agreement.under_way and agreement.recorded >= every:
            agreement.begin(self._launch, step, self._policy.tell(self._notes))
            self._compared, self._notes = self._notes, []

    def exchanged(self, seen: SeenStep) -> None:
        skips, self.is_first = self.is_first or not seen.is_regular or not self._policy.every, False
        if skips or seen.moments.held_back:
            return
        noted = self._policy.note(seen.metrics)
        if noted is None:
            return
        if self._agreement.ready(seen.step) or (self._agreement.under_way and self._policy.is_awaited):
            self._take(seen.step)
        if self.alarm.rings:
            self._history.add(Event(seen.step, "network", reason="exchanges take another time than those before"))
            self.alarm.answer()
            self.drop()
            self._policy.on_alarm(seen.step)
        else:
            self._agreement.record(seen.moments, seen.metrics)
            self._notes.append(noted)

    def _take(self, step: int) -> None:
        agreed, compared, self._compared = self._agreement.take(), self._compared, []
        exchanging_s = self._policy.on_steps(step, agreed, compared)
        if exchanging_s is not None:
            self.alarm.add(exchanging_s)
