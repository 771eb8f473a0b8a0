"""COVAP with the interval that lets a backward pass hide what is sent: I = ceil(CCR), profiled while training runs.

Sun et al., "Near-Linear Scaling Data Parallel Training with Overlapping-Aware Gradient Compression", Section III.B.
"""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Sequence
from statistics import fmean

from hvd_compress.buckets.layout import Layout
from hvd_compress.engines.launch import Launch
from hvd_compress.events.history import Event
from hvd_compress.papers.covap.policy import DEFAULT_INTERVAL, CovapPolicy
from hvd_compress.policies.resumed import refused, said_by
from hvd_compress.policies.telling import TellingPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.services.agreement import WINDOW, Agreed, window
from hvd_compress.services.base import BucketMetrics, SeenStep
from hvd_compress.services.ccr import Ccr, WantsCcr, interval_of
from hvd_compress.services.watch import Watch

WARM = 2
"""Steps before the first profile: what is allocated and connected once belongs to no step."""


class AutoCovapPolicy(CovapPolicy, TellingPolicy):
    """Sends all until the ratio is known, then each shard every ceil(CCR) steps, until the network is another one.

    Where nothing may be measured, or a model has no one clock, the interval is DEFAULT_INTERVAL.
    """

    def __init__(self, request: Request, shard: bool, hold_unsent: bool) -> None:
        super().__init__(request, 1, shard, hold_unsent)
        TellingPolicy.__init__(self)
        self._watch, self._profile = Watch(self, self._history), _Profile(self)
        self.services = (self._watch, self._profile)
        self._ccr: float | None = None  # None until it is known
        self._step_s = 0.0
        self._layouts: Sequence[Layout] = ()

    @property
    def _measures(self) -> bool:
        return self.measuring_s is not None and not self._profile.obstacle

    @property
    def settled(self) -> bool:
        return not self._measures or self._ccr is not None

    def chosen(self) -> str:
        if not self._measures or self._ccr is None:
            return ""
        level_s = self._watch.alarm.level_s
        return json.dumps({"policy": "covap", "ccr": self._ccr, "level_s": None if math.isnan(level_s) else level_s})

    def go_on(self, chosen: str) -> bool:
        with refused():
            said = said_by("covap", chosen)
            if said is None:
                return False
            self._ccr, level_s = _figure(said["ccr"]), said["level_s"]
            if level_s is not None:
                if not _figure(level_s):
                    raise ValueError("exchanges took no time")
                self._watch.alarm.expect(_figure(level_s), found=2)
        return True

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self._watch.begin(launch)
        self._layouts, self._launch = buckets, launch
        if self.world_size == 1:
            self._interval, self._why = 1, "one rank exchanges nothing"
        elif not self._measures:
            self._interval, self._why = DEFAULT_INTERVAL, self._profile.obstacle or "nothing is measured"
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

    @property
    def every(self) -> int:
        """Whole intervals, as steps send different buckets."""
        if not self._measures or not self.settled:
            return 0
        return self._interval * math.ceil((window(self._step_s) if self._step_s else WINDOW) / self._interval)

    @property
    def is_awaited(self) -> bool:
        return False

    def note(self, metrics: Sequence[BucketMetrics]) -> tuple[()]:
        return ()

    def tell(self, notes: Sequence[tuple[()]]) -> Sequence[float]:
        return ()

    def on_steps(self, step: int, agreed: Agreed, notes: Sequence[tuple[()]]) -> float:
        steps = agreed.steps
        self._step_s = fmean(times.whole_s for times in steps)
        return fmean(times.summed_s for times in steps[: len(steps) // self._interval * self._interval])

    def on_alarm(self, step: int) -> None:
        """Profile anew."""
        self._ccr = None
        self.setup(step + 1, self._layouts, self._launch)


class _Profile(WantsCcr):
    """Has the ratio profiled until it is known."""

    def __init__(self, policy: AutoCovapPolicy) -> None:
        self._policy: AutoCovapPolicy = weakref.proxy(policy)  # which has this service
        self._steps = 0

    @property
    def wanted(self) -> bool:
        return not self._policy.settled and self._steps >= WARM

    def exchanged(self, seen: SeenStep) -> None:
        self._steps += seen.is_regular

    def take(self, step: int, ccr: Ccr) -> None:
        self._policy.take_ccr(step, ccr)


def _figure(value: object) -> float:
    if not isinstance(value, float) or not value >= 0:
        raise ValueError(f"{value!r} is no time and no ratio")
    return value
