"""The policy of collective="artopk": paths as of any request that leaves them open; by gain whose indices are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Probe
from hvd_compress.engines.launch import Launch
from hvd_compress.policies.auto.arms import Named
from hvd_compress.policies.auto.policy import AutoPolicy
from hvd_compress.policies.roots import STAR, Roots
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.services.agreement import Agreed
from hvd_compress.services.base import BucketMetrics


class ARTopkPolicy(AutoPolicy):
    """Chooses an algorithm by real steps, and for each bucket STAR or VAR, by `Roots`. Without measurements STAR stays.

    While algorithms are tried nothing is seen of gains, as they take turns at most a few steps each.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request, Named(request))
        self._roots = Roots((), 1)
        self._switched = False  # whether a bucket goes on with another root

    @property
    def _is_open(self) -> bool:
        return bool(self._arms)

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self._roots = Roots((), self.world_size)
        first = super().setup(step, buckets, launch)
        if self._chooser is not None:
            by_star = [number for number, each in enumerate(first) if each.path.collective == STAR]
            self._roots = Roots(by_star, self.world_size)
        return first

    def _decisions(self) -> list[Decision]:
        return [self._with_root(number, decision) for number, decision in enumerate(super()._decisions())]

    def _with_root(self, number: int, decision: Decision) -> Decision:
        path = self._roots.path(number, decision.path)
        reasons = (decision.reason, self._roots.reason(number, path))
        return replace(decision, path=path, reason="; ".join(filter(None, reasons)))

    def decide(self, step: int) -> Mapping[int, Decision]:
        decided = super().decide(step)
        if self._switched and not decided:
            decided = dict(enumerate(self._decisions()))
        self._switched = False
        return decided

    def probes(self, step: int) -> Mapping[int, Probe]:
        return {number: Probe(root_stats=True) for number in self._roots.numbers}

    def note(self, metrics: Sequence[BucketMetrics]) -> int:
        if self.settled:
            self._roots.see(metrics)
        return super().note(metrics)

    def tell(self, notes: Sequence[int]) -> Sequence[float]:
        return self._roots.tell()

    def on_steps(self, step: int, agreed: Agreed, notes: Sequence[int]) -> float | None:
        for event in self._roots.take(step, agreed.told):
            self._history.add(event)
            self._switched = True
        return super().on_steps(step, agreed, notes)
