"""What every compressor promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch

from hvd_compress.errors import located
from hvd_compress.payload import Payload

Segments = Sequence[int]
"""The numel of each parameter in a bucket, in order; they add up to the bucket's numel."""


class Compressor(ABC):
    """Answers: which values do I send?

    A compressor is a frozen dataclass of settings. It never communicates, never reads the environment and keeps no
    state. Tensors are flat; `segments` says where the parameters lie, for those that treat each one by itself.
    """

    @abstractmethod
    def compress(self, corrected: torch.Tensor, segments: Segments) -> Payload:
        """Return what stands for `corrected` (numel,) on the wire."""

    def sum_dtype(self, dtype: torch.dtype) -> torch.dtype | None:
        """Return the type in which payloads of all ranks, for gradients of `dtype`, may be added element by element.

        None, unless a subclass knows better: its payloads can only be gathered.
        """
        return None

    @abstractmethod
    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, segments: Segments) -> None:
        """Add `scale` times the decompressed payload to `out` (numel,), fp32.

        Raises:
            PayloadError: lengths or indices do not fit; `out` is then as it was.
        """

    def sum_into(self, out: torch.Tensor, payloads: Sequence[Payload], scale: float, segments: Segments) -> None:
        """Write `scale` times the sum of the decompressed payloads, one a rank and added in this order, to `out`, fp32.

        Raises:
            PayloadError: as add_to(); it names the rank. What `out` holds then means nothing.
        """
        out.zero_()
        for rank, payload in enumerate(payloads):
            with located(f"payload from rank {rank}"):
                self.add_to(out, payload, scale, segments)

    @abstractmethod
    def wire_bytes(self, segments: Segments, dtype: torch.dtype) -> int:
        """Bytes of a payload, header aside; needs no tensor, so that cost and planner can call it."""

    def decompress(self, payload: Payload, segments: Segments) -> torch.Tensor:
        """Return the fp32 tensor (numel,) that the payload stands for, on its device."""
        device = next(iter(payload.tensors.values())).device
        out = torch.zeros(payload.numel, dtype=torch.float32, device=device)
        self.add_to(out, payload, 1.0, segments)
        return out


class FeedbackCompressor(Compressor):
    """A compressor that forgets nothing: what it does not send comes back with the next gradient."""

    @abstractmethod
    def compress_feedback(
        self, gradient: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor, segments: Segments
    ) -> Payload:
        """Compress corrected = gradient + residual, and write corrected - transmitted to `pending`.

        The same as compress() between an addition and a subtraction, in as few passes over memory as it takes.
        `residual` and `pending` are fp32 and may not overlap.
        """


class Sparsifier(FeedbackCompressor):
    """A compressor whose payload holds `indices` (int32, ascending) and `values` (fp32) of the elements it keeps.

    Its halves can be used apart, because in AR-Topk one rank selects and all ranks send.

    Attributes:
        ratio: k / numel, in (0, 1].
    """

    ratio: float

    @abstractmethod
    def kept(self, segments: Segments) -> int:
        """How many elements are sent of a bucket with these parameters; the same on every rank."""

    @abstractmethod
    def take(self, corrected: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Return corrected[indices] and set those elements to 0: they are sent, and nothing of them is pending.

        Raises:
            PayloadError: an index is out of range; `corrected` is then as it was.
        """


def spans(segments: Segments, layerwise: bool) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each parameter of a bucket, or of the whole bucket at once."""
    if not layerwise:
        yield 0, sum(segments)
        return
    start = 0
    for numel in segments:
        yield start, start + numel
        start += numel
