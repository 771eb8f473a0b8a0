"""COVAP's filter: each bucket is sent in one of `interval` steps.

Sun et al., "COVAP: Overlapping-aware gradient compression for distributed deep learning", the coarse-grained filter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast
from hvd_compress.cost.paths import Path
from hvd_compress.engines.launch import Launch
from hvd_compress.errors import ConfigError
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import PolicySettings, Request
from hvd_compress.settings import Settings

SKIP = Path("skip")


@dataclass(frozen=True)
class Covap(PolicySettings):
    """Bucket t is sent in step s iff (t + s) mod interval = 0, whole and without compression.

    In the other steps it communicates nothing: its result is zero, and its gradient joins the residual, which the next
    step that sends it adds. float64 buckets have no residual and are sent in each step. Bytes on average: those of an
    allreduce over `interval`.

    Raises ConfigError for an interval that is not a whole number, 1 or more.
    """

    interval: int = 4

    def __post_init__(self) -> None:
        if isinstance(self.interval, bool) or not isinstance(self.interval, int) or self.interval < 1:
            raise ConfigError(f"interval = {self.interval!r} must be a whole number of steps, 1 or more")

    def make(self, request: Request, settings: Settings) -> CovapPolicy:
        return CovapPolicy(request, self.interval)


class CovapPolicy(FixedPolicy):
    """Sends what the request says, each bucket every `interval` steps."""

    def __init__(self, request: Request, interval: int) -> None:
        super().__init__(request)
        self._interval = interval
        self._sent: Sequence[Decision] = ()
        self._layouts: Sequence[Layout] = ()

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self._layouts, self._sent = buckets, super().setup(step, buckets, launch)
        return [self._at(step, number) for number in range(len(buckets))]

    def decide(self, step: int) -> Mapping[int, Decision]:
        return {number: self._at(step, number) for number in range(len(self._sent))}

    def _at(self, step: int, number: int) -> Decision:
        sent, interval = self._sent[number], self._interval
        if self._layouts[number].dtype == torch.float64 or (number + step) % interval == 0:
            return sent
        return Decision(Cast(), SKIP, sent.device, f"sent in one of {interval} steps")
