"""A timeline in the dialect of Horovod's: Chrome's trace format, where each bucket is a process."""

from __future__ import annotations

import errno
import json
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_compress.collectives.phases import PhaseSpans, Span
from hvd_compress.events.history import Event

TRAINING = 0
"""The process of the thread that trains; those of buckets follow, in the order in which they are first seen."""
PHASES = ("ENCODE", "COMMUNICATE", "DECODE")
"""The rows of a bucket, from 1 on."""


@dataclass(frozen=True)
class TraceRecord:
    """A bucket in one step: which parameters, how it travelled, when, and why so."""

    name: str
    how: Mapping[str, Any]
    spans: PhaseSpans
    reason: str = ""


class Timeline:
    """Writes sampled steps of one rank to a file that is valid JSON after each of them.

    As in Horovod's timeline, times are microseconds from a start that stands in the first record, a process stands for
    what is reduced together, and what takes time is a pair of B and E. In a bucket's process there is a row for each
    phase, and within COMMUNICATE one collective after the other, named as Horovod names them (MPI_ALLREDUCE). Process 0
    is the thread that trains. What was chosen is an instant (i).

    Where the file can no longer be written (a full disk), a warning says so, and the training goes on without it.
    """

    def __init__(self, path: Path, rank: int, engine: str, start_s: float) -> None:
        """`start_s`: where times are counted from, by time.perf_counter()."""
        self._path, self._engine, self._start_s = path, engine, start_s
        self._processes: dict[tuple[int, str], int] = {}  # by number and name: DDP makes its buckets anew
        self._current: dict[int, int] = {}
        self._file: JsonArrayFile | None = None
        try:
            self._file = JsonArrayFile(path)
        except OSError as error:  # of this rank alone: what hinders it before was told in the handshake
            warnings.warn(f"the timeline {path} is not written: {error}", RuntimeWarning, stacklevel=2)
        ago_s = time.perf_counter() - start_s
        since = {"start_time_since_epoch_in_micros": int((time.time() - ago_s) * 1e6)}
        self._write(_process(TRAINING, f"training, rank {rank}", ("STEP",), **since))

    def step(self, number: int, training: Sequence[tuple[str, Span]], travelled: Sequence[TraceRecord]) -> None:
        """Add one step.

        Args:
            number: of the step.
            training: what the thread that trains did, as names and times, one after the other.
            travelled: by number of the bucket.
        """
        records: list[dict[str, Any]] = []
        for name, span in training:
            records += self._pair(name, TRAINING, 0, span, {"step": number})
        for bucket, record in enumerate(travelled):
            pid = self._processes.get((bucket, record.name))
            if pid is None:
                pid = self._processes[bucket, record.name] = len(self._processes) + 1
                records += _process(pid, f"bucket {bucket} ({record.name})", PHASES, first=1)
            self._current[bucket] = pid
            records += self._bucket(number, pid, record)
        self._write(records)

    def event(self, event: Event) -> None:
        """Add what was chosen or measured, but for windows."""
        if event.kind == "window":
            return
        pid = self._current.get(event.bucket, TRAINING)
        where = {"pid": pid, "s": "g" if pid == TRAINING else "p"}
        name = f"{event.kind.upper()} {event.candidate}".rstrip()
        ts = self._micros(time.perf_counter())
        self._write([{"ph": "i", "name": name, "ts": ts, "tid": 0, **where, "args": event.to_json()}])

    def close(self) -> None:
        """Write nothing more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _bucket(self, step: int, pid: int, record: TraceRecord) -> list[dict[str, Any]]:
        spans, how = record.spans, {"step": step, **record.how}
        sent = {"sent_bytes": sum(call.sent_bytes for call in spans.calls)}
        begin, end = self._pair(PHASES[1], pid, 2, spans.communicate, {**how, **sent})
        calls = []
        for call in spans.calls:
            facts = {"algorithm": call.algorithm, "tensor_bytes": call.tensor_bytes, "sent_bytes": call.sent_bytes}
            span = (call.started_s, call.started_s + call.seconds)
            calls += self._pair(f"{self._engine}_{call.verb}".upper(), pid, 2, span, facts)
        encode, decode = (
            self._pair(PHASES[row - 1], pid, row, span, args)
            for row, span, args in ((1, spans.encode, {**how, "reason": record.reason}), (3, spans.decode, how))
        )
        return [*encode, begin, *calls, end, *decode]

    def _pair(self, name: str, pid: int, tid: int, span: Span, args: Mapping[str, Any]) -> list[dict[str, Any]]:
        begin, end = map(self._micros, span)
        return [
            {"ph": "B", "name": name, "ts": begin, "pid": pid, "tid": tid, "args": dict(args)},
            {"ph": "E", "ts": end, "pid": pid, "tid": tid},
        ]

    def _micros(self, seconds: float) -> int:
        return max(0, int((seconds - self._start_s) * 1e6))

    def _write(self, records: Sequence[Mapping[str, Any]]) -> None:
        if self._file is None or not records:
            return
        try:
            self._file.add(records)
        except OSError as error:
            self.close()
            warnings.warn(f"the timeline {self._path} ends here: {error}", RuntimeWarning, stacklevel=2)


def _process(pid: int, name: str, rows: Sequence[str], first: int = 0, **more: Any) -> list[dict[str, Any]]:
    records = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name, **more}},
        {"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}},
    ]
    for tid, row in enumerate(rows, start=first):
        records.append({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": row}})
    return records


class JsonArrayFile:
    """A JSON array in a file, which is whole after each write."""

    def __init__(self, path: Path) -> None:
        """Make an empty one instead of what is there, to which others may still write.

        Raises OSError where that cannot be written, or where it is a device or a pipe, which must not be replaced.
        """
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is no regular file")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._file, self._at, self._between = path.open("xb", buffering=0), len(b"["), b"\n"
        self._file.write(b"[" + _END)

    def add(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Append some, in one write over the closing bracket.

        Raises OSError where there is no room, ValueError for what is no JSON, such as NaN; the file stays as it was.
        """
        text = self._between + b",\n".join(json.dumps(record, allow_nan=False).encode() for record in records)
        try:
            if os.pwrite(self._file.fileno(), text + _END, self._at) < len(text + _END):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.pwrite(self._file.fileno(), _END, self._at)  # where there was room for it
            os.ftruncate(self._file.fileno(), self._at + len(_END))
            raise
        self._at, self._between = self._at + len(text), b",\n"

    def close(self) -> None:
        self._file.close()


_END = b"\n]\n"
