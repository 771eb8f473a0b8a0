"""Top-k: send the k elements of largest magnitude, with their indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Round, Sparsifier, spans
from hvd_compress.errors import ConfigError, received
from hvd_compress.payload import Payload


@dataclass(frozen=True)
class TopK(Sparsifier):
    """Exact top-k with error feedback (Aji and Heafield 2017; Lin et al. 2018).

    Attributes:
        ratio: k / numel, in (0, 1]. At least one element is kept of anything that has one.
        layerwise: select in each parameter by itself (LWTopk) instead of in the fused bucket.
    """

    ratio: float = 0.01
    layerwise: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.ratio, bool) or not isinstance(self.ratio, (int, float)):
            raise ConfigError(f"ratio must be a number, got {self.ratio!r}")
        if not 0 < self.ratio <= 1:
            raise ConfigError(
                f"ratio = {self.ratio!r} lies outside (0, 1]; it is the share that is sent: one per cent is 0.01"
            )

    def kept(self, layout: Layout) -> int:
        return sum(k for _, _, k in self._parts(layout))

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        parts = [native.topk(corrected[start:stop], k) for start, stop, k in self._parts(layout)]
        return self._payload(parts, layout)

    def compress_feedback(
        self, gradient: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor, layout: Layout
    ) -> Payload:
        parts = [
            native.topk_accumulate(gradient[start:stop], residual[start:stop], k, out=pending[start:stop])
            for start, stop, k in self._parts(layout)
        ]
        return self._payload(parts, layout)

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        with received():
            native.scatter_add(payload["indices"], payload["values"], out, scale)

    def sum_into(self, out: torch.Tensor, payloads: Sequence[Payload], scale: float, layout: Layout) -> None:
        lists = [(payload["indices"], payload["values"]) for payload in payloads]
        with received():
            native.scatter_lists(lists, out, scale, clear=True, origin="payload from rank")

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        """8 bytes a kept element: an int32 index and an fp32 value."""
        return (Round(8 * self.kept(layout)),)

    def with_ratio(self, ratio: float) -> TopK:
        return replace(self, ratio=ratio)

    def take(self, corrected: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        with received():
            return native.take(corrected, indices)

    def _parts(self, layout: Layout) -> Iterator[tuple[int, int, int]]:
        for start, stop in spans(layout, self.layerwise):
            numel = stop - start
            yield start, stop, max(1, round(self.ratio * numel)) if numel else 0

    def _payload(self, parts: list[tuple[torch.Tensor, torch.Tensor]], layout: Layout) -> Payload:
        starts = [start for start, _ in spans(layout, self.layerwise)]
        indices = [part[0] + start if start else part[0] for part, start in zip(parts, starts, strict=True)]
        tensors = {"indices": torch.cat(indices), "values": torch.cat([part[1].float() for part in parts])}
        return Payload(tensors, numel=layout.numel)
