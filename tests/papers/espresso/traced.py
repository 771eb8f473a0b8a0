"""Timelines of runs that were not."""

from __future__ import annotations

from pathlib import Path

from hvd_compress.collectives.phases import PhaseSpans
from hvd_compress.engines.base import Call
from hvd_compress.events.timeline import Timeline, TraceRecord
from hvd_compress.policies.plan_schema import Plan


def traced(path: Path, plan: Plan, steps: int = 3, names: list[str] | None = None, candidate: str = "") -> Path:
    """Write the timeline of a run in which each bucket takes a millisecond to compress and two to communicate."""
    timeline = Timeline(path, 0, "MPI", 0.0)
    found = [
        entry.parameters[0] + (f" and {len(entry.parameters) - 1} more" if len(entry.parameters) > 1 else "")
        for entry in plan.buckets
    ]
    for number in range(steps):
        now = float(number)
        training = [
            (name, (now + at, now + until))
            for name, at, until in (("FORWARD", 0.0, 0.01), ("BACKWARD", 0.01, 0.03), ("WAIT", 0.03, 0.06))
        ]
        call = Call("reduce_scatter", "auto", 8, 0.002, 16, now + 0.03)
        spans = PhaseSpans((now + 0.02, now + 0.0205), (now + 0.03, now + 0.032), (now + 0.05, now + 0.0505), (call,))
        timeline.step(number, training, [TraceRecord(name, {"candidate": candidate}, spans) for name in names or found])
    timeline.close()
    return path
