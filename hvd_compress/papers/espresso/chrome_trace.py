"""A predicted timeline in Chrome's trace format, for chrome://tracing and Perfetto."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hvd_compress import schema
from hvd_compress.papers.espresso.boxes import COLLECTIVES, TRACKS
from hvd_compress.papers.espresso.table import LANES, LATENCY
from hvd_compress.papers.espresso.timeline.boxes import Box

PREDICTED = 1
"""The process of the prediction."""
ROWS = (*LANES[:LATENCY], COLLECTIVES, *TRACKS)
"""Its rows, of those lanes that are busy."""


def write(path: str | Path, found: Sequence[Box], title: str) -> None:
    """Write a file with a row for each lane. Raises PlanError where it cannot be written."""
    schema.write(path, {"traceEvents": list(events(found, title)), "displayTimeUnit": "ms"}, "trace")


def events(found: Sequence[Box], title: str) -> Iterator[dict[str, Any]]:
    """Yield records: complete events ("X"), with times in microseconds, as the boxes have them."""
    yield {"ph": "M", "name": "process_name", "pid": PREDICTED, "args": {"name": title}}
    for row, lane in enumerate(ROWS):
        if all(box.lane != lane for box in found):
            continue
        about = {"ph": "M", "pid": PREDICTED, "tid": row}
        yield {**about, "name": "thread_name", "args": {"name": lane}}
        yield {**about, "name": "thread_sort_index", "args": {"sort_index": row}}
    for box in found:
        yield {
            "ph": "X",
            "name": f"{box.name}: {box.task}" if box.name else box.task,
            "cat": box.term,
            "pid": PREDICTED,
            "tid": ROWS.index(box.lane),
            "ts": box.start_ns / 1e3,
            "dur": box.ns / 1e3,
            "args": {"tensor": box.tensor, "task": box.task},
        }
