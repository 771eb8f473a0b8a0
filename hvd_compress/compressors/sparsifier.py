"""What sparsifiers share: indices and values on the wire, and how a share of the elements is selected."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import check_ratio
from hvd_compress.compressors.base import FeedbackCompressor, Round, spans
from hvd_compress.compressors.finite import nan_unless
from hvd_compress.compressors.sparse_coding import SparseCoding
from hvd_compress.errors import located, received
from hvd_compress.payload import Payload

if TYPE_CHECKING:
    from typing_extensions import Self

Selected = tuple[torch.Tensor, torch.Tensor]
"""Indices (k,) int32, ascending, and values (k,)."""


@dataclass(frozen=True)
class Sparsifier(FeedbackCompressor):
    """A compressor whose payload holds ascending indices and values of the elements it keeps.

    Where the gradient is not finite the values are NaN, or some of them, so that all ranks see it: `select` finds at
    least one element there. What rounding takes of a value stays in the residual.

    Attributes:
        values: "fp32"; "bf16", rounded; or "int8", rounded to 8 bits with a bf16 scale for each 64 values.
        index_coding: "none", int32; or "delta", coded without loss by their differences, in about 8.6 bits an index
            where one of a hundred elements is kept.
    """

    values: str = field(default="fp32", kw_only=True)
    index_coding: str = field(default="none", kw_only=True)
    kind = "sparsifier"

    def __post_init__(self) -> None:
        SparseCoding(self.values, self.index_coding)  # checks both

    @cached_property
    def coding(self) -> SparseCoding:
        """How kept elements lie on the wire, and in how many bytes."""
        return SparseCoding(self.values, self.index_coding)

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
        return self.payload_of(
            [(start, self.select(corrected[start:stop])) for start, stop in self.spans(layout)], layout
        )

    def compress_feedback(
        self, gradient: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor, layout: Layout
    ) -> Payload:
        parts = [
            (start, self.select_feedback(gradient[start:stop], residual[start:stop], pending[start:stop]))
            for start, stop in self.spans(layout)
        ]
        return self.payload_of(parts, layout, pending)

    def payload_of(
        self, parts: Sequence[tuple[int, Selected]], layout: Layout, pending: torch.Tensor | None = None
    ) -> Payload:
        """Return the payload of what was selected in parts of a bucket, each with the place where it begins.

        `pending` (numel,), which is 0 there, receives what rounding takes of the values.
        """
        indices = _joined([found[0] + start if start else found[0] for start, found in parts])
        values = _joined([found[1].float() for _, found in parts])
        payload, lost = self.coding.encode(indices, values, layout.numel)
        if lost is not None and pending is not None:
            native.scatter_set(indices, lost, pending, 1.0)
        return payload

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        indices, values = self.coding.decode(payload)
        with received():
            native.scatter_add(indices, values, out, scale)

    def sum_into(self, out: torch.Tensor, payloads: Sequence[Payload], scale: float, layout: Layout) -> None:
        lists = []
        for rank, payload in enumerate(payloads):
            with located(f"payload from rank {rank}"), native.about(f"payload from rank {rank}"):
                lists.append(self.coding.decode(payload))
        with received():
            native.scatter_lists(lists, out, scale, clear=True, origin="payload from rank")


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


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
        super().__post_init__()
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
        """8 bytes a kept element, or fewer: SparseCoding."""
        return (Round(self.coding.nbytes(layout.numel, self.kept(layout))),)

    def with_ratio(self, ratio: float) -> Self:
        return replace(self, ratio=ratio)


def kept_of(ratio: float, numel: int) -> int:
    """Return k: at least one of anything that has an element."""
    return max(1, round(ratio * numel)) if numel else 0
