"""Quantisers made of torch operations: a bucket goes through them in chunks that stay in a core's cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import MESSAGE_BYTES, Input, Requantizer, Round, each_checked, feedback_of, others_of
from hvd_compress.compressors.finite import all_finite
from hvd_compress.errors import PayloadError
from hvd_compress.payload import Payload

CHUNK = 1 << 18
"""Elements of a chunk on the CPU: a multiple of every granule."""
DEVICE_CHUNK = 1 << 24
"""On a GPU, where an operation costs a launch."""

Codes = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Origin:
    """What random numbers of a chunk may depend on.

    Attributes:
        step, bucket, rank: as of Input.
        start: the chunk's first element, counted in the bucket.
        is_sum: whether the chunk is a sum, compressed by its owner.
    """

    step: int
    bucket: int
    rank: int
    start: int
    is_sum: bool = False


class ChunkedQuantizer(Requantizer):
    """A Requantizer whose subclass says how a chunk becomes codes, and codes a chunk; the rest is here.

    With error feedback residual = corrected - transmitted, rounded to fp32, at both ends. `transmitted` is what
    dequantise() makes of the codes.
    """

    message_bytes = MESSAGE_BYTES

    @abstractmethod
    def fields(self) -> Mapping[str, torch.dtype]:
        """Return the dtypes of a payload's tensors, by name."""

    @abstractmethod
    def length(self, name: str, numel: int) -> int:
        """Return the length of a payload's tensor for `numel` elements; proportional to whole granules."""

    @abstractmethod
    def quantise(self, x: torch.Tensor, codes: Codes, origin: Origin) -> None:
        """Write the codes of x (n,) fp32, which stays as it is."""

    @abstractmethod
    def dequantise(self, codes: Codes, out: torch.Tensor) -> None:
        """Write what the codes stand for to `out` (n,) fp32."""

    def check_values(self, payload: Payload) -> Payload:
        """Raise PayloadError where a value cannot be; on a GPU, where the host would have to wait, it becomes NaN."""
        return payload

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        return (Round(sum(self.length(name, layout.numel) * dtype.itemsize for name, dtype in self.fields().items())),)

    def template(self, numel: int) -> Payload:
        return self._empty(numel, torch.device("cpu"))

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        """Compress as rank 0 does in step 0 of bucket 0."""
        found = self._empty(corrected.numel(), corrected.device)
        for part in chunks(slice(0, corrected.numel()), corrected.device):
            self.quantise(corrected[part].float(), self._codes(found, part), Origin(0, 0, 0, part.start))
        return found

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        payload = self._checked(payload, out.numel())
        for part in chunks(slice(0, out.numel()), out.device):
            sent = torch.empty_like(out[part])
            self.dequantise(self._codes(payload, part), sent)
            out[part].add_(sent, alpha=scale)

    def encode_shard(self, work: Input, shard: slice, owner: int) -> Payload:
        found = self._empty(shard.stop - shard.start, work.gradient.device)
        for part in chunks(shard, work.gradient.device):
            self._send(work, part, self._corrected(work, part), self._codes(found, _within(part, shard)), False)
        return found

    def keep_shard(self, work: Input, shard: slice) -> None:
        if self.error_feedback:
            self._corrected(work, shard)

    def sum_shard(self, work: Input, shard: slice, others: Sequence[Payload]) -> Payload:
        numel, rank = shard.stop - shard.start, work.rank
        sources = each_checked(self._checked, others, others_of(rank, others), numel)
        corrected = feedback_of(work)[1] if self.error_feedback else work.gradient
        found = self._empty(numel, work.gradient.device)
        for part in chunks(shard, work.gradient.device):
            own, place = corrected[part].float(), _within(part, shard)
            total = self._sum([*sources[:rank], own, *sources[rank:]], place, torch.empty_like(own))
            self._send(work, part, total, self._codes(found, place), True)
        return found

    def write(self, work: Input, parts: Sequence[tuple[slice, Sequence[Payload]]]) -> torch.Tensor:
        finite = [all_finite(work.gradient[:0])]
        for shard, payloads in parts:
            sources = each_checked(self._checked, payloads, range(len(payloads)), shard.stop - shard.start)
            for part in chunks(shard, work.gradient.device):
                out = work.gradient[part]
                total = out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
                out.copy_(self._sum(sources, _within(part, shard), total).mul_(work.scale))
                finite.append(all_finite(out))
        return torch.stack(finite).all()

    def _corrected(self, work: Input, part: slice) -> torch.Tensor:
        """Return gradient + residual in fp32, which lies in work.pending where there is error feedback."""
        if not self.error_feedback:
            return work.gradient[part].float()
        residual, pending = feedback_of(work)
        native.accumulate(work.gradient[part], residual[part], out=pending[part])
        return pending[part]

    def _send(self, work: Input, part: slice, x: torch.Tensor, codes: Codes, is_sum: bool) -> None:
        """Quantise a chunk; with error feedback what that loses goes to work.pending, which may hold x."""
        self.quantise(x, codes, Origin(work.step, work.bucket, work.rank, part.start, is_sum))
        if self.error_feedback:
            sent = torch.empty_like(x)
            self.dequantise(codes, sent)
            torch.sub(x, sent, out=feedback_of(work)[1][part])

    def _sum(self, sources: Sequence[Payload | torch.Tensor], place: slice, total: torch.Tensor) -> torch.Tensor:
        """Write the sum of the sources to `total`, in their order; a tensor is a chunk itself."""
        sent = torch.empty_like(total)
        for number, source in enumerate(sources):
            if isinstance(source, torch.Tensor):
                value = source
            else:
                value = sent if number else total
                self.dequantise(self._codes(source, place), value)
            if number:
                total += value
            elif value is not total:
                total.copy_(value)
        return total

    def _empty(self, numel: int, device: torch.device) -> Payload:
        fields = {name: (self.length(name, numel), dtype) for name, dtype in self.fields().items()}
        return Payload.allocate(fields, numel, device)

    def _codes(self, payload: Payload, part: slice) -> Codes:
        """Return views of the codes of a chunk, which begins at a granule."""
        return {
            name: tensor[self.length(name, part.start) : self.length(name, part.stop)]
            for name, tensor in payload.tensors.items()
        }

    def _checked(self, payload: Payload, numel: int) -> Payload:
        for name, tensor in payload.tensors.items():
            expected = self.length(name, numel)
            if tensor.numel() != expected:
                raise PayloadError(f"{tensor.numel()} {name} for {numel} elements, expected {expected}")
        return self.check_values(payload)


def chunks(span: slice, device: torch.device) -> Iterator[slice]:
    """Yield the chunks of a part of a bucket."""
    size = CHUNK if device.type == "cpu" else DEVICE_CHUNK
    for start in range(span.start, span.stop, size):
        yield slice(start, min(span.stop, start + size))


def _within(part: slice, shard: slice) -> slice:
    return slice(part.start - shard.start, part.stop - shard.start)
