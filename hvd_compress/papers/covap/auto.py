"""COVAP with the interval that lets a backward pass hide what is sent: I = ceil(CCR), profiled while training runs.

Sun et al., "Near-Linear Scaling Data Parallel Training with Overlapping-Aware Gradient Compression", Section III.B.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import fmean

from hvd_compress.buckets.layout import Layout
from hvd_compress.engines.launch import Launch
from hvd_compress.events.history import Event
from hvd_compress.papers.covap.policy import DEFAULT_INTERVAL, CovapPolicy
from hvd_compress.policies.agreement import WINDOW, Agreement, StepTimes, window
from hvd_compress.policies.base import BucketMetrics, StepMoments
from hvd_compress.policies.ccr import Ccr, interval_of
from hvd_compress.policies.detector import THRESHOLD, Detector
from hvd_compress.policies.resumed import refused, said_by
from hvd_compress.policies.telling import TellingPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request

WARM = 2
"""Steps before the first profile: what is allocated and connected once belongs to no step."""


class AutoCovapPolicy(CovapPolicy, TellingPolicy):
    """Sends all until the ratio is known, then each shard every ceil(CCR) steps, until the network is another one.

    Where nothing may be measured, or a model has no one clock, the interval is DEFAULT_INTERVAL.
    """

    profiles_ccr = True

    def __init__(self, request: Request, shard: bool, hold_unsent: bool) -> None:
        super().__init__(request, 1, shard, hold_unsent)
        TellingPolicy.__init__(self)
        self._agreement = Agreement()
        self._steps = 0
        self._ccr: float | None = None  # None until it is known
        self._detector: Detector | None = None
        self._threshold = THRESHOLD
        self._step_s = 0.0
        self._layouts: Sequence[Layout] = ()

    @property
    def _measures(self) -> bool:
        return self.measuring_s is not None and not self.ccr_obstacle

    @property
    def settled(self) -> bool:
        return not self._measures or self._ccr is not None

    @property
    def wants_ccr(self) -> bool:  # type: ignore[override]
        return not self.settled and self._steps >= WARM

    def chosen(self) -> str:
        if not self._measures or self._ccr is None:
            return ""
        level_s = None if self._detector is None else self._detector.level_s
        return json.dumps({"policy": "covap", "ccr": self._ccr, "level_s": level_s})

    def go_on(self, chosen: str) -> bool:
        with refused():
            said = said_by("covap", chosen)
            if said is None:
                return False
            self._ccr, level_s = _figure(said["ccr"]), said["level_s"]
            if level_s is not None and not _figure(level_s):
                raise ValueError("exchanges took no time")
            self._detector = None if level_s is None else Detector(_figure(level_s), found=2)
        return True

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self._agreement.drop()  # it is about other buckets
        self._layouts, self._launch = buckets, launch
        if self.world_size == 1:
            self._interval, self._why = 1, "one rank exchanges nothing"
        elif not self._measures:
            self._interval, self._why = DEFAULT_INTERVAL, self.ccr_obstacle or "nothing is measured"
        elif self._ccr is not None:
            self._interval = interval_of(self._ccr)
            self._why = f"CCR {self._ccr:.3g}"
        else:
            self._interval, self._why = 1, "until the CCR is known"
        return super().setup(step, buckets, launch)

    def take_ccr(self, step: int, ccr: Ccr) -> None:
        self._ccr, interval = ccr.ratio, interval_of(ccr.ratio)
        most = ", the longest that is chosen: send less with sent=" if interval < ccr.ratio < math.inf else ""
        self._history.add(Event(step, "ccr", reason=f"{ccr}: interval {interval}{most}"))
        self.setup(step + 1, self._layouts, self._launch)

    def observe(self, step: int, metrics: Sequence[BucketMetrics], moments: StepMoments) -> None:
        self._steps += 1
        if not self.settled or not self._measures or moments.held_back:
            return
        if self._agreement.ready(step):
            self._watch_network(step, self._agreement.take().steps)
        self._agreement.record(moments, metrics)

    def launched(self, step: int) -> None:
        """Behind the last exchange ranks are in step. They compare the steps before this one, whole intervals."""
        if (
            self._measures
            and self.settled
            and not self._agreement.under_way
            and self._agreement.recorded >= self._every
        ):
            self._agreement.begin(self._launch, step)

    @property
    def _every(self) -> int:
        return self._interval * math.ceil((window(self._step_s) if self._step_s else WINDOW) / self._interval)

    def _watch_network(self, step: int, steps: Sequence[StepTimes]) -> None:
        """Has what exchanges take changed? Whole intervals are compared, as steps send different buckets."""
        self._step_s = fmean(times.whole_s for times in steps)
        summed_s = fmean(times.summed_s for times in steps[: len(steps) // self._interval * self._interval])
        if self._detector is None:
            self._detector = Detector(summed_s, self._threshold)
        elif self._detector.add(summed_s):
            self._threshold = 2 * self._detector.threshold  # a network that was measured in vain is noisy
            self._history.add(Event(step, "network", reason="exchanges take another time than those before"))
            self._ccr = self._detector = None
            self.setup(step + 1, self._layouts, self._launch)


def _figure(value: object) -> float:
    if not isinstance(value, float) or not value >= 0:
        raise ValueError(f"{value!r} is no time and no ratio")
    return value
