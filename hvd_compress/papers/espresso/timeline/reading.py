"""Steps from a timeline's file: what trace.py wrote."""

from __future__ import annotations

import re
import reprlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_compress import schema
from hvd_compress.checks import is_whole
from hvd_compress.errors import ConfigError, PlanError
from hvd_compress.events.timeline import PHASES, TRAINING

LATEST_US, MOST = 1e15, 1 << 31
"""Microseconds of 30 years; buckets and steps."""


@dataclass(frozen=True)
class TracedSpan:
    """Something that took time, in microseconds since the timeline's start.

    Attributes:
        bucket: its name; empty for the thread that trains.
        phase: one of PHASES, or what the training did: FORWARD, BACKWARD, WAIT.
        call: the collective, such as MPI_ALLREDUCE, of a span within COMMUNICATE; empty for the phase itself.
        candidate: how the bucket travelled, of its phases, where the file says it.
    """

    bucket: str
    phase: str
    call: str
    start_us: float
    end_us: float
    candidate: str = ""


@dataclass(frozen=True)
class TracedStep:
    """All spans of one step."""

    number: int
    spans: tuple[TracedSpan, ...]

    def training(self, phase: str) -> TracedSpan:
        """Return what the training did. Raises ConfigError where it is not in the file."""
        found = [span for span in self.spans if not span.bucket and span.phase == phase]
        if not found:
            raise ConfigError(f"step {self.number} of the timeline has no {phase}")
        return found[0]

    @property
    def us(self) -> float:
        """From the end of the step before to its own."""
        return self.training("WAIT").end_us - self.training("FORWARD").start_us


def chosen(steps: Sequence[TracedStep], wanted: int | None, path: Path, otherwise: str = "") -> TracedStep:
    """Return the step that is wanted, or one as long as the median. Raises PlanError where it is not among them."""
    if wanted is None:
        return sorted(steps, key=lambda step: step.us)[len(steps) // 2]
    by_number = {step.number: step for step in steps}
    if wanted not in by_number:
        raise PlanError(f"{path}: step {wanted} is not in it{otherwise}; there are {sorted(by_number)}")
    return by_number[wanted]


def read(path: str | Path) -> list[TracedStep]:
    """Read a file that HVD_COMPRESS_TIMELINE names. Raises ConfigError where it is none, or holds no step."""
    _, records = schema.parsed(path, "timeline")
    try:
        steps = _steps(records)
    except ConfigError as error:
        raise ConfigError(f"{path} is no timeline: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError):
        raise ConfigError(
            f"{path} is no timeline of a run: {_oddity(records)}. HVD_COMPRESS_TIMELINE writes one"
        ) from None
    if not steps:
        raise ConfigError(f"{path} holds no step: one in HVD_COMPRESS_TIMELINE_EVERY is written, 10 by default")
    return steps


def _oddity(records: Any) -> str:
    """Say what a file holds that is no timeline."""
    if isinstance(records, Mapping):
        if "traceEvents" in records:
            return "it is another Chrome trace, such as that of `hvd-compress plan make --trace`, which is a prediction"
        return "it is a JSON object, and not a list of records"
    if not isinstance(records, list):
        return "it is JSON, and not a list of records"
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            return f"record {number} is no object"
        if missing := [field for field in ("name", "ph", "pid") if field not in record and record.get("ph") != "E"]:
            return f"record {number} has no {missing[0]!r}"
    return "its records are those of another program: they do not name the steps and buckets of hvd_compress"


def _steps(records: Sequence[Mapping[str, Any]]) -> list[TracedStep]:
    called = (record for record in records if record.get("name") == "process_name")
    names = {record["pid"]: _bucket(record["args"]["name"]) for record in called}
    found: dict[int, list[TracedSpan]] = defaultdict(list)
    for step, pid, phase, call, start, end, candidate in _pairs(records):
        found[step].append(TracedSpan("" if pid == TRAINING else names[pid], phase, call, start, end, candidate))
    return [TracedStep(number, tuple(spans)) for number, spans in sorted(found.items())]


def _pairs(records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int, str, str, float, float, str]]:
    """Yield step, process, phase, call, times, and candidate.

    B and E of a row are nested; a call has its step from the phase.
    """
    open_: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for number, record in enumerate(records):
        if record["ph"] not in "BE":
            continue
        _check(number, record)
        stack = open_[record["pid"], record["tid"]]
        if record["ph"] == "B":
            stack.append(record)
            continue
        begin = stack.pop()
        if record["ts"] < begin["ts"]:
            raise ConfigError(f"{number}.ts: {record['ts']} is before its beginning, {begin['ts']}")
        phase = stack[0] if stack else begin
        named = phase["name"] if record["pid"] == TRAINING else PHASES[record["tid"] - 1]
        call = begin["name"] if stack else ""
        candidate = "" if call else str(begin["args"].get("candidate", ""))
        yield phase["args"]["step"], record["pid"], named, call, begin["ts"], record["ts"], candidate


def _check(number: int, record: Mapping[str, Any]) -> None:
    """Raise ConfigError that names a field by its path where it is no number of its range."""
    fields = {"ts": (record["ts"], LATEST_US), "pid": (record["pid"], MOST), "tid": (record["tid"], MOST)}
    args = record.get("args")
    if isinstance(args, Mapping) and "step" in args:
        fields["args.step"] = args["step"], MOST
    for name, (value, most) in fields.items():
        if not (is_whole(value) or (name == "ts" and isinstance(value, float))) or not 0 <= value <= most:
            raise ConfigError(f"{number}.{name}: {reprlib.repr(value)} is no number from 0 to {most:g}")
    if record["ph"] == "B" and not isinstance(record["name"], str):
        raise ConfigError(f"{number}.name: {reprlib.repr(record['name'])} is no name")


def _bucket(process: str) -> str:
    """Return the name of a bucket from that of its process: "bucket 3 (first.weight and 2 more)"."""
    found = re.fullmatch(r"bucket \d+ \((.*)\)", process)
    return found[1] if found else ""
