"""Cast: send every element, perhaps in a smaller type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Input, Round, Rounds, SingleRound
from hvd_compress.compressors.encodings import AsDtype, Encoding
from hvd_compress.compressors.finite import scale_finite
from hvd_compress.errors import PayloadError
from hvd_compress.payload import Payload


@dataclass(frozen=True)
class Cast(SingleRound):
    """Round to `dtype`, to nearest even, without error feedback; `None` sends the gradient as it is."""

    dtype: torch.dtype | None = None
    compresses = False
    kind = "cast"
    functions: ClassVar = {"bf16": {"dtype": "bfloat16"}, "half": {"dtype": "float16"}, "dense": {}}

    def sum_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type in which a gradient of `dtype` travels: never a wider one than its own."""
        if self.dtype is None or dtype.itemsize <= self.dtype.itemsize:
            return dtype
        return self.dtype

    @property
    def encoding(self) -> Encoding | None:
        return None if self.dtype is None else AsDtype(self.dtype)

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        dtype = self.sum_dtype(layout.dtype)
        return (Round(layout.numel * dtype.itemsize, dtype),)

    def rounds(self, work: Input) -> Rounds:
        """In place where the gradient is sent as it is. A single payload is the sum, in the type that was sent."""
        own = self.compress(work.gradient, work.layout)
        payloads = yield own
        total = payloads[0]["values"]
        if total.data_ptr() != work.gradient.data_ptr():
            work.gradient.copy_(total)
        return scale_finite(work.gradient, work.scale)

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        return Payload({"values": corrected.to(self.sum_dtype(corrected.dtype))}, corrected.numel(), summable=True)

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        if payload["values"].numel() != out.numel():
            raise PayloadError(f"{payload['values'].numel()} values for {out.numel()} elements")
        out.add_(payload["values"].to(out.dtype), alpha=scale)
