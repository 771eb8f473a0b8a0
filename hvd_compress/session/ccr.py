"""The communication-to-computation ratio of a running training, profiled in a few steps where somebody wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.engines.launch import Launch
from hvd_compress.errors import UnsupportedError
from hvd_compress.policies import DecisionPolicy
from hvd_compress.services.agreement import gathered
from hvd_compress.services.base import SeenStep, Service, Watched
from hvd_compress.services.ccr import Ccr, StepRecord, WantsCcr, ccr_of
from hvd_compress.session.clocks import Clock, clock_of, device_of
from hvd_compress.session.gradient_times import Recorder
from hvd_compress.settings import DEFAULT_CCR_STEPS


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


class CcrMeasurement(Service):
    """Has the communication-to-computation ratio profiled where somebody wants it: a policy or a program.

    Attributes:
        profiler: what records; None where nothing knows parameters.
        asked: in how many steps a program wants it profiled; 0 where none does, or it has the ratio.
        found: the last ratio that a program has asked for; None before the first.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._session: Watched
        self._of_policy: WantsCcr | None = None
        self._for_policy = False  # what is recorded
        self._layouts: Sequence[Layout] = ()  # of the steps that are recorded
        self.profiler: CcrProfiler | None = None
        self.found: Ccr | None = None

    @property
    def holds_back(self) -> bool:  # type: ignore[override]
        return self.profiler is not None and self.profiler.active

    @property
    def obstacle(self) -> str:
        """Why nothing can be profiled here, in words; or nothing."""
        return "nothing knows parameters" if self.profiler is None else self.profiler.obstacle

    def serve(self, policy: DecisionPolicy) -> None:
        """This policy decides from now on; it may want a ratio."""
        self._of_policy = next((each for each in policy.services if isinstance(each, WantsCcr)), None)
        if self._of_policy is not None:
            self._of_policy.obstacle = self.obstacle

    def fingerprint(self) -> Mapping[str, str]:
        return {} if self._of_policy is None else {"what keeps a CCR from being profiled": self.obstacle}

    def ask(self, steps: int) -> None:
        """Have the coming steps recorded, or the first ones in which the policy tries nothing. All ranks call it."""
        self.asked = steps

    def opened(self, session: Watched) -> None:
        self._session = session

    def exchanged(self, seen: SeenStep) -> None:
        """Take how long exchanges took beside no backward pass, and begin or end a profile."""
        if self.profiler is None:
            return
        layouts = self._session.layouts  # which may have been cut anew in this step
        if not self.profiler.active:
            self._begin(layouts)
        elif layouts != self._layouts:
            self._layouts = layouts
            self.profiler.restart()
        else:
            found = self.profiler.end_step(seen.step, seen.moments.waited_s, self._session.launch)
            if found is not None and self._for_policy and self._of_policy is not None:
                self._of_policy.take(seen.step, found)
            elif found is not None:
                self.found, self.asked = found, 0

    def _begin(self, layouts: Sequence[Layout]) -> None:
        """Record the coming steps, if somebody wants that."""
        assert self.profiler is not None
        self._for_policy = self._of_policy is not None and self._of_policy.wanted
        steps = DEFAULT_CCR_STEPS if self._for_policy else self.asked * self._session.settled
        if steps:
            self._layouts = layouts
            self.profiler.begin(steps)

    def failed(self) -> None:
        self.close()

    def close(self) -> None:
        """Record no more."""
        if self.profiler is not None:
            self.profiler.close()
