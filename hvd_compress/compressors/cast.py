"""Cast: send every element, perhaps in a smaller type."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress.compressors.base import Compressor, Segments
from hvd_compress.errors import PayloadError
from hvd_compress.payload import Payload


@dataclass(frozen=True)
class Cast(Compressor):
    """Round to `dtype`, to nearest even, without error feedback; `None` sends the gradient as it is."""

    dtype: torch.dtype | None = None

    def sum_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type in which a gradient of `dtype` travels: never a wider one than its own."""
        if self.dtype is None or dtype.itemsize <= self.dtype.itemsize:
            return dtype
        return self.dtype

    def compress(self, corrected: torch.Tensor, segments: Segments) -> Payload:
        return Payload({"values": corrected.to(self.sum_dtype(corrected.dtype))}, corrected.numel(), summable=True)

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, segments: Segments) -> None:
        if payload["values"].numel() != out.numel():
            raise PayloadError(f"{payload['values'].numel()} values for {out.numel()} elements")
        out.add_(payload["values"].to(out.dtype), alpha=scale)

    def wire_bytes(self, segments: Segments, dtype: torch.dtype) -> int:
        return sum(segments) * self.sum_dtype(dtype).itemsize
