"""Who is told what a session does: a timeline of each rank, and on rank 0 a log, TensorBoard and the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple
from itertools import pairwise

import torch

from hvd_compress.buckets.plan import Slot
from hvd_compress.collectives.phases import PhaseSpans
from hvd_compress.compressors import Cast
from hvd_compress.engines.base import Engine
from hvd_compress.events.history import Watcher
from hvd_compress.events.log import Log
from hvd_compress.events.recorder import EventRecorder
from hvd_compress.events.tensorboard import TensorBoard
from hvd_compress.events.timeline import Timeline, TraceRecord
from hvd_compress.policies import DecisionPolicy
from hvd_compress.request.request import Request
from hvd_compress.services.base import StepMoments
from hvd_compress.session import notices
from hvd_compress.session.bucket import SessionBucket
from hvd_compress.session.metrics import StepMetrics
from hvd_compress.settings import Settings


class Observers:
    """Made when ranks have met. What they are told decides nothing."""

    def __init__(self, settings: Settings, engine: Engine, start_s: float) -> None:
        """`start_s`: where a timeline counts from, by time.perf_counter()."""
        self._every, self._is_first = settings.timeline_every, engine.rank == 0
        self._timeline: Timeline | None = None
        self._board: TensorBoard | None = None
        self._writers: list[Watcher] = []
        self._recorder: EventRecorder | None = None  # where somebody wants to know
        self._told_nonfinite = False
        file = settings.timeline_of(engine.rank)
        if file:
            self._timeline = Timeline(file, engine.rank, engine.name, start_s)
        if self._is_first and settings.log is not None:
            self._writers.append(Log(settings.log))
        if self._is_first and settings.tensorboard is not None:
            self._board = TensorBoard(settings.tensorboard)
            self._writers.append(self._board)

    def watch(self, policy: DecisionPolicy, world_size: int) -> None:
        """Ranks have met, as many: this policy decides from now on."""
        if self._timeline is not None:
            policy.watch(self._timeline.event)
        for writer in self._writers:
            policy.watch(writer)
        if self._writers:
            self._recorder = EventRecorder(self._writers, world_size)

    def opened(self, request: Request, parameters: Mapping[str, Slot], knows_optimizer: bool) -> None:
        """Say what may not be what was meant, where anything but dense gradients was asked for.

        `knows_optimizer`: whether it has been checked that it has no momentum that the compression has, too.
        """
        if not self._is_first or (request.compressor, request.policy) == (Cast(), None):
            return
        wide = [name for name, slot in parameters.items() if slot.dtype == torch.float64]
        if wide:
            notices.tell_float64(wide, len(parameters))
        for compressor in dict.fromkeys(request.compressors) if not knows_optimizer else ():
            if remedy := compressor.refuses_momentum(0.5, adapts=False):
                notices.tell_momentum(compressor, remedy)

    def decided(self, step: int, buckets: Sequence[SessionBucket], policy: DecisionPolicy) -> None:
        """Buckets travel so from now on."""
        if self._recorder is not None:
            travels = [(bucket.layout, bucket.decision) for bucket in buckets]
            self._recorder.decided(step, travels, policy.tells_of)

    def exchanged(self, step: int, buckets: Sequence[SessionBucket], spans: Sequence[PhaseSpans]) -> None:
        """Buckets have travelled as was decided before the step."""
        if self._recorder is not None:
            self._recorder.exchanged(step, [bucket.decision for bucket in buckets], spans)

    def end_step(self, step: int, metrics: StepMetrics) -> bool:
        """A step is over. Return whether the relative error of the coming one is wanted."""
        if self._recorder is None:
            return False
        return self._recorder.end_step(step, metrics.figures)

    def trace(
        self, step: int, buckets: Sequence[SessionBucket], spans: Sequence[PhaseSpans], moments: StepMoments
    ) -> None:
        """Show the timeline a step, if it is one of those that it samples."""
        if self._timeline is None or step % self._every:
            return
        training = list(zip(("FORWARD", "BACKWARD", "WAIT"), pairwise(astuple(moments)[:4]), strict=True))
        records = [
            TraceRecord(bucket.layout.called, bucket.decision.facts(), each, bucket.decision.reason)
            for bucket, each in zip(buckets, spans, strict=True)
        ]
        self._timeline.step(step, training, records)

    def nonfinite(self, step: int, buckets: Sequence[SessionBucket]) -> None:
        """These were not finite; told once."""
        if self._is_first and not self._told_nonfinite:
            self._told_nonfinite = True
            notices.tell_nonfinite(step, [f"{bucket.number} ({bucket.layout.called})" for bucket in buckets])

    def close(self) -> None:
        """Let what is written be complete."""
        with ExitStack() as closing:  # each, also where another one fails
            for written in (self._timeline, self._board):
                if written is not None:
                    closing.callback(written.close)
