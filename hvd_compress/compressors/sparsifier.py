"""What sparsifiers share: indices and values on the wire, and how a share of the elements is selected."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import FeedbackCompressor, Round, spans
from hvd_compress.compressors.checks import check_ratio
from hvd_compress.compressors.finite import nan_unless
from hvd_compress.errors import received
from hvd_compress.payload import Payload

if TYPE_CHECKING:
    from typing_extensions import Self

PAIR_BYTES = 8
"""Of a kept element: an int32 index and an fp32 value."""

Selected = tuple[torch.Tensor, torch.Tensor]
"""Indices (k,) int32, ascending, and values (k,)."""


class Sparsifier(FeedbackCompressor):
    """A compressor whose payload holds `indices` (int32, ascending) and `values` (fp32) of the elements it keeps.

    Where the gradient is not finite the values are NaN, or some of them, so that all ranks see it: `select` finds at
    least one element there.
    """

    kind = "sparsifier"

    @abstractmethod
    def select(self, x: torch.Tensor) -> Selected:
        """Select elements of x (n,)."""

    def select_feedback(self, gradient: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor) -> Selected:
        """Select in corrected = gradient + residual, and write it to `pending` with those elements 0; fp32 values."""
        finite = native.accumulate(gradient, residual, out=pending)
        indices, _ = self.select(pending)
        return indices, nan_unless(finite, native.take(pending, indices))

    def spans(self, layout: Layout) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of what is selected in by itself: the whole bucket."""
        return spans(layout, False)

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        parts = [(start, self.select(corrected[start:stop])) for start, stop in self.spans(layout)]
        return payload_of(parts, layout)

    def compress_feedback(
        self, gradient: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor, layout: Layout
    ) -> Payload:
        parts = [
            (start, self.select_feedback(gradient[start:stop], residual[start:stop], pending[start:stop]))
            for start, stop in self.spans(layout)
        ]
        return payload_of(parts, layout)

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        with received():
            native.scatter_add(payload["indices"], payload["values"], out, scale)

    def sum_into(self, out: torch.Tensor, payloads: Sequence[Payload], scale: float, layout: Layout) -> None:
        lists = [(payload["indices"], payload["values"]) for payload in payloads]
        with received():
            native.scatter_lists(lists, out, scale, clear=True, origin="payload from rank")


@dataclass(frozen=True)
class FixedRatio(Sparsifier):
    """A sparsifier that keeps as many elements on every rank in every step. In AR-Topk one rank selects and all send.

    Attributes:
        ratio: k / numel, in (0, 1]. At least one element is kept of anything that has one.
        layerwise: select in each parameter by itself instead of in the fused bucket.
    """

    ratio: float = 0.01
    layerwise: bool = False
    has_ratio = True

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    @property
    def sent_ratio(self) -> float:
        return float(self.ratio)

    def kept(self, layout: Layout) -> int:
        """How many elements are sent of a bucket with these parameters; the same on every rank."""
        return sum(kept_of(self.ratio, stop - start) for start, stop in self.spans(layout))

    def take(self, corrected: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Return corrected[indices] and set those elements to 0: they are sent, and nothing of them is pending.

        Raises:
            PayloadError: an index is out of range; `corrected` is then as it was.
        """
        with received():
            return native.take(corrected, indices)

    def spans(self, layout: Layout) -> Iterator[tuple[int, int]]:
        return spans(layout, self.layerwise)

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        """8 bytes a kept element."""
        return (Round(PAIR_BYTES * self.kept(layout)),)

    def with_ratio(self, ratio: float) -> Self:
        return replace(self, ratio=ratio)


def kept_of(ratio: float, numel: int) -> int:
    """Return k: at least one of anything that has an element."""
    return max(1, round(ratio * numel)) if numel else 0


def payload_of(parts: Sequence[tuple[int, Selected]], layout: Layout) -> Payload:
    """Return the payload of what was selected in parts of a bucket, each with the place where it begins."""
    indices = [found[0] + start if start else found[0] for start, found in parts]
    tensors = {"indices": torch.cat(indices), "values": torch.cat([found[1].float() for _, found in parts])}
    return Payload(tensors, numel=layout.numel)
