"""AdaQS, the baseline of Accordion's authors: less compression, step by step, as gradients become noisier.

Guo et al., "Accelerating Distributed Deep Learning By Adaptive Gradient Quantization", ICASSP 2020: where the ratio of
a gradient's mean to its standard deviation (MSDR) has fallen by some share, half as much is compressed from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import ClassVar

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Part
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.feedback.states import RESULT_SUM, BucketState
from hvd_compress.policies.agreement import gathered
from hvd_compress.policies.base import DecisionPolicy
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import PolicySettings, Request
from hvd_compress.settings import Settings

FALL = 0.5
"""Of the MSDR, as a share, at which a level is left: a hyper-parameter of its authors, who give none."""


@dataclass(frozen=True)
class AdaQS(PolicySettings):
    """Levels, of which each sends about twice as much as the one before; the request's own is the first."""

    further: tuple[Request, ...]
    allocates_sum: ClassVar[bool] = True

    def make(self, request: Request, settings: Settings) -> AdaQSPolicy:
        return AdaQSPolicy([replace(request, policy=None), *self.further])


class AdaQSPolicy(DecisionPolicy):
    """Compares the MSDR of each parameter's gradient, summed over an epoch, with that at its last change of level."""

    adds_results = True

    def __init__(self, levels: Sequence[Request]) -> None:
        self._levels = [FixedPolicy(level) for level in levels]
        self._layouts: Sequence[Layout] = ()
        self._decisions: list[Sequence[Decision]] = []
        self._level: list[int] = []
        self._known: dict[str, float] = {}

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        super().prepare(engine, parameters)
        for level in self._levels:
            level.prepare(engine, parameters)

    def parts(self, names: Sequence[str]) -> Sequence[Part]:
        return [Part((name,)) for name in names]

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self._layouts, self._level = buckets, [0] * len(buckets)
        self._decisions = [level.setup(step, buckets, launch) for level in self._levels]
        return [self._decisions[0][number] for number in range(len(buckets))]

    def decide(self, step: int) -> Mapping[int, Decision]:
        return {number: self._decisions[level][number] for number, level in enumerate(self._level)}

    def end_epoch(
        self, step: int, rates: Sequence[float], states: Sequence[BucketState], unit: float, launch: Launch
    ) -> None:
        sums = {name: each for state in states for (kind, name), each in state.current.items() if kind == RESULT_SUM}
        ranks = launch(partial(gathered, [_msdr(each) for each in sums.values()]), f"step {step}, comparing MSDRs")()
        found = dict(zip(sums, map(fmean, zip(*ranks, strict=True)), strict=True))
        for each in sums.values():
            each.zero_()
        for number, layout in enumerate(self._layouts):
            (name,) = layout.names
            if found[name] < (1 - FALL) * self._known.setdefault(name, found[name]):
                self._level[number] = min(self._level[number] + 1, len(self._levels) - 1)
                self._known[name] = found[name]


def _msdr(gradient: torch.Tensor) -> float:
    deviation = float(gradient.double().std()) if gradient.numel() > 1 else 0.0
    return abs(float(gradient.double().mean())) / deviation if deviation else 0.0
