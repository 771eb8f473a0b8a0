"""How the factors of low-rank approximations travel: summed in fp32, or gathered in fewer bits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Round, SingleRound
from hvd_compress.compressors.blocks import BlockQuantizer
from hvd_compress.compressors.cast import Cast
from hvd_compress.compressors.summed import sum_of
from hvd_compress.payload import Payload

Shape = tuple[int, int]
"""Of a factor: rows and rank."""
Sums = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Of the factors, and of what travels dense beside them; fp32."""


class FactorFormat(ABC):
    """What a rank sends of its factors, and of vectors, which stay fp32.

    Attributes:
        summable: whether payloads of all ranks can be added element by element.
    """

    summable: bool = False

    @abstractmethod
    def wire(self, shapes: Sequence[Shape], dense: int, fixed: bool = True) -> Round:
        """Return the round of factors of these shapes, and of `dense` elements beside them."""

    @abstractmethod
    def payload(self, name: str, factors: Sequence[torch.Tensor], dense: Sequence[torch.Tensor], numel: int) -> Payload:
        """Return what stands for them on the wire. `name` is that of the round, `numel` the bucket's."""

    @abstractmethod
    def sums(
        self, name: str, payloads: Sequence[Payload], shapes: Sequence[Shape], dense: Sequence[int], scale: float
    ) -> Sums:
        """Return `scale` times the sum of the payloads, added in rank order.

        Raises:
            PayloadError: a length does not fit; it names the rank.
        """


class Summed(FactorFormat):
    """One fp32 tensor, which an allreduce sums. 4 bytes an element; a ring sends 2 (N-1)/N times as much."""

    summable = True

    def wire(self, shapes: Sequence[Shape], dense: int, fixed: bool = True) -> Round:
        return Round(4 * (dense + sum(rows * rank for rows, rank in shapes)), torch.float32, fixed)

    def payload(self, name: str, factors: Sequence[torch.Tensor], dense: Sequence[torch.Tensor], numel: int) -> Payload:
        parts = [*(factor.reshape(-1) for factor in factors), *dense]
        return Payload({name: torch.cat(parts)}, numel, summable=True)

    def sums(
        self, name: str, payloads: Sequence[Payload], shapes: Sequence[Shape], dense: Sequence[int], scale: float
    ) -> Sums:
        lengths = [*(rows * rank for rows, rank in shapes), *dense]
        total = sum_of(payloads, name, sum(lengths))
        parts = torch.split(total if scale == 1 else total.mul_(scale), lengths)
        factors = [part.view(shape) for part, shape in zip(parts, shapes, strict=False)]
        return factors, list(parts[len(shapes) :])


@dataclass(frozen=True)
class Gathered(FactorFormat):
    """Rounded factors, which all ranks gather, decode and add in fp32.

    Columns of a factor lie one after the other, as their magnitudes differ, and a factor begins with a block of its
    own. A rank sends (N-1) times the payload: with bf16 fewer bytes than a ring of fp32 up to 3 ranks, with 8-bit
    blocks up to 7, less where much is dense.

    Attributes:
        codec: rounds a flat tensor.
        granule: a factor is padded with zeros to a multiple of so many elements.
    """

    codec: SingleRound
    granule: int = 1

    def wire(self, shapes: Sequence[Shape], dense: int, fixed: bool = True) -> Round:
        (sent,) = self.codec.wire(Layout.of(sum(self._padded(rows * rank) for rows, rank in shapes)))
        return Round(sent.nbytes + 4 * dense, None, fixed)

    def payload(self, name: str, factors: Sequence[torch.Tensor], dense: Sequence[torch.Tensor], numel: int) -> Payload:
        tensors: dict[str, torch.Tensor] = {"dense": torch.cat(list(dense))} if dense else {}
        if factors:
            flat = torch.cat([self._pad(factor) for factor in factors])
            tensors.update(self.codec.compress(flat, Layout.of(flat.numel())).tensors)
        return Payload(tensors, numel)

    def sums(
        self, name: str, payloads: Sequence[Payload], shapes: Sequence[Shape], dense: Sequence[int], scale: float
    ) -> Sums:
        vectors = torch.split(sum_of(payloads, "dense", sum(dense)) * scale, list(dense)) if dense else ()
        return self._factors(payloads, shapes, scale) if shapes else [], list(vectors)

    def _factors(self, payloads: Sequence[Payload], shapes: Sequence[Shape], scale: float) -> list[torch.Tensor]:
        lengths = [self._padded(rows * rank) for rows, rank in shapes]
        device = next(iter(payloads[0].tensors.values())).device
        total = torch.empty(sum(lengths), dtype=torch.float32, device=device)
        self.codec.sum_into(total, payloads, scale, Layout.of(total.numel()))
        parts = zip(torch.split(total, lengths), shapes, strict=True)
        return [part[: rows * rank].view(rank, rows).T for part, (rows, rank) in parts]

    def _pad(self, factor: torch.Tensor) -> torch.Tensor:
        padding = factor.new_zeros(self._padded(factor.numel()) - factor.numel())
        return torch.cat([factor.T.reshape(-1), padding])

    def _padded(self, numel: int) -> int:
        return -(-numel // self.granule) * self.granule


_BLOCKS = BlockQuantizer(8)

FACTORS: dict[str, FactorFormat] = {
    "fp32": Summed(),
    "bf16": Gathered(Cast(torch.bfloat16)),
    "int8": Gathered(_BLOCKS, _BLOCKS.granule),
}
"""By the names that a user asks for."""
