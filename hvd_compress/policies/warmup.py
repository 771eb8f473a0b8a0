"""A warm-up: the first steps travel by another compressor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import check_whole
from hvd_compress.compressors import Compressor
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.feedback.schedule import ALL_BACK
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import WORDS, PolicySettings, Request
from hvd_compress.settings import Settings


@dataclass(frozen=True)
class Warmup(PolicySettings):
    """Steps 0 to steps - 1 travel by `compressor`, its path as of a fixed request; then the request holds.

    What both compressors keep under one key, such as the momentum of 1-bit Adam, goes from one to the other.

    Raises ConfigError for a number of steps that is not a whole number, 1 or more.
    """

    compressor: Compressor
    steps: int
    takes: ClassVar[tuple[str, ...]] = WORDS

    def __post_init__(self) -> None:
        check_whole("steps of the warm-up", self.steps, 1)

    def make(self, request: Request, settings: Settings) -> WarmupPolicy:
        return WarmupPolicy(request, self)


class WarmupPolicy(FixedPolicy):
    """Each step's decisions by its number."""

    cuttable = False

    def __init__(self, request: Request, warmup: Warmup) -> None:
        super().__init__(request)
        self._steps = warmup.steps
        back = request.feedback if warmup.compressor.error_feedback else ALL_BACK
        asked = replace(request, collective="auto", algorithm="auto", policy=None, feedback=back)
        first = replace(asked, compressor=warmup.compressor)
        self._first = FixedPolicy(first)
        self._decisions: dict[bool, Sequence[Decision]] = {}  # those of the warm-up are under True

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        self._first.measuring_s = self.measuring_s
        self._first.prepare(engine, parameters)
        super().prepare(engine, parameters)

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        reason = f"warm-up of {self._steps} steps"
        first = [
            replace(decision, reason=reason, is_trial=True) for decision in self._first.setup(step, buckets, launch)
        ]
        self._decisions = {True: first, False: super().setup(step, buckets, launch)}
        return self._at(step)

    def decide(self, step: int) -> Mapping[int, Decision]:
        return dict(enumerate(self._at(step)))

    def _at(self, step: int) -> Sequence[Decision]:
        return self._decisions[step < self._steps]
