"""A bucket on its way: the phases of its exchange, with their places and times, and what came of those of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from hvd_compress.collectives.base import Exchange
from hvd_compress.collectives.phases import PhaseSpans, Span
from hvd_compress.devices.lane import Lane
from hvd_compress.engines.base import Call, Engine
from hvd_compress.errors import located
from hvd_compress.session.report import Exchanged, Outcome
from hvd_compress.session.worker import Worker


class Track:
    """A thread that launches collectives one after the other, on an engine of its own."""

    def __init__(self, number: int, begin_thread: Callable[[], None]) -> None:
        self.worker = Worker(f"hvd-compress-collectives{f'-{number}' if number else ''}", begin_thread)
        self.engine: Engine


@dataclass
class InFlight:
    """A bucket on its way, with its phases so far.

    On the host it holds its exchange until that is decoded: payloads of one bucket take the memory of those before.
    On a GPU a stream may still read them.
    """

    exchange: Exchange | None
    lane: Lane
    label: str
    track: Track
    sends: bool
    outcome: Outcome = field(init=False)
    encoded: Span = (0.0, 0.0)
    communicated: Span = (0.0, 0.0)
    decoded: Span = (0.0, 0.0)
    calls: tuple[Call, ...] = ()

    def encode(self) -> None:
        assert self.exchange is not None
        with located(f"{self.label}, compressing"), self.lane.encoding():
            self.encoded = _span(self.exchange.encode)

    def communicate(self) -> None:
        assert self.exchange is not None
        engine = self.track.engine
        with located(lambda: f"{self.label}, {engine.pending}"), self.lane.communicating():
            self.communicated = _span(partial(self.exchange.communicate, engine))
            self.calls = tuple(engine.take_calls())

    def decode(self) -> torch.Tensor:
        """Return whether the result is finite, as Exchange.decode()."""
        start, exchange = time.perf_counter(), self.exchange
        assert exchange is not None
        with located(f"{self.label}, decompressing"), self.lane.decoding():
            finite = exchange.decode()
        self.outcome = Outcome(exchange.report, exchange.result)
        if self.lane.device.type == "cpu":
            self.exchange = None
        self.decoded = start, time.perf_counter()
        return finite


def exchanged(buckets: Sequence[InFlight], answers: Sequence[torch.Tensor]) -> Exchanged:
    """Return what came of the buckets of a step. `answers` are those of decode()."""
    spans = [PhaseSpans(each.encoded, each.communicated, each.decoded, each.calls) for each in buckets]
    calls = [call for bucket in buckets for call in bucket.calls]
    seconds = {
        "encode": sum(each.compress_s for each in spans),
        "communicate": sum(call.seconds for call in calls),
        "decode": sum(each.decompress_s for each in spans),
    }
    return Exchanged(
        _nonfinite(answers),
        seconds,
        sum(call.sent_bytes for call in calls),
        sum(bucket.lane.take_bus_bytes() for bucket in buckets),
        tuple(spans),
        tuple(bucket.outcome for bucket in buckets),
    )


def _span(call: Callable[[], None]) -> Span:
    start = time.perf_counter()
    call()
    return start, time.perf_counter()


def _nonfinite(answers: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return the numbers of the buckets that are not finite.

    The host waits for a GPU here, once a step where all are finite.
    """
    devices = dict.fromkeys(answer.device for answer in answers)
    if all([bool(torch.stack([a for a in answers if a.device == device]).all()) for device in devices]):
        return ()
    return tuple(number for number, answer in enumerate(answers) if not answer)
