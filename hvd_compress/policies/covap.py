"""COVAP: each bucket, or shard of one, is sent in one of `interval` steps.

Sun et al., "Near-Linear Scaling Data Parallel Training with Overlapping-Aware Gradient Compression", Sections III.A, C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast
from hvd_compress.cost.paths import Path
from hvd_compress.engines.launch import Launch
from hvd_compress.errors import ConfigError
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.policies.sharding import shard_counts
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import PolicySettings, Request
from hvd_compress.schemes.sharded import WHOLE, Shard
from hvd_compress.settings import Settings

SKIP = Path("skip")


@dataclass(frozen=True)
class Covap(PolicySettings):
    """Shard t is sent in step s iff (t + s) mod interval = 0, by what the request names.

    In the other steps its elements communicate nothing: their result is zero, and their gradient joins the residual,
    which the next step that sends them adds. float64 buckets have no residual and are sent in each step. Bytes on
    average: those of the request over `interval`.

    Attributes:
        shard: cut large buckets, so that steps send about as much (`sharding`); else each bucket is one shard.
        hold_unsent: a parameter of which a step sends nothing has no gradient in it, and its optimizer leaves it as it
            is; else momentum and weight decay move it by a gradient of zero.

    Raises ConfigError for an interval that is not a whole number, 1 or more.
    """

    interval: int = 4
    shard: bool = True
    hold_unsent: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.interval, bool) or not isinstance(self.interval, int) or self.interval < 1:
            raise ConfigError(f"interval = {self.interval!r} must be a whole number of steps, 1 or more")
        for name in ("shard", "hold_unsent"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} = {getattr(self, name)!r} must be True or False")

    def make(self, request: Request, settings: Settings) -> CovapPolicy:
        return CovapPolicy(request, self)


class CovapPolicy(FixedPolicy):
    """Sends what the request says, each shard every `interval` steps."""

    def __init__(self, request: Request, settings: Covap) -> None:
        super().__init__(request)
        self._interval, self._shards_large = settings.interval, settings.shard
        self.holds_unsent = settings.hold_unsent
        self._buckets: list[_Filtered] = []

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        filtered = [layout for layout in buckets if layout.dtype != torch.float64]
        numels = [layout.numel for layout in filtered]
        counts = shard_counts(numels, self._interval) if self._shards_large else [1] * len(numels)
        by_bucket, first = iter(counts), 0
        self._buckets = []
        for layout in buckets:
            count = next(by_bucket) if layout.dtype != torch.float64 else 0
            shards = [Shard(number, count) for number in range(count)]
            parts = [layout.part(shard.of(layout.numel), layout.dtype) for shard in shards] or [layout]
            sent = super().setup(step, parts, launch)
            if shards:
                sent = [_in_turn(each, shard) for each, shard in zip(sent, shards, strict=True)]
            self._buckets.append(_Filtered(first, sent, bool(shards)))
            first += count
        return [self._at(step, number) for number in range(len(buckets))]

    def decide(self, step: int) -> Mapping[int, Decision]:
        return {number: self._at(step, number) for number in range(len(self._buckets))}

    def _at(self, step: int, number: int) -> Decision:
        bucket = self._buckets[number]
        if not bucket.waits:
            return bucket.sent[0]
        place = (
            -(bucket.first + step) % self._interval
        )  # of the shard whose turn it is, counted from the bucket's first
        if place < len(bucket.sent):
            return bucket.sent[place]
        return Decision(Cast(), SKIP, bucket.sent[0].device, reason=f"sent in one of {self._interval} steps")


def _in_turn(decision: Decision, shard: Shard) -> Decision:
    reason = decision.reason if shard == WHOLE else f"{decision.reason}; {shard}"
    return replace(decision, shard=shard, reason=reason)


@dataclass(frozen=True)
class _Filtered:
    """A bucket: the number of its first shard, how each is sent, and whether they wait for their turn."""

    first: int
    sent: Sequence[Decision]
    waits: bool
