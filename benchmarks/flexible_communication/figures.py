"""What runs amount to: the time of every method under each schedule, its accuracy, and which fixed one was the best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hvd_compress.netlab import Schedule

EPOCHS = 50
"""Of the schedules: the paper trains for so many. An epoch is a fiftieth of the steps."""
TURN = 12
"""Each method of a launch takes so many steps, then the next one, and so on. No change lies in a turn of 300 steps."""
TOLERANCE = 0.5
"""Points of accuracy by which two methods count as equal."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One method under one schedule, over seeds. `estimated`: from the pace of a sixth of the steps.

    `first_s` are the seconds of first steps, in which a method sets itself up; `seconds` hold them, too.
    """

    method: str
    seconds: tuple[float, ...]
    first_s: tuple[float, ...]
    accuracies: tuple[float, ...]
    estimated: bool

    @property
    def mean_s(self) -> float:
        return fmean(self.seconds)

    @property
    def accuracy(self) -> float:
        return fmean(self.accuracies)

    @property
    def adaptive(self) -> bool:
        return self.method.startswith("adaptive")


def phases(schedule: str, steps: int) -> list[tuple[int, int, str]]:
    """First step, end and network of each phase."""
    changes = Schedule.read(schedule).changes
    begins = [-(-round(change.at) * steps // EPOCHS) for change in changes]
    return [
        (begin, end, str(change.link)) for begin, end, change in zip(begins, [*begins[1:], steps], changes, strict=True)
    ]


def scaled_s(record: Record, schedule: str, steps: int) -> list[float]:
    """Seconds of each of `steps` steps, from a run with fewer in each phase: the mean of its phase for each."""
    found: list[float] = []
    pairs = zip(phases(schedule, record["steps"]), phases(schedule, steps), strict=True)
    for (begin, end, _), (first, last, _) in pairs:
        settled = record["step_s"][begin + (begin == 0) : end]  # in its first step a method sets itself up
        found += [fmean(settled)] * (last - first)
    return [record["step_s"][0], *found[1:]]


def rows(records: Sequence[Record], schedule: str) -> list[Row]:
    """All methods under a schedule, the fastest first."""
    steps = max(record["steps"] for record in records)
    full = [r for r in records if r["schedule"] == schedule and r["steps"] == steps]
    paces = [r for r in records if r["schedule"] == schedule and r["steps"] < steps]
    made = [
        Row(method, tuple(sum(r["step_s"]) for r in own), _first(own), tuple(accuracy(r) for r in own), False)
        for method, own in _by_method(full)
    ]
    for method, own in _by_method(paces):
        same = "dense" if method == "horovod" else method  # the same arithmetic
        quiet = [r for r in records if r["schedule"] is None and r["method"] == same]
        seconds = tuple(sum(scaled_s(r, schedule, steps)) for r in own)
        made.append(Row(method, seconds, _first(own), tuple(map(accuracy, quiet)), True))
    return sorted(made, key=lambda row: row.mean_s)


def rival(found: Iterable[Row], least: float) -> Row:
    """The fastest fixed method that ended with an accuracy of at least `least` per cent."""
    return min((row for row in found if not row.adaptive and row.accuracy >= least), key=lambda row: row.mean_s)


def accuracy(record: Record) -> float:
    """Per cent of the test set, after the last step."""
    return 100 * float(record["accuracies"][-1][1])


def _first(records: Iterable[Record]) -> tuple[float, ...]:
    return tuple(record["step_s"][0] for record in records)


def _by_method(records: Iterable[Record]) -> list[tuple[str, list[Record]]]:
    methods: dict[str, list[Record]] = {}
    for record in records:
        methods.setdefault(record["method"], []).append(record)
    return list(methods.items())
