"""What is written down in any case: how each bucket travels and why, and what its exchanges took."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.phases import PhaseSpans
from hvd_compress.engines import wire
from hvd_compress.events.history import Event, Watcher
from hvd_compress.request.decision import Decision

FIRST, LONGEST = 4, 64
"""Steps of the first window, and of a window at most: each has twice as many as the one before."""


def choice(step: int, bucket: int, decision: Decision) -> Event:
    """Return the event of a bucket that travels by a decision after a step."""
    return Event(
        step,
        "choice",
        bucket,
        str(decision.path),
        decision.ratio,
        compressor=str(decision.compressor),
        reason=decision.reason,
    )


@dataclass
class _Record:
    """One bucket: the decisions that were told, and what its exchanges took since the last window.

    `sent` is the decision of the last exchange; seconds are those of exchanges that travelled as it says.
    """

    layout: Layout
    told: list[Decision] = field(default_factory=list)
    sent: Decision | None = None
    seconds: list[float] = field(default_factory=list)
    sent_bytes: int = 0
    dense_bytes: int = 0

    def add(self, decision: Decision, spans: PhaseSpans, dense_bytes: int) -> None:
        self.dense_bytes += dense_bytes
        if not spans.calls:
            return  # nothing was sent in this step
        if decision != self.sent:
            self.sent, self.seconds = decision, []
        self.seconds.append(spans.compress_s + spans.communicate_s + spans.decompress_s)
        self.sent_bytes += sum(call.sent_bytes for call in spans.calls)

    def forget(self) -> None:
        self.seconds, self.sent_bytes, self.dense_bytes = [], 0, 0


class EventRecorder:
    """Tells watchers how buckets travel, where the policy does not tell it by itself, and what that takes.

    Each decision of a bucket is a "choice", once: decisions may take turns, as those of COVAP do. Every 4, 8, ..., 64,
    64, ... steps there is a "window" of each bucket that was exchanged: the median seconds of its exchanges on this
    rank, the wait for other ranks among them, and its bytes; and "metrics", the figures of the last of these steps.
    Nothing is communicated for it.
    """

    def __init__(self, watchers: Sequence[Watcher], world_size: int) -> None:
        self._watchers, self._world_size = watchers, world_size
        self._records: list[_Record] = []
        self._length, self._steps = FIRST, 0

    def decided(self, step: int, buckets: Sequence[tuple[Layout, Decision]], without: Collection[int]) -> None:
        """Take how buckets travel from the coming step on, by number.

        Args:
            step: after which, or in which, it was decided.
            without: buckets whose policy tells of its choices.
        """
        before, self._records = self._records, []
        for number, (layout, decision) in enumerate(buckets):
            known = before[number] if number < len(before) and before[number].layout == layout else _Record(layout)
            self._records.append(known)
            if number not in without and decision not in known.told:
                known.told.append(decision)
                self._tell(choice(step, number, decision))

    def exchanged(self, step: int, decisions: Sequence[Decision], spans: Sequence[PhaseSpans]) -> None:
        """Take what the exchanges of the step that is over took, by number of the bucket."""
        for number in range(len(spans)):
            record, decision = self._records[number], decisions[number]
            dense_bytes = getattr(wire, decision.build().replaces)(record.layout.nbytes, self._world_size)
            record.add(decision, spans[number], dense_bytes)
        self._steps += 1
        if self._steps < self._length:
            return
        for number, record in enumerate(self._records):
            if record.seconds and record.sent is not None:
                self._tell(_window(step, number, record, record.sent))
            record.forget()

    def end_step(self, step: int, figures: Callable[[], Mapping[str, float]]) -> bool:
        """A step is over, which `figures` describes. Return whether a window ends with the coming one."""
        if self._steps >= self._length:
            self._tell(Event(step, "metrics", figures=figures()))
            self._steps, self._length = 0, min(2 * self._length, LONGEST)
        return self._steps + 1 == self._length

    def _tell(self, event: Event) -> None:
        for watch in self._watchers:
            watch(event)


def _window(step: int, number: int, record: _Record, sent: Decision) -> Event:
    window = Event(step, "window", number, str(sent.path), sent.ratio, median(record.seconds))
    if not record.dense_bytes:  # one rank sends nothing
        return window
    return replace(window, wire_ratio=record.sent_bytes / record.dense_bytes)
