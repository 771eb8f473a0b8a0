"""QSGD: send a few bits an element, rounded at random, and a norm for each parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import MAX_SEED, check_choice, check_flag, check_number, check_whole
from hvd_compress.compressors.base import Input, Round, SingleRound, packed_spans
from hvd_compress.compressors.draws import mixed
from hvd_compress.errors import ConfigError, PayloadError
from hvd_compress.native.checks import check_bits
from hvd_compress.payload import Payload

NORM_BYTES = 4


@dataclass(frozen=True)
class QSGD(SingleRound):
    """Whole multiples of norm / levels, rounded at random so that the result is right on average.

    QSGD (Alistarh et al. 2017, Eq. 2-3) with the Euclidean norm; TernGrad (Wen et al. 2017, Eq. 3 and 7) with 2 bits,
    the largest magnitude, and elements clipped to 2.5 standard deviations, by which the mean is a little wrong.
    levels = 2^(bits - 1) - 1. Random numbers are keyed by seed, step, bucket, rank and place. The mean is right to
    2^-16 of a level, which counts where a parameter has millions of elements far below its norm.

    It needs no error feedback, and can have it where rounding loses less than it sends (Wu et al. 2018): with 8 or 4
    bits, the largest magnitude and no clipping. With the Euclidean norm, or 2 bits, a large parameter loses several
    times its own squared norm, and a residual would grow without bound. So it may with a few elements that are far
    above the others; BlockQuantizer rounds to nearest, in blocks, and cannot.

    Bytes of a payload: bits / 8 an element, each parameter padded to whole bytes, and 4 a norm.

    Attributes:
        bits: 8, 4 or 2.
        norm: "l2" or "max".
        clip: the bound of a magnitude, in standard deviations of its parameter; None clips none.
        layerwise: one norm for each parameter instead of one for the bucket.
        seed: of the random numbers, the same on all ranks.
        error_feedback: remember what rounding loses.
    """

    bits: int = 4
    norm: str = "l2"
    clip: float | None = None
    layerwise: bool = True
    seed: int = 0
    error_feedback: bool = False
    kind = "quantiser"
    functions: ClassVar = {"terngrad": {"bits": 2, "norm": "max", "clip": 2.5}}
    source = "Alistarh et al. 2017; TernGrad: Wen et al. 2017"

    def __post_init__(self) -> None:
        check_bits(self.bits)
        check_choice("norm", self.norm, ("l2", "max"))
        if self.clip is not None:
            check_number("clip", self.clip, 0, above=True)
        check_flag("layerwise", self.layerwise)
        check_whole("seed", self.seed, 0, MAX_SEED)
        check_flag("error_feedback", self.error_feedback)
        if self.error_feedback and (self.norm != "max" or self.bits == 2 or self.clip is not None):
            raise ConfigError(
                f"error feedback with bits={self.bits}, norm={self.norm!r}, clip={self.clip}: rounding would lose more "
                "than is sent, and the residual would grow. Take 8 or 4 bits, norm='max' and no clip"
            )

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        parts = list(self._parts(layout))
        return (Round(parts[-1][1].stop + NORM_BYTES * len(parts)),)

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        """Round as rank 0 does in step 0 of bucket 0."""
        return self.encode(Input(corrected, layout, 0, 0, 1.0))

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        """A norm below zero is an error, or on a GPU, where the host would have to wait, NaN."""
        codes, norms, parts = payload["codes"], payload["norms"], list(self._parts(layout))
        expected = parts[-1][1].stop, len(parts)
        if (codes.numel(), norms.numel()) != expected:
            raise PayloadError(
                f"{codes.numel()} bytes of codes and {norms.numel()} norms, expected {expected[0]} and {expected[1]}"
            )
        if norms.device.type != "cpu":
            norms = norms.masked_fill(norms < 0, torch.nan)
        elif bool((norms < 0).any()):
            raise PayloadError("a norm is below zero")
        for (elements, place), norm in zip(parts, norms, strict=True):
            native.quantize_add(codes[place], norm, out[elements], self.bits, scale)

    def encode(self, work: Input) -> Payload:
        residual, lost, found = work.residual, work.pending, []
        if not self.error_feedback or residual is None or lost is None:
            residual = torch.zeros_like(work.gradient, dtype=torch.float32)
            lost = torch.empty_like(residual)
        for elements, _ in self._parts(work.layout):
            own, seed = self._clipped(work.gradient[elements]), mixed(self.seed, work.rank, elements.start)
            found.append(
                native.quantize_accumulate(
                    own,
                    residual[elements],
                    self.bits,
                    seed=seed,
                    step=work.step,
                    bucket=work.bucket,
                    norm=self.norm,
                    out=lost[elements],
                )
            )
        codes, norms = torch.cat([codes for codes, _ in found]), torch.stack([norm.reshape(()) for _, norm in found])
        return Payload({"codes": codes, "norms": norms}, work.layout.numel)

    def _clipped(self, part: torch.Tensor) -> torch.Tensor:
        """Clip in root mean squares: standard deviations where the mean is zero, and not zero for a single element."""
        if self.clip is None or not part.numel():
            return part
        size = torch.linalg.vector_norm(part, dtype=torch.float64) / math.sqrt(part.numel())
        most = (self.clip * size).to(part.dtype)
        return part.clamp(-most, most)

    def _parts(self, layout: Layout) -> Iterator[tuple[slice, slice]]:
        return packed_spans(layout, self.layerwise, self.bits)
