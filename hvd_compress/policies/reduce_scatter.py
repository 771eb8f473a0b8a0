"""Every bucket travels by a reduce-scatter, as the front end wants shards and no sums: nothing is to choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.reduce_scatter import NAME
from hvd_compress.cost.paths import Path
from hvd_compress.engines.launch import Launch
from hvd_compress.policies.base import DecisionPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import PolicySettings, Request, compression_device
from hvd_compress.settings import Settings


@dataclass(frozen=True)
class ReduceScattered(PolicySettings):
    """Of a request whose compressor the collective carries."""

    def make(self, request: Request, settings: Settings) -> DecisionPolicy:
        return ReduceScatterPolicy(request)


class ReduceScatterPolicy(DecisionPolicy):
    """The request's compressor, in every bucket and step."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        return [self._decision(layout) for layout in buckets]

    def _decision(self, layout: Layout) -> Decision:
        device = compression_device(self._request, layout.device_type)
        return Decision(self._request.compressor, Path(NAME), device, "each rank owns a shard")
