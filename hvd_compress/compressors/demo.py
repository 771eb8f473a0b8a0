"""DeMo: send the largest cosine coefficients of the momentum, and keep the rest in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import check_number, check_whole
from hvd_compress.compressors import dct
from hvd_compress.compressors.base import FeedbackCompressor, Round
from hvd_compress.errors import PayloadError, located
from hvd_compress.payload import Payload

INDEX, VALUE = torch.int16, torch.bfloat16
"""Of a coefficient on the wire: its place in its chunk, as two bytes, and what it is."""
PAIR_BYTES = INDEX.itemsize + VALUE.itemsize
MAX_CHUNK = 128
"""So that places in a chunk have 16 bits."""


@dataclass(frozen=True)
class DeMo(FeedbackCompressor):
    """Decoupled momentum (Peng et al. 2024, Algorithm 1): what moves fast in the momentum is sent, the rest stays.

    1. Each rank adds its gradient to its own momentum: m = decay * m + gradient. Here m is the residual.
    2. Parameters are cut into chunks, and each chunk is transformed: orthonormal DCT-II, of both dimensions of a
       matrix. The k coefficients of largest magnitude in each chunk are sent.
    3. What they stand for is subtracted from m.
    4. The result is the inverse transform of the average of all ranks' coefficients.

    The optimizer is to have no momentum; that of the paper moves by the sign of the result (hvd_compress.optim.DeMo).
    A dimension is cut into as few pieces of one length as `chunk` allows, and the last piece is filled up with zeros;
    the authors' code takes the largest divisor instead, which is 1 for a prime.

    Coefficients travel as bfloat16; what rounding takes from them stays in m. All ranks compute the inverse transform
    by themselves, as products of torch: they must be alike, as with PowerSGD.

    Bytes: 4 a coefficient, k of each chunk, or all where it has no more.

    Attributes:
        k: coefficients of a chunk that are sent.
        chunk: the most elements in each dimension of a chunk, up to 128.
        decay: of the momentum, above 0; with 1 nothing of a gradient is lost.
    """

    k: int = 32
    chunk: int = 64
    decay: float = 0.999
    sends_momentum = True
    kind = "transform"
    source = "Peng et al. 2024"

    def __post_init__(self) -> None:
        check_whole("k", self.k, 1)
        check_whole("chunk", self.chunk, 2, MAX_CHUNK)
        check_number("decay", self.decay, 0, 1, above=True, hint="above 1 the momentum would grow without bound")

    def refuses_momentum(self, momentum: float, adapts: bool) -> str:
        return "pass hvd_compress.optim.DeMo(...), or another one without momentum" if momentum else ""

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        return (Round(PAIR_BYTES * sum(self._sent(layout))),)

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        return self._extract(corrected.to(torch.float32, copy=True), layout)

    def compress_feedback(
        self, gradient: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor, layout: Layout
    ) -> Payload:
        torch.mul(residual, self.decay, out=pending)
        native.accumulate(gradient, pending)
        return self._extract(pending, layout)

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        total, added = self._no_coefficients(layout, out.device), torch.empty_like(out)
        self._add(total, payload, layout)
        self._write(added, total, layout)
        out.add_(added, alpha=scale)

    def sum_into(self, out: torch.Tensor, payloads: Sequence[Payload], scale: float, layout: Layout) -> None:
        """Coefficients are added, and transformed once."""
        total = self._no_coefficients(layout, out.device)
        for rank, payload in enumerate(payloads):
            with located(f"payload from rank {rank}"):
                self._add(total, payload, layout)
        self._write(out, total, layout)
        out.mul_(scale)

    def _extract(self, momentum: torch.Tensor, layout: Layout) -> Payload:
        """Return the largest coefficients, and subtract what they stand for from the momentum."""
        places, values = [], []
        for group, k in zip(dct.tilings(layout, self.chunk), self._kept(layout), strict=True):
            chunks = dct.cut(group, momentum)
            coefficients = dct.transform(chunks).flatten(1)
            largest = torch.topk(coefficients.abs(), k, sorted=False).indices  # a NaN is the largest of all
            largest = largest.sort(dim=1).values
            sent = coefficients.gather(1, largest).to(VALUE)
            transmitted = torch.zeros_like(coefficients).scatter_(1, largest, sent.float())
            dct.put(group, chunks.sub_(dct.inverse(transmitted.view_as(chunks))), momentum)
            places.append(largest.to(INDEX).view(-1))
            values.append(sent.view(-1))
        none = momentum.new_empty(0)
        indices = torch.cat([none.to(INDEX), *places]).view(torch.uint8)
        return Payload({"indices": indices, "values": torch.cat([none.to(VALUE), *values])}, layout.numel)

    def _no_coefficients(self, layout: Layout, device: torch.device) -> list[torch.Tensor]:
        """Return zeros for the coefficients of each group, (chunks, height * width) fp32."""
        sizes = [(sum(t.chunks for t in group), dct.numel(group)) for group in dct.tilings(layout, self.chunk)]
        return [torch.zeros(size, dtype=torch.float32, device=device) for size in sizes]

    def _add(self, totals: Sequence[torch.Tensor], payload: Payload, layout: Layout) -> None:
        for total, (places, values) in zip(totals, self._received(payload, layout), strict=True):
            total.scatter_add_(1, places, values)

    def _write(self, out: torch.Tensor, totals: Sequence[torch.Tensor], layout: Layout) -> None:
        for group, total in zip(dct.tilings(layout, self.chunk), totals, strict=True):
            dct.put(group, dct.inverse(total.view(-1, group[0].height, group[0].width)), out)

    def _received(self, payload: Payload, layout: Layout) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield places and fp32 values of each group, (chunks, k). On a GPU, where the host would have to wait, a place
        that is none makes its value NaN.
        """
        sent, groups = self._sent(layout), dct.tilings(layout, self.chunk)
        found = payload["indices"].numel(), payload["values"].numel()
        if found != (INDEX.itemsize * sum(sent), sum(sent)):
            raise PayloadError(
                f"{found[0]} bytes of indices and {found[1]} values, expected {INDEX.itemsize * sum(sent)} and "
                f"{sum(sent)}"
            )
        places = torch.split(payload["indices"].view(INDEX).long(), sent)
        values = torch.split(payload["values"].float(), sent)
        for group, k, place, value in zip(groups, self._kept(layout), places, values, strict=True):
            yield _checked(place.view(-1, k), value.view(-1, k), dct.numel(group))

    def _kept(self, layout: Layout) -> list[int]:
        """Return how many coefficients of a chunk are sent, for each group."""
        return [min(self.k, dct.numel(group)) for group in dct.tilings(layout, self.chunk)]

    def _sent(self, layout: Layout) -> list[int]:
        """Return how many coefficients are sent of each group."""
        groups = zip(dct.tilings(layout, self.chunk), self._kept(layout), strict=True)
        return [k * sum(tiling.chunks for tiling in group) for group, k in groups]


def _checked(places: torch.Tensor, values: torch.Tensor, numel: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return places within chunks of so many elements, and values. Places ascend, as each is sent once."""
    wrong = (places < 0) | (places >= numel)
    wrong[:, 1:] |= places[:, 1:] <= places[:, :-1]
    if places.device.type != "cpu":
        return places.clamp(0, numel - 1), values.masked_fill(wrong, torch.nan)
    if bool(wrong.any()):
        raise PayloadError(f"places in chunks of {numel} coefficients do not ascend within 0 to {numel - 1}")
    return places, values
