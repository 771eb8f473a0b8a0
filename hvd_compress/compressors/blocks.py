"""Block quantisation: send a few bits an element, and a scale for each block of elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import MAX_SEED, check_flag, check_whole
from hvd_compress.compressors.base import MESSAGE_BYTES, Input, Requantizer, Round, each_checked, feedback_of, others_of
from hvd_compress.compressors.draws import SUM, mixed
from hvd_compress.compressors.encodings import Encoding, InBlocks
from hvd_compress.errors import ConfigError, PayloadError
from hvd_compress.native import BlockCodes, BlockFormat, RandomKey
from hvd_compress.payload import Payload

CODED_BITS = {
    4: {64: 3.2, 128: 3.0, 256: 2.85},
    3: {64: 2.15, 128: 2.0, 256: 1.85},
    2.5: {64: 1.7, 128: 1.55, 256: 1.4},
    2: {64: 1.5, 128: 1.5, 256: 1.5},
}
"""By bits and block, those of a whole number that is coded, all lengths included: the mean of gradients of a
transformer and of a convolutional network with feedback (benchmarks/results/coded.md). Larger blocks count as 256."""


@dataclass(frozen=True)
class BlockQuantizer(Requantizer):
    """Whole numbers of few bits, in units of a bf16 scale for each block of elements.

    With error feedback an element v of a block is sent as the nearest of -most..most times the scale, which is the
    largest magnitude of the block / most. With 2 bits the scale is that of Ternary Weight Networks (Li and Liu 2016):
    the mean of the magnitudes above 0.7 times the mean magnitude; what lies below is sent as 0. A code times its scale
    is exact in fp32, and with more than 2 bits so is what is left: residual + transmitted = corrected, to the last bit.
    With 2 bits what is left is rounded to fp32.

    | bits | most | whole numbers |
    | ---: | ---: | ---: |
    | 8 | 127 | 255 |
    | 4 | 7 | 15 |
    | 3 | 3 | 7 |
    | 2.5 | 2 | 5, four of which share 10 bits |
    | 2 | 1 | 3 |

    Without error feedback rounding is random and right on average (QSGD, Alistarh et al. 2017, Section 3, with the
    largest magnitude as norm): by a counter, keyed by seed, step, bucket, rank and shard.

    Bytes: (bits + 16 / block) / 8 an element. Coded, the whole numbers take the bits that their distribution needs,
    which gradients decide: of two trainings CODED_BITS on average. They take at most a byte more than else for each
    16,384 elements with 4 bits, or 32,768 with fewer, or a part of them.

    Attributes:
        bits: 8, 4, 3, 2.5 or 2.
        block: elements that share a scale, a power of two from 64 to 1024.
        stochastic: round at random instead of error feedback.
        seed: of the random numbers, the same on all ranks.
        coded: send the whole numbers by Huffman codes, which lose nothing; refused with 8 bits.
    """

    bits: float
    block: int = 64
    stochastic: bool = False
    seed: int = 0
    coded: bool = False
    kind = "quantiser"
    source = "Alistarh et al. 2017; 2 bits: Li and Liu 2016"
    message_bytes = MESSAGE_BYTES
    functions: ClassVar = {name: {"bits": bits} for name, bits in (("int8", 8), ("int4", 4), ("int3", 3), ("int2", 2))}

    def __post_init__(self) -> None:
        check_whole("block", self.block, 64, 1024, hint="an int, and a power of two")
        check_flag("stochastic", self.stochastic)
        check_whole("seed", self.seed, 0, MAX_SEED)
        check_flag("coded", self.coded)
        assert self.format  # checks the rest
        if self.coded and self.bits not in CODED_BITS:
            raise ConfigError(f"coded=True with {self.bits} bits: codes are of 4, 3, 2.5 and 2 bits, so leave it out")

    @property
    def error_feedback(self) -> bool:  # type: ignore[override]
        return not self.stochastic

    def with_feedback(self, feedback: bool) -> BlockQuantizer:
        """Round to nearest, or at random."""
        return replace(self, stochastic=not feedback)

    @property
    def shorter(self) -> BlockQuantizer | None:
        return replace(self, coded=True) if self.bits in CODED_BITS and not self.coded else None

    @cached_property
    def format(self) -> BlockFormat:
        return BlockFormat(self.bits, self.block, "ternary" if self.bits == 2 and not self.stochastic else "max")

    @property
    def encoding(self) -> Encoding | None:
        return None if self.coded or self.stochastic else InBlocks(self.format)

    @property
    def granule(self) -> int:  # type: ignore[override]
        return self.block

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        if not self.coded:
            return (Round(self.format.nbytes(layout.numel)),)
        most, scales = self.format.coded_bytes(layout.numel), 2 * self.format.blocks(layout.numel)
        usual = round(CODED_BITS[self.bits][min(self.block, 256)] / 8 * layout.numel)
        return (Round(most + scales, fixed=False, usual=min(usual, most) + scales),)

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        """Round to nearest, or as rank 0 does at random in step 0 of bucket 0."""
        key = self._key(0, 0, 0, 0)
        return self._sent(
            corrected, lambda into: native.block_quantize(corrected, None, self.format, key=key, into=into)
        )

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        added = torch.empty_like(out)
        native.block_sum([self._checked(payload, out.numel())], added, self.format, scale)
        out.add_(added)

    def template(self, numel: int) -> Payload:
        return self._allocate(numel, torch.device("cpu"))

    def encode_shard(self, work: Input, shard: slice, owner: int) -> Payload:
        key = self._key(work.step, work.bucket, work.rank, owner)
        gradient = work.gradient[shard]
        residual = out = None
        if not self.stochastic:
            residual, out = (kept[shard] for kept in feedback_of(work))
        return self._sent(
            gradient,
            lambda into: native.block_quantize(gradient, residual, self.format, key=key, out=out, into=into),
        )

    def keep_shard(self, work: Input, shard: slice) -> None:
        if not self.stochastic:
            residual, pending = feedback_of(work)
            native.accumulate(work.gradient[shard], residual[shard], out=pending[shard])

    def sum_shard(self, work: Input, shard: slice, others: Sequence[Payload]) -> Payload:
        rest = None if self.stochastic else feedback_of(work)[1][shard]
        own = work.gradient[shard] if rest is None else rest
        numel, place = own.numel(), work.rank
        sources = each_checked(self._checked, others, others_of(place, others), numel)
        key = self._key(work.step, work.bucket, work.rank, SUM)
        return self._sent(
            own,
            lambda into: native.block_sum_quantize(own, sources, place, self.format, key=key, rest=rest, into=into),
        )

    def write(self, work: Input, parts: Sequence[tuple[slice, Sequence[Payload]]]) -> torch.Tensor:
        finite = []
        for shard, payloads in parts:
            out = work.gradient[shard]
            sources = each_checked(self._checked, payloads, range(len(payloads)), out.numel())
            finite.append(native.block_sum(sources, out, self.format, work.scale))
        return torch.stack([torch.as_tensor(one, dtype=torch.bool) for one in finite]).all()

    def _sent(self, like: torch.Tensor, quantize: Callable[[BlockCodes], object]) -> Payload:
        """Return the payload of what `quantize` writes to the memory that it is given."""
        numel = like.numel()
        found = self._allocate(numel, like.device)
        if not self.coded:
            quantize(BlockCodes(found["codes"], found["scales"]))
            return found
        codes = like.new_empty(self.format.code_bytes(numel), dtype=torch.uint8)
        quantize(BlockCodes(codes, found["scales"]))
        return found.cut(native.block_encode(codes, numel, self.format, into=found["codes"]).numel())

    def _allocate(self, numel: int, device: torch.device) -> Payload:
        """Return memory for a payload; coded, whose codes come last, for the largest."""
        size = self.format.coded_bytes(numel) if self.coded else self.format.code_bytes(numel)
        fields = {"codes": (size, torch.uint8), "scales": (self.format.blocks(numel), torch.bfloat16)}
        if self.coded:
            fields = dict(reversed(fields.items()))
        return Payload.allocate(fields, numel, device)

    def _checked(self, payload: Payload, numel: int) -> BlockCodes:
        codes, units = payload["codes"], payload["scales"]
        if self.coded:
            codes = native.block_decode(codes, numel, self.format)
        expected = self.format.code_bytes(numel), self.format.blocks(numel)
        if (codes.numel(), units.numel()) != expected:
            raise PayloadError(
                f"{codes.numel()} bytes of codes and {units.numel()} scales for {numel} elements, expected "
                f"{expected[0]} and {expected[1]}"
            )
        return BlockCodes(codes, checked_scales(units))

    def _key(self, step: int, bucket: int, rank: int, shard: int) -> RandomKey | None:
        return RandomKey(mixed(self.seed, rank, shard), step, bucket) if self.stochastic else None


def checked_scales(scales: torch.Tensor) -> torch.Tensor:
    """Return scales that were sent. On a GPU, where the host would have to wait, one below zero becomes NaN.

    Raises:
        PayloadError: one is below zero.
    """
    below_zero = scales.view(torch.int16) < 0
    if scales.device.type != "cpu":
        return scales.masked_fill(below_zero, torch.nan)
    if bool(below_zero.any()):
        raise PayloadError("a scale is below zero")
    return scales
