"""Natural compression: send sign and exponent of each element, rounded at random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from hvd_compress.checks import MAX_SEED, check_flag, check_whole
from hvd_compress.compressors.chunked import ChunkedQuantizer, Codes, Origin
from hvd_compress.compressors.draws import SUM, mantissas, mixed

OFFSET = 49
"""Codes 1 to 126 are powers of two from 2^-77 to 2^48: biased exponents of fp32, less this."""
NOT_FINITE, SIGN = 127, 128
_MANTISSA_BITS = 23
_INFINITY_BITS = 0xFF << _MANTISSA_BITS


@dataclass(frozen=True)
class Natural(ChunkedQuantizer):
    """Powers of two, rounded at random so that the result is right on average.

    C_nat (Horvath et al. 2022, Definition 2.1): a magnitude t = 2^a * (1 + m), 0 <= m < 1, is sent as 2^(a + 1) with
    probability m, else as 2^a: the mantissa is not sent. The variance is at most t^2 / 8 (their Theorem 1). Below 2^-77
    a magnitude becomes 2^-77 or 0, right on average, too. A code is a byte: 7 bits of exponent, where 0 is zero and 127
    is not finite, and the sign; every byte is a code. What is NaN or infinite arrives as NaN, and so may what is above
    2^48, as 65,520 overflows in fp16: the step is skipped.

    Random numbers are keyed by seed, step, bucket, rank and the element's place in the bucket; the sum that an owner
    rounds again draws others. The probability is exactly m; below 2^-77 it is right to 2^-23.

    Bytes: 1 an element.

    Attributes:
        error_feedback: remember what rounding loses; as it is right on average, nothing need be.
        seed: of the random numbers, the same on all ranks.
    """

    error_feedback: bool = False
    seed: int = 0
    kind = "quantiser"
    source = "Horvath et al. 2022"
    granule = 64  # whole lines of the cache; any number would do

    def __post_init__(self) -> None:
        check_flag("error_feedback", self.error_feedback)
        check_whole("seed", self.seed, 0, MAX_SEED)

    def with_feedback(self, feedback: bool) -> Natural:
        return replace(self, error_feedback=feedback)

    def fields(self) -> Mapping[str, torch.dtype]:
        return {"codes": torch.uint8}

    def length(self, name: str, numel: int) -> int:
        return numel

    def quantise(self, x: torch.Tensor, codes: Codes, origin: Origin) -> None:
        """Add random bits to the mantissa: they carry into the exponent with probability m.

        After a division by 2^OFFSET what lies below 2^-77 is denormal: its bits count multiples of 2^-23 of the
        smallest power, and the carry into exponent 1 is as likely as it should be.
        """
        bits = (x * 2.0**-OFFSET).view(torch.int32)
        found = (bits & 0x7FFFFFFF).clamp_max_(_INFINITY_BITS)  # no NaN carries into the sign
        found += mantissas(self._key(origin), origin.start, x.numel(), x.device)
        found = (found >> _MANTISSA_BITS).clamp_max_(NOT_FINITE)
        codes["codes"].copy_(found.bitwise_or_((bits >> 24).bitwise_and_(SIGN)))

    def dequantise(self, codes: Codes, out: torch.Tensor) -> None:
        torch.index_select(_values(out.device), 0, codes["codes"].int(), out=out)

    def _key(self, origin: Origin) -> int:
        return mixed(self.seed, origin.step, origin.bucket, origin.rank, SUM if origin.is_sum else 0)


def _values(device: torch.device) -> torch.Tensor:
    """Return what each code stands for, (256,) fp32."""
    codes = torch.arange(256, device=device, dtype=torch.int32)
    exponents = codes & NOT_FINITE
    values = (exponents << _MANTISSA_BITS).view(torch.float32) * 2.0**OFFSET
    return torch.where(codes < SIGN, values, -values).masked_fill_(exponents == NOT_FINITE, torch.nan)
