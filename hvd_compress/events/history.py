"""What was decided when and why: in memory, and as lines of JSON for `hvd-compress report`."""

from __future__ import annotations

import json
import math
import reprlib
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hvd_compress.checks import is_number, is_whole
from hvd_compress.errors import ConfigError

KINDS = ("choice", "window", "metrics", "network", "ccr", "ratio", "rollout", "root")
USED = ("choice", "window")
"""Those that say what a bucket uses."""
MOST = 1e15
"""No number of an event is larger: neither steps nor seconds."""
KEPT = 20_000
"""Events that are remembered, some 10 MB: training may take millions of steps."""


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        step: after which it happened.
        kind: "choice" (how a bucket travels from then on), "window" (what its exchanges took), "metrics" (what a step
            was like, as Handle.metrics() says); "network" (another one
            was noticed, and measured), "ccr" (what a backward pass can hide was profiled), "root" (STAR or VAR was
            chosen); of Compression.flexible() "ratio" (chosen, perhaps the one before) or "rollout" (steps with a ratio
            that were taken back).
        bucket: which one, or -1 for all.
        candidate: what was tried, chosen or in use.
        ratio: k / numel as it is sent: 1 without compression.
        measured_s: of one exchange of this bucket, the median of a window as rank 0 saw it, the wait for other ranks
            included; of a rollout the mean of its steps, as agreed among ranks.
        predicted_s: of one exchange, by curves and measured kernels.
        gain: share of ||corrected||^2 that is sent, mean over ranks; NaN where it was not looked at. Of a rollout the
            mean of its steps; of a ratio as expected.
        reason: in words.
        compressor: of a choice.
        wire_ratio: bytes that were sent in a window, over those without compression in each of its steps, of a ring
            allreduce, or of a reduce-scatter where ranks own shards; NaN with one rank.
        figures: of "metrics", by name.
    """

    step: int
    kind: str
    bucket: int = -1
    candidate: str = ""
    ratio: float = math.nan
    measured_s: float = math.nan
    predicted_s: float = math.nan
    gain: float = math.nan
    reason: str = ""
    compressor: str = ""
    wire_ratio: float = math.nan
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what can be written as JSON: NaN, and figures where there are none, are left out."""
        said = {k: v for k, v in asdict(self).items() if not (isinstance(v, float) and not math.isfinite(v))}
        return said if self.figures else {k: v for k, v in said.items() if k != "figures"}


_NOTHING = Event(0, "")
_FIELDS = {each.name: type(getattr(_NOTHING, each.name)) for each in fields(Event)}
"""The type of each field of an event."""


class History:
    """The events of a run, in order; `path` receives each as a line of JSON as soon as it happens, `watchers` as well.

    A watcher is called with each event, in the thread that trains. Only the last KEPT are remembered here. Where the
    file can no longer be written (a full disk), a warning says so, and the training goes on without it.
    """

    def __init__(self, path: Path | None = None, watchers: Sequence[Callable[[Event], None]] = ()) -> None:
        self.events: deque[Event] = deque(maxlen=KEPT)
        self._watchers = watchers
        self._path = path
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("")
            except OSError as error:
                raise ConfigError(f"HVD_COMPRESS_LOG: cannot write {path}: {error.strerror}") from None

    def add(self, event: Event) -> None:
        assert event.kind in KINDS
        self.events.append(event)
        if self._path is not None:
            self._write(event, self._path)
        for watch in self._watchers:
            watch(event)

    def _write(self, event: Event, path: Path) -> None:
        try:
            with path.open("a") as file:
                file.write(json.dumps(event.to_json()) + "\n")
        except OSError as error:  # on one rank alone: the others go on
            self._path = None
            warnings.warn(f"HVD_COMPRESS_LOG: {path} ends here: {error}", RuntimeWarning, stacklevel=3)

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)


def read(path: Path) -> list[Event]:
    """Return the events of a log. Raises ConfigError that names the line for what is not one."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path} ({error}); a log is the file that HVD_COMPRESS_LOG named. Nothing is logged for "
            "Compression.none and Compression.fp16 of hvd_compress.torch, which are Horovod's own"
        ) from None
    events = [_event(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
    if not any(event.kind in USED for event in events):
        raise ConfigError(f"{path} holds no choice yet: train for some more steps")
    return events


def _event(line: str, where: str) -> Event:
    try:
        said = json.loads(line)
        if not isinstance(said, Mapping):
            raise ValueError("it is no JSON object")
        for name, value in said.items():
            _check(name, value)
        return Event(**said)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{where}: not an event of a log ({error}); a log is the file that HVD_COMPRESS_LOG named, and a "
            "last line that was cut short may be removed"
        ) from None


def _check(name: str, value: Any) -> None:
    """Raise ValueError where a field of a line is none of an event's."""
    known = _FIELDS.get(name)
    if known is None:
        raise ValueError(f"unknown field {reprlib.repr(name)}")
    if known is dict and isinstance(value, Mapping):
        right = all(isinstance(each, str) and _is_number(figure, float) for each, figure in value.items())
    else:
        right = isinstance(value, str) if known is str else _is_number(value, known)
    if not right:
        raise ValueError(f"{name} is {reprlib.repr(value)}")
    if name == "kind" and value not in KINDS:
        raise ValueError(f"unknown kind {reprlib.repr(value)}")


def _is_number(value: Any, kind: type) -> bool:
    return (is_whole(value) if kind is int else is_number(value)) and abs(value) <= MOST
