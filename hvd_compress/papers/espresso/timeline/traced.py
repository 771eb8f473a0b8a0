"""A step as it was traced, as boxes of a picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from hvd_compress.papers.espresso.timeline.boxes import COMPUTATION, TERMS, Box
from hvd_compress.papers.espresso.timeline.reading import TracedStep

_, COMPRESSION, COMMUNICATION = TERMS
COMMUNICATE = "COMMUNICATE"
"""The phase whose calls are collectives; between them payloads are summed and compressed again."""


def traced_boxes(step: TracedStep, numbers: Mapping[str, int]) -> Iterator[Box]:
    """Yield what a step did, from its own beginning on, of the buckets that `numbers` has by name."""
    start_us = step.training("FORWARD").start_us

    def one(bucket: str, task: str, term: str, begin_us: float, end_us: float) -> Box:
        times = round(1e3 * (begin_us - start_us)), round(1e3 * (end_us - start_us))
        return Box(numbers[bucket] if bucket else -1, bucket, task, term, term, term, *times)

    for span in step.spans:
        if span.bucket and span.bucket not in numbers:
            continue
        if not span.bucket and span.phase != "WAIT":
            yield one("", span.phase.lower(), COMPUTATION, span.start_us, span.end_us)
        elif span.call:
            task = span.call.rpartition("_")[2] if span.call.count("_") == 1 else span.call.partition("_")[2]
            yield one(span.bucket, task.lower(), COMMUNICATION, span.start_us, span.end_us)
        elif span.bucket and span.phase != COMMUNICATE:
            yield one(span.bucket, span.phase.lower(), COMPRESSION, span.start_us, span.end_us)
        elif span.bucket:
            for begin_us, end_us in _gaps(step, span.bucket, span.start_us, span.end_us):
                yield one(span.bucket, "between", COMPRESSION, begin_us, end_us)


def _gaps(step: TracedStep, bucket: str, start_us: float, end_us: float) -> Iterator[tuple[float, float]]:
    """Yield what no collective takes of a bucket's communication."""
    now = start_us
    for call in sorted((s for s in step.spans if s.bucket == bucket and s.call), key=lambda s: s.start_us):
        if call.start_us > now:
            yield now, call.start_us
        now = call.end_us
    if end_us > now:
        yield now, end_us


def side_by_side(boxes: Iterable[Box]) -> list[Box]:
    """Return boxes in rows of their own where several of a row run at a time, as buckets in flight do."""
    ends: dict[str, list[int]] = {}
    found = []
    for box in sorted(boxes, key=lambda one: one.start_ns):
        row = ends.setdefault(box.row, [])
        place = next((number for number, end in enumerate(row) if end <= box.start_ns), len(row))
        row[place : place + 1] = [box.end_ns]
        found.append(replace(box, row=f"{box.row} {place + 1}" if place else box.row))
    return found
