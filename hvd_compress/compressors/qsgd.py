"""QSGD: send a few bits an element, rounded at random, and a norm for each parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Input, Round, SingleRound, spans
from hvd_compress.compressors.checks import MAX_SEED, check_flag, check_whole
from hvd_compress.compressors.draws import mixed
from hvd_compress.errors import ConfigError, PayloadError
from hvd_compress.payload import Payload

NORM_BYTES = 4


@dataclass(frozen=True)
class QSGD(SingleRound):
    """Whole multiples of norm / levels, rounded at random so that the result is right on average.

    QSGD (Alistarh et al. 2017, Eq. 2-3) with the Euclidean norm; TernGrad (Wen et al. 2017, Eq. 3 and 7) with 2 bits,
    the largest magnitude, and elements clipped to 2.5 standard deviations, by which the mean is a little wrong.
    levels = 2^(bits - 1) - 1. Random numbers are keyed by seed, step, bucket, rank and place.

    Bytes of a payload: bits / 8 an element, each parameter padded to whole bytes, and 4 a norm.

    Attributes:
        bits: 8, 4 or 2.
        norm: "l2" or "max".
        clip: elements are clipped to so many standard deviations of their parameter first; inf clips none.
        layerwise: one norm for each parameter instead of one for the bucket.
        seed: of the random numbers, the same on all ranks.
    """

    bits: int = 4
    norm: str = "l2"
    clip: float = inf
    layerwise: bool = True
    seed: int = 0
    kind = "quantiser"
    source = "Alistarh et al. 2017; Wen et al. 2017"

    def __post_init__(self) -> None:
        if self.bits not in (8, 4, 2):
            raise ConfigError(f"bits = {self.bits!r} is not 8, 4 or 2")
        if self.norm not in ("l2", "max"):
            raise ConfigError(f'norm = {self.norm!r} is neither "l2" nor "max"')
        if isinstance(self.clip, bool) or not isinstance(self.clip, (int, float)) or not self.clip > 0:
            raise ConfigError(f"clip = {self.clip!r} is not a number above 0; inf clips nothing")
        check_flag("layerwise", self.layerwise)
        check_whole("seed", self.seed, 0, MAX_SEED)

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        parts = list(self._parts(layout))
        return (Round(parts[-1][3] + NORM_BYTES * len(parts)),)

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        """Round as rank 0 does in step 0 of bucket 0."""
        return self._encode(Input(corrected, layout, 0, 0, 1.0))

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        codes, norms, parts = payload["codes"], payload["norms"], list(self._parts(layout))
        if codes.numel() != parts[-1][3] or norms.numel() != len(parts):
            raise PayloadError(
                f"{codes.numel()} bytes of codes and {norms.numel()} norms, expected {parts[-1][3]} and {len(parts)}"
            )
        if norms.device.type == "cpu" and bool((norms < 0).any()):
            raise PayloadError("a norm is below zero")
        for (start, stop, first, last), norm in zip(parts, norms, strict=True):
            native.quantize_add(codes[first:last], norm, out[start:stop], self.bits, scale)

    def _encode(self, work: Input) -> Payload:
        none = torch.zeros_like(work.gradient, dtype=torch.float32)
        lost, found = torch.empty_like(none), []
        for start, stop, _, _ in self._parts(work.layout):
            part = slice(start, stop)
            own, seed = self._clipped(work.gradient[part]), mixed(self.seed, work.rank, start)
            found.append(
                native.quantize_accumulate(
                    own,
                    none[part],
                    self.bits,
                    seed=seed,
                    step=work.step,
                    bucket=work.bucket,
                    norm=self.norm,
                    out=lost[part],
                )
            )
        codes, norms = torch.cat([codes for codes, _ in found]), torch.stack([norm.reshape(()) for _, norm in found])
        return Payload({"codes": codes, "norms": norms}, work.layout.numel)

    def _clipped(self, part: torch.Tensor) -> torch.Tensor:
        """Clip to so many root mean squares: the standard deviation of a mean of zero, and of one element not zero."""
        if self.clip == inf or not part.numel():
            return part
        most = (self.clip * part.float().square().mean().sqrt()).to(part.dtype)
        return part.clamp(-most, most)

    def _parts(self, layout: Layout) -> Iterator[tuple[int, int, int, int]]:
        """Yield (start, stop) among the elements and (first, last) among the bytes of codes."""
        first = 0
        for start, stop in spans(layout, self.layerwise):
            last = first + -(-(stop - start) * self.bits // 8)
            yield start, stop, first, last
            first = last
