"""How a network changes over time, as a file says it.

    # anything
    at_s, latency, bandwidth
    0, 1ms, 1gbit
    30, 50ms, 40mbit

The first line names the columns; `at_epoch` may stand for `at_s`, and then whoever follows the schedule says what an
epoch takes, or steps through it. Each line holds until the next one, for all hosts.
"""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hvd_compress.errors import ConfigError
from hvd_compress.netlab.link import Link

FOLDER = Path(__file__).parent / "schedules"
"""Those that come with the package."""


@dataclass(frozen=True)
class Change:
    """From `at` on, in the unit of the schedule, every host has this `link`."""

    at: float
    link: Link


@dataclass(frozen=True)
class Schedule:
    """Changes in the order of time, the first one at 0."""

    unit: Literal["s", "epoch"]
    changes: tuple[Change, ...]

    @classmethod
    def read(cls, source: str | Path) -> Schedule:
        """Read a file, or one of those that come with the package, by its bare name ("c1").

        Raises ConfigError, naming file and line, for what is no schedule.
        """
        path = Path(source)
        if not os.path.exists(path) and os.path.exists(FOLDER / f"{source}.csv"):
            path = FOLDER / f"{source}.csv"
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            own = ", ".join(sorted(file.stem for file in FOLDER.glob("*.csv")))
            raise ConfigError(
                f"cannot read the schedule {source}: {error}; these come with the package: {own}"
            ) from None
        return _parse(path, lines)

    def at(self, when: float) -> Link:
        """The link at a time or epoch, 0 being the first."""
        return [change.link for change in self.changes if change.at <= max(when, 0)][-1]

    def in_seconds(self, epoch_s: float | None) -> Schedule:
        """The same changes at seconds; `epoch_s` is what an epoch takes. Raises ConfigError where it is missing."""
        if self.unit == "s":
            return self
        if epoch_s is None or not 0 < epoch_s < math.inf:
            raise ConfigError("this schedule counts epochs: say how many seconds one takes (--epoch-s)")
        if self.changes[-1].at * epoch_s > threading.TIMEOUT_MAX:
            raise ConfigError(f"--epoch-s {epoch_s:g} is too long for {self.changes[-1].at:g} epochs")
        return Schedule("s", tuple(Change(change.at * epoch_s, change.link) for change in self.changes))


def _parse(path: Path, lines: list[str]) -> Schedule:
    unit: Literal["s", "epoch"] | None = None
    changes: list[Change] = []
    for number, line in enumerate(lines, start=1):
        fields = [field.strip() for field in line.partition("#")[0].split(",")]
        where = f"{path}, line {number}"
        if fields == [""]:
            continue
        if unit is None:
            if fields not in (["at_s", "latency", "bandwidth"], ["at_epoch", "latency", "bandwidth"]):
                raise ConfigError(
                    f"{where}: the first line of a schedule is `at_s, latency, bandwidth` or `at_epoch, ...`"
                )
            unit = "s" if fields[0] == "at_s" else "epoch"
            continue
        changes.append(_change(where, fields))
        if changes[0].at != 0:
            raise ConfigError(f"{where}: a schedule begins at 0, not at {changes[0].at:g}")
        if len(changes) > 1 and changes[-1].at <= changes[-2].at:
            raise ConfigError(f"{where}: {changes[-1].at:g} comes after {changes[-2].at:g}: sort the lines by time")
    if unit is None or not changes:
        raise ConfigError(f"{path} is no schedule: it says nothing")
    return Schedule(unit, tuple(changes))


def _change(where: str, fields: list[str]) -> Change:
    if len(fields) != 3:
        raise ConfigError(f"{where}: there must be three fields, and there are {len(fields)}")
    try:
        at = float(fields[0])
    except ValueError:
        raise ConfigError(f"{where}: {fields[0]!r} is no time: write a number without a unit") from None
    if not 0 <= at <= threading.TIMEOUT_MAX:
        raise ConfigError(f"{where}: the time {fields[0]} is out of range")
    try:
        return Change(at, Link.parse(*fields[1:]))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
