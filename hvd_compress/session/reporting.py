"""What a session says of its steps: the report of each, its figures, and what observers show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Slot
from hvd_compress.engines import wire
from hvd_compress.engines.base import Engine
from hvd_compress.policies import DecisionPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.services.base import BucketMetrics, SeenStep, StepMoments
from hvd_compress.session.bucket import SessionBucket
from hvd_compress.session.metrics import StepMetrics
from hvd_compress.session.notices import tell_given_up
from hvd_compress.session.observers import Observers
from hvd_compress.session.report import Exchanged, StepReport
from hvd_compress.settings import Settings


class Reporting:
    """Reports each step of a session. What it is given decides nothing.

    Attributes:
        gathers: returns the bytes that this rank has sent to gather parameters since it was called last, and those of
            uncompressed gathers.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.gathers: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._metrics = StepMetrics()
        self._observers: Observers | None = None
        self._is_first, self._world_size = False, 1

    def meet(self, policy: DecisionPolicy, engine: Engine, start_s: float) -> None:
        """Ranks have met, and this policy decides. `start_s`: where a timeline counts from, by time.perf_counter()."""
        self._is_first, self._world_size = engine.rank == 0, engine.world_size
        if self._observers is None:
            self._observers = Observers(self._settings, engine, start_s)
        self._observers.watch(policy, engine.world_size)

    def opened(self, request: Request, parameters: Mapping[str, Slot], knows_optimizer: bool) -> None:
        """As Observers.opened()."""
        assert self._observers is not None
        self._observers.opened(request, parameters, knows_optimizer)

    def decided(self, step: int, buckets: Sequence[SessionBucket], policy: DecisionPolicy) -> None:
        """Buckets travel so from now on."""
        assert self._observers is not None
        self._observers.decided(step, buckets, policy)

    def exchanged(
        self, step: int, buckets: Sequence[SessionBucket], over: Exchanged, moments: StepMoments, is_regular: bool
    ) -> SeenStep:
        """Show the exchanges of a step that is committed, and return what services are to see of it.

        Args:
            is_regular: as `SeenStep.is_regular`.
        """
        assert self._observers is not None
        self._observers.trace(step, buckets, over.spans, moments)
        if is_regular:
            self._observers.exchanged(step, buckets, over.spans)
        found = zip(over.spans, buckets, strict=True)
        measured = [BucketMetrics(spans, b.report, b.state) for spans, b in found]
        if is_regular:
            measured = self._metrics.observe(measured)
        return SeenStep(step, measured, moments, over.finite, is_regular)

    def ended(
        self,
        step: int,
        buckets: Sequence[SessionBucket],
        over: Exchanged,
        travelled: Sequence[tuple[Layout, Decision]],
        start_s: float,
        before: StepReport | None,
    ) -> StepReport:
        """Return the report of a step.

        Args:
            travelled: how buckets have.
            start_s: when the front end began to wait, by time.perf_counter().
            before: the last report.
        """
        assert self._observers is not None
        if over.given_up and self._is_first:
            tell_given_up(step)
        if not over.finite and not over.given_up:
            self._observers.nonfinite(step, [buckets[place] for place in over.nonfinite])
        nonfinite = before.nonfinite_steps if before is not None else 0
        dense_bytes = _dense_bytes(buckets, self._world_size)
        report = StepReport.of(over, step, perf_counter() - start_s, dense_bytes, nonfinite, self.gathers())
        self._metrics.end_step(report, travelled)
        return report

    def end_step(self, step: int, buckets: Sequence[SessionBucket]) -> None:
        """Show the figures of a step, and measure the relative error of the coming one where that is shown.

        Args:
            buckets: all of the session.
        """
        assert self._observers is not None
        if self._observers.end_step(step, self._metrics):
            self.look(buckets)

    def metrics(self) -> dict[str, float]:
        """Return the figures of the last step by name; none before the first."""
        return self._metrics.figures()

    def take(self, figures: Mapping[str, float]) -> None:
        """Show these figures of the front end with those of each step, from the next one on."""
        self._metrics.front = figures

    def look(self, buckets: Sequence[SessionBucket]) -> None:
        """Measure the relative error of the coming step, between two steps; nothing is communicated."""
        self._metrics.look(buckets)

    def close(self) -> None:
        """Let what is written be complete."""
        if self._observers is not None:
            self._observers.close()


def _dense_bytes(buckets: Sequence[SessionBucket], world_size: int) -> int:
    """Return what uncompressed exchanges of all gradients that are not sparse would send."""
    found = [(each.collective.replaces, each.layout.nbytes) for each in buckets if not each.layout.sparse]
    return sum(getattr(wire, verb)(nbytes, world_size) for verb, nbytes in found)
