"""Few bits an element, with a unit for each block of elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.checks import is_number
from hvd_compress.errors import ConfigError, MismatchError, located
from hvd_compress.native.checks import (
    check_apart,
    check_tensor,
    checked_float,
    checked_int,
    feedback_out,
    outputs,
    written,
)
from hvd_compress.native.module import CODES, on, prepare

GROUP = 64
"""Elements whose codes are stored together; a block is a power of two of them."""
MAX_BLOCK = 1024
MAX_SOURCES = 1024
"""Payloads that one call adds."""
FITS = ("max", "ternary")
CHUNK = {4: 256, 3: 512, 2.5: 512, 2: 512}
"""Groups that are coded by one table, by the bits of an element; of 8 there is no table."""
MOST = {8: 127, 4: 7, 3: 3, 2.5: 2, 2: 1}
"""By bits of an element, the largest whole number that it may be; four of 2.5 bits share 10."""


@dataclass(frozen=True)
class BlockFormat:
    """How elements are rounded, and how they lie in memory (csrc/include/hvd_compress/blocks.hpp says it exactly).

    Attributes:
        bits: 8, 4, 3, 2.5 or 2 for each element, which is one of 255, 15, 7, 5 or 3 whole numbers.
        block: elements that share a unit, a power of two from 64 to 1024.
        fit: how a unit is found: "max", so that no element lies beyond the largest code; "ternary", with 2 bits, the
            mean of the magnitudes above 0.7 times the mean magnitude (Li and Liu 2016).
    """

    bits: float
    block: int = 64
    fit: str = "max"

    def __post_init__(self) -> None:
        if not is_number(self.bits) or self.bits not in MOST:
            raise ConfigError(f"bits = {self.bits!r} is not 8, 4, 3, 2.5 or 2")
        block = checked_int("block", self.block, GROUP, MAX_BLOCK)
        if block & (block - 1):
            raise ConfigError(f"block = {block} is not a power of two, {GROUP} to {MAX_BLOCK}")
        if self.fit not in FITS or (self.fit == "ternary" and self.bits != 2):
            raise ConfigError(f"fit = {self.fit!r} with {self.bits} bits: it is 'max', or 'ternary' with 2 bits")

    @property
    def most(self) -> int:
        """The largest whole number that an element may be."""
        return MOST[self.bits]

    def code_bytes(self, numel: int) -> int:
        """Return the bytes of the codes of so many elements."""
        return -(-numel // GROUP) * int(8 * self.bits)

    def coded_bytes(self, numel: int) -> int:
        """Return the most bytes of those codes when they are coded: one more for each chunk.

        Raises ConfigError for a format that cannot be coded.
        """
        if self.bits not in CHUNK:
            raise ConfigError(f"codes of {self.bits} bits cannot be coded, those of {', '.join(map(str, CHUNK))} can")
        return self.code_bytes(numel) + -(-numel // (GROUP * CHUNK[self.bits]))

    def blocks(self, numel: int) -> int:
        """Return how many blocks, and units, so many elements have."""
        return -(-numel // self.block)

    def nbytes(self, numel: int) -> int:
        """Return the bytes of codes and units."""
        return self.code_bytes(numel) + 2 * self.blocks(numel)


@dataclass(frozen=True)
class RandomKey:
    """What random rounding depends on beside the number of an element: a seed below 2^64, a step and a bucket."""

    seed: int
    step: int
    bucket: int


@dataclass(frozen=True)
class BlockCodes:
    """What stands for n elements: `codes` (format.code_bytes(n),) uint8 and `units` (format.blocks(n),) bf16."""

    codes: torch.Tensor
    units: torch.Tensor


def block_quantize(
    grad: torch.Tensor,
    residual: torch.Tensor | None,
    format: BlockFormat,
    *,
    key: RandomKey | None = None,
    out: torch.Tensor | None = None,
    into: BlockCodes | None = None,
) -> BlockCodes:
    """Round corrected = residual + grad to whole multiples of a unit for each block; write what is lost to `out`.

    With fit="max" and no key `out` + what is sent is `corrected`, element by element and to the last bit; else `out` is
    rounded to fp32. A block with an element that is not finite has a unit that is NaN, and stays in `out`; so does one
    whose unit would be below 2^-126.

    Args:
        grad: (n,) fp32, fp16 or bf16.
        residual: (n,) fp32; None for zeros, and then what is lost is not kept.
        key: round at random so that the expected value is right, by these random numbers; else to nearest.
        out: (n,) fp32; the residual itself if None.
        into: memory for the result, where a caller keeps it.
    """
    if residual is None:
        if out is not None:
            raise ConfigError("out is what is left of a residual, and there is none")
        check_tensor("grad", grad)
    else:
        check_tensor("residual", residual, (torch.float32,))
        out = feedback_out(grad, residual, out)
    numel = grad.numel()
    found = _outputs(format, numel, into, *(x for x in (grad, residual, out) if x is not None))
    prepare(like=grad)
    on(grad).block_quantize(
        grad.data_ptr(),
        CODES[grad.dtype],
        0 if residual is None else residual.data_ptr(),
        0 if out is None else out.data_ptr(),
        numel,
        *_settings(format),
        *_key(key),
        found.codes.data_ptr(),
        found.units.data_ptr(),
    )
    return found


def block_sum(
    sources: Sequence[BlockCodes], out: torch.Tensor, format: BlockFormat, weight: float
) -> bool | torch.Tensor:
    """Write weight * sum of the sources to `out`, added in fp32 in their order and rounded to its dtype.

    Returns:
        Whether all of `out` is finite. Of CUDA tensors a tensor () int32, 1 or 0: to look into it is to wait for it.

    Raises:
        MismatchError: a source has another length; it names its place.
    """
    check_tensor("out", out)
    addresses = _addresses(sources, format, out.numel(), out)
    if not addresses:
        raise ConfigError("a sum needs at least one source")
    weight = checked_float("weight", weight)
    written("out", out)
    prepare(like=out)
    finite: bool | torch.Tensor = on(out).block_sum(
        addresses, out.numel(), format.most, format.block, weight, out.data_ptr(), CODES[out.dtype]
    )
    return finite


def block_sum_quantize(
    own: torch.Tensor,
    others: Sequence[BlockCodes],
    place: int,
    format: BlockFormat,
    *,
    key: RandomKey | None = None,
    rest: torch.Tensor | None = None,
    into: BlockCodes | None = None,
) -> BlockCodes:
    """Add `own` and the others in fp32, `own` as the summand at `place`, and round the sum as block_quantize() does.

    Args:
        own: (n,) fp32, fp16 or bf16.
        others: any number of sources.
        rest: (n,) fp32, receives what rounding loses; may be `own`. None where that is not kept.
        into: memory for the result, where a caller keeps it; none of the others'.

    Raises:
        MismatchError: a source has another length; it names its place.
    """
    check_tensor("own", own)
    place = checked_int("place", place, 0, len(others))
    if rest is not None:
        check_tensor("rest", rest, (torch.float32,))
        if rest.numel() != own.numel():
            raise ConfigError(f"rest has {rest.numel()} elements, own has {own.numel()}")
        if rest.data_ptr() != own.data_ptr() or rest.dtype != own.dtype:
            check_apart("rest", rest, "own", own)
        written("rest", rest)
    addresses = _addresses(others, format, own.numel(), own if rest is None else rest)
    sent = (tensor for other in others for tensor in (other.codes, other.units))
    found = _outputs(format, own.numel(), into, own, *(() if rest is None else (rest,)), *sent)
    prepare(like=own)
    on(own).block_sum_quantize(
        own.data_ptr(),
        CODES[own.dtype],
        addresses,
        place,
        0 if rest is None else rest.data_ptr(),
        own.numel(),
        *_settings(format),
        *_key(key),
        found.codes.data_ptr(),
        found.units.data_ptr(),
    )
    return found


def _outputs(format: BlockFormat, numel: int, into: BlockCodes | None, *inputs: torch.Tensor) -> BlockCodes:
    codes, units = outputs(
        None if into is None else (into.codes, into.units),
        inputs,
        codes=(format.code_bytes(numel), torch.uint8),
        units=(format.blocks(numel), torch.bfloat16),
    )
    return BlockCodes(codes, units)


def _addresses(
    sources: Sequence[BlockCodes], format: BlockFormat, numel: int, out: torch.Tensor
) -> list[tuple[int, int]]:
    """Check what is to be added; return where it lies."""
    if len(sources) > MAX_SOURCES:
        raise ConfigError(f"{len(sources)} sources are more than the {MAX_SOURCES} that one call adds")
    for number, source in enumerate(sources):
        with located(f"source {number}"):
            check_tensor("codes", source.codes, (torch.uint8,))
            check_tensor("units", source.units, (torch.bfloat16,))
            expected = format.code_bytes(numel), format.blocks(numel)
            if (source.codes.numel(), source.units.numel()) != expected:
                raise MismatchError(
                    f"{source.codes.numel()} bytes of codes and {source.units.numel()} units for {numel} elements, "
                    f"expected {expected[0]} and {expected[1]}"
                )
            check_apart("codes", source.codes, "out", out)
            check_apart("units", source.units, "out", out)
    return [(source.codes.data_ptr(), source.units.data_ptr()) for source in sources]


def _settings(format: BlockFormat) -> tuple[int, int, int]:
    return format.most, format.block, FITS.index(format.fit)


def _key(key: RandomKey | None) -> tuple[bool, int, int, int]:
    if key is None:
        return False, 0, 0, 0
    seed = checked_int("seed", key.seed, 0, 2**64 - 1)
    step, bucket = (
        checked_int(name, v, -(2**63), 2**63 - 1) for name, v in (("step", key.step), ("bucket", key.bucket))
    )
    return True, seed, step % 2**32, bucket % 2**32
