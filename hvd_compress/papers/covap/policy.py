"""COVAP: each bucket, or shard of one, is sent in one of `interval` steps.

Sun et al., "Near-Linear Scaling Data Parallel Training with Overlapping-Aware Gradient Compression", Sections III.A, C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast
from hvd_compress.engines.launch import Launch
from hvd_compress.papers.covap.sharded import WHOLE, Shard
from hvd_compress.papers.covap.sharding import shard_counts
from hvd_compress.papers.covap.skip import SKIP
from hvd_compress.papers.covap.turns import Turn
from hvd_compress.policies.fixed import FixedPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request

DEFAULT_INTERVAL = 4
"""Of covap(), and where covap("auto") may measure nothing."""


class CovapPolicy(FixedPolicy):
    """Sends what the request says, each shard every `interval` steps.

    Shard t is sent in step s iff (t + s) mod interval = 0. In the other steps its elements communicate nothing: their
    result is zero, and their gradient joins the residual, which the next step that sends them adds. float64 buckets
    have no residual and are sent in each step. Bytes on average: those of the request over `interval`.
    """

    cuttable = False

    def __init__(self, request: Request, interval: int, shard: bool, hold_unsent: bool) -> None:
        """`shard`: cut large buckets, so that steps send about as much (`sharding`); else each bucket is one shard."""
        super().__init__(request)
        self._interval, self._shards_large, self._why = interval, shard, ""
        self._holds = hold_unsent
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
                sent = [self._in_turn(each, shard) for each, shard in zip(sent, shards, strict=True)]
            turn = f"sent in one of {self._interval} steps{self._why and f' ({self._why})'}"
            unsent = Turn(Cast(), SKIP, sent[0].device, turn, holds=self._holds)
            self._buckets.append(_Filtered(first, sent, bool(shards), unsent))
            first += count
        return [self._at(step, number) for number in range(len(buckets))]

    def decide(self, step: int) -> Mapping[int, Decision]:
        return {number: self._at(step, number) for number in range(len(self._buckets))}

    def _at(self, step: int, number: int) -> Decision:
        bucket = self._buckets[number]
        if not bucket.waits:
            return bucket.sent[0]
        # Of the shard whose turn it is, counted from the bucket's first one.
        place = -(bucket.first + step) % self._interval
        return bucket.sent[place] if place < len(bucket.sent) else bucket.unsent

    def _in_turn(self, decision: Decision, shard: Shard) -> Decision:
        words = (decision.reason, "" if shard == WHOLE else str(shard), self._why)
        reason = "; ".join(filter(None, words))
        return Turn(decision.compressor, decision.path, decision.device, reason, shard=shard, holds=self._holds)


@dataclass(frozen=True)
class _Filtered:
    """A bucket: the number of its first shard, how each is sent, whether they wait for their turn, and how it waits."""

    first: int
    sent: Sequence[Decision]
    waits: bool
    unsent: Decision
