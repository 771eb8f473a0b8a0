"""EF-sign: send one bit an element and one scale a parameter."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import FeedbackCompressor, Input, Round, packed_spans
from hvd_compress.errors import PayloadError
from hvd_compress.feedback.residual import Residual
from hvd_compress.payload import Payload


@dataclass(frozen=True)
class SentSigns:
    """What a step sent of a corrected gradient: of each span its signs times a scale.

    Attributes:
        spans: of the bucket.
        scales: (len(spans),) fp32.
    """

    spans: tuple[slice, ...]
    scales: torch.Tensor

    def subtracted(self, corrected: torch.Tensor, part: slice) -> torch.Tensor:
        first, last, _ = part.indices(corrected.numel())
        found = corrected[first:last].clone()
        # Of those spans alone that the part meets: all parameters of a bucket may be read one by one.
        begin = bisect_right(self.spans, first, key=lambda span: span.stop)
        end = bisect_left(self.spans, last, key=lambda span: span.start)
        for span, scale in zip(self.spans[begin:end], self.scales[begin:end], strict=True):
            own = found[max(span.start - first, 0) : span.stop - first]
            own -= torch.where(own < 0, -scale, scale)
        return found


@dataclass(frozen=True)
class EFSign(FeedbackCompressor):
    """Sign compression with error feedback (Karimireddy et al. 2019, Algorithm 1).

    What is sent is mean|corrected| * sign(corrected), with sign(0) = +1.

    Attributes:
        layerwise: one scale for each parameter, as in the paper, instead of one for the bucket.
    """

    layerwise: bool = True
    kind = "quantiser"
    source = "Karimireddy et al. 2019"

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        return self.compress_feedback(corrected, torch.zeros_like(corrected), torch.empty_like(corrected), layout)

    def compress_feedback(
        self, gradient: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor, layout: Layout
    ) -> Payload:
        parts, found = self._allocated(gradient, layout)
        for (span, place), scale in zip(parts, found["scales"], strict=True):
            into = found["bits"][place], scale
            native.sign_accumulate(gradient[span], residual[span], out=pending[span], into=into)
        return found

    def encode(self, work: Input) -> Payload:
        """One pass: the corrected gradient is left, and what was sent of it subtracted where the next step reads it."""
        residual, gradient = work.state.residual, work.gradient
        if residual is None or not residual.may_defer or work.coefficient != 1:
            return super().encode(work)
        parts, found = self._allocated(gradient, work.layout)
        spans, before = tuple(span for span, _ in parts), residual.kept.deferred
        kept, out = residual.memory
        if isinstance(before, SentSigns) and before.spans == spans:
            sent = before.scales
        else:
            kept, sent = residual.current, torch.zeros_like(found["scales"])
        for (span, place), was, scale in zip(parts, sent, found["scales"], strict=True):
            into = found["bits"][place], scale
            native.sign_accumulate_kept(gradient[span], kept[span], was, out=out[span], into=into)
        residual.defer(SentSigns(spans, self._kept_scales(residual, found["scales"])))
        return found

    @staticmethod
    def _kept_scales(residual: Residual, scales: torch.Tensor) -> torch.Tensor:
        """Copy scales out of what leaves, into memory that lives as long as the residual's: any stream may read it."""
        replaced = residual.replaced
        if isinstance(replaced, SentSigns) and replaced.scales.shape == scales.shape:
            return replaced.scales.copy_(scales)
        return scales.clone()

    def _allocated(self, gradient: torch.Tensor, layout: Layout) -> tuple[list[tuple[slice, slice]], Payload]:
        """Return spans of elements, each with that of its bytes, and a payload to write to."""
        parts = list(packed_spans(layout, self.layerwise, 1))
        fields = {"bits": (parts[-1][1].stop, torch.uint8), "scales": (len(parts), torch.float32)}
        return parts, Payload.allocate(fields, layout.numel, gradient.device)

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        bits, scales = payload["bits"], payload["scales"]
        parts = list(packed_spans(layout, self.layerwise, 1))
        expected = parts[-1][1].stop, len(parts)
        if (bits.numel(), scales.numel()) != expected:
            raise PayloadError(
                f"{bits.numel()} bytes of signs and {scales.numel()} scales, expected {expected[0]} and {expected[1]}"
            )
        for (elements, place), factor in zip(parts, scales, strict=True):
            native.sign_add(bits[place], factor, out[elements], scale)

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        """One bit an element, each parameter padded to whole bytes, and 4 bytes a scale."""
        parts = list(packed_spans(layout, self.layerwise, 1))
        return (Round(parts[-1][1].stop + 4 * len(parts)),)
