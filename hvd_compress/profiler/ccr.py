"""Profiles the communication-to-computation ratio of a running training, in a few steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from hvd_compress.engines.launch import Launch
from hvd_compress.errors import UnsupportedError
from hvd_compress.profiler.clocks import Clock, clock_of, device_of
from hvd_compress.profiler.recorder import Recorder
from hvd_compress.services.agreement import gathered
from hvd_compress.services.ccr import Ccr, StepRecord, ccr_of


class CcrProfiler:
    """Records backward passes with no exchange beside them, and then the exchanges, which ranks compare once.

    Whoever exchanges asks `active` before each exchange, and holds it back until the backward pass is over. All ranks
    call this alike.

    Attributes:
        active: whether steps are recorded.
        obstacle: why that cannot be, in words, as of a model on several devices; or nothing.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """`parameters`: those that are trained, by name. Nothing is watched before begin()."""
        self._parameters = parameters
        self._clock: Clock | None = None
        self.obstacle = ""
        try:
            self._clock = clock_of(device_of(parameters.values()))
        except UnsupportedError as error:
            self.obstacle = str(error)
        self._recorder: Recorder | None = None
        self._exchanges: list[float] = []
        self._steps = 0

    @property
    def active(self) -> bool:
        return self._recorder is not None

    def begin(self, steps: int) -> None:
        """Record the next steps; between two of them. Not where there is an obstacle."""
        assert self._clock is not None
        self.close()
        self._steps = steps
        self._recorder = Recorder(self._parameters, self._clock, steps)

    def end_step(self, step: int, exchange_s: float, launch: Launch) -> Ccr | None:
        """Take what the exchanges of a step took that is over. Return what was found with the last one.

        It waits then for the other ranks.
        """
        assert self._recorder is not None
        self._recorder.end_step(exchanged=True)
        self._exchanges.append(exchange_s)
        if len(self._exchanges) < self._steps:
            return None
        passes = [max(times.ready_s.values()) for times in self._recorder.times()]
        passes += [0.0] * (self._steps - len(passes))  # of steps in which this rank had no gradient
        mine = [*passes, *self._exchanges]
        ranks = launch(partial(gathered, mine), f"step {step}, comparing backward passes and exchanges")()
        self.close()
        steps = self._steps
        return ccr_of([[*map(StepRecord, rank[:steps], rank[steps:])] for rank in ranks])

    def restart(self) -> None:
        """Buckets are others: forget the steps so far, and record as many again."""
        self.begin(self._steps)

    def close(self) -> None:
        """Record no more."""
        if self._recorder is not None:
            self._recorder.close()
        self._recorder, self._exchanges = None, []
