"""What runs when, for people: the spans of a strategy with their names, in the rows of a picture or a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hvd_compress.papers.espresso.kernels import Span
from hvd_compress.papers.espresso.options import PlacedTask
from hvd_compress.papers.espresso.problem import LANES, Problem
from hvd_compress.papers.espresso.table import LATENCY
from hvd_compress.papers.espresso.timeline.boxes import COMPUTATION, ROWS, TERMS, Box
from hvd_compress.profiler.profiles import MOST_TRACKS

COLLECTIVES = "collectives"
"""The lane of both links in a job, whose bytes travel one after the other."""
TRACKS = tuple(f"latency {track}" for track in range(MOST_TRACKS))
"""The lanes of a job's tracks, where several buckets may be in flight, and their rows, below the others."""


def boxes(problem: Problem, strategy: Sequence[int]) -> list[Box]:
    """Return the timeline of a strategy, in the order in which tasks start."""
    return list(_boxes(problem, strategy))


def step_boxes(problem: Problem, strategy: Sequence[int]) -> list[Box]:
    """Return the whole step as predicted: the forward pass, where the profile has its time, and then the timeline."""
    forward_ns = round(1e3 * problem.model.forward_us)
    forward = Box(-1, "", "forward", "training", COMPUTATION, COMPUTATION, 0, forward_ns)
    late = [
        replace(one, start_ns=one.start_ns + forward_ns, end_ns=one.end_ns + forward_ns)
        for one in boxes(problem, strategy)
    ]
    return [forward, *late] if forward_ns else late


def _boxes(problem: Problem, strategy: Sequence[int]) -> Iterator[Box]:
    for span in problem.native.spans(strategy):
        task, row, term = "backward", COMPUTATION, COMPUTATION
        if span.task >= 0:
            found = problem.task(span.tensor, strategy[span.tensor], span.task)
            task, row = str(found), _row(span, found)
            term = TERMS[2] if found.communicates else TERMS[1]
        name = problem.model.tensors[span.tensor].name
        yield Box(span.tensor, name, task, _lane(problem, span), row, term, span.start_ns, span.end_ns)


def _lane(problem: Problem, span: Span) -> str:
    if span.lane >= LATENCY:
        return TRACKS[span.lane - LATENCY]
    return COLLECTIVES if problem.in_flight is not None and span.lane >= LANES.index("within") else LANES[span.lane]


def _row(span: Span, task: PlacedTask) -> str:
    if span.lane >= LATENCY:
        return TRACKS[span.lane - LATENCY]
    place = task.link or task.device
    return ROWS[1 + (span.lane if place == "all" else LANES.index(place))]
