"""1-bit SGD: send one bit an element, and two means for each block of elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hvd_compress.checks import check_whole
from hvd_compress.compressors.chunked import ChunkedQuantizer, Codes, Origin
from hvd_compress.compressors.signs import add_signs, pack_signs
from hvd_compress.errors import ConfigError, PayloadError
from hvd_compress.payload import Payload

MIN_BLOCK, MAX_BLOCK = 64, 1 << 16


@dataclass(frozen=True)
class OneBit(ChunkedQuantizer):
    """1-bit SGD (Seide et al. 2014, Section 3): signs, and what they stand for, with error feedback at both ends.

    An element v of a block is sent as one bit, v >= 0. It stands for the mean of the block's elements that are not
    below zero, or for the mean of those that are: the values with the least square error for these bits. Where the
    paper has a column of a matrix, here is a block of a bucket. With `means` = 1 it stands for +-m, where m is the mean
    magnitude of the block: what 1-bit Adam sends (Tang et al. 2021).

    Means are summed in fp32, as a tree of halves, so that they are the same on every device, and rounded to bf16; the
    residual is what the rounded ones leave. A block whose sum overflows counts as not finite.

    Bytes: (1 + 16 * means / block) / 8 an element.

    Attributes:
        block: elements that share means: a power of two, 64 to 65,536.
        means: 2, or 1.
    """

    block: int = 512
    means: int = 2
    error_feedback = True
    kind = "quantiser"
    source = "Seide et al. 2014"

    def __post_init__(self) -> None:
        check_whole("block", self.block, MIN_BLOCK, MAX_BLOCK)
        if self.block & (self.block - 1):
            raise ConfigError(f"block = {self.block} is not a power of two, {MIN_BLOCK} to {MAX_BLOCK}")
        check_whole("means", self.means, 1, 2)

    @property
    def granule(self) -> int:  # type: ignore[override]
        return self.block

    def fields(self) -> Mapping[str, torch.dtype]:
        return {"bits": torch.uint8, "means": torch.bfloat16}

    def length(self, name: str, numel: int) -> int:
        """One byte for 8 elements; of a block its mean magnitude, or the mean above zero and the one below."""
        return -(-numel // 8) if name == "bits" else self.means * -(-numel // self.block)

    def quantise(self, x: torch.Tensor, codes: Codes, origin: Origin) -> None:
        pack_signs(x, codes["bits"])
        blocks = _rows(x, self.block)
        found = codes["means"].view(-1, self.means)
        if self.means == 1:
            found.copy_((row_sums(blocks.abs()) / self._sizes(x)).unsqueeze(1))
            return
        above = _ones(codes["bits"], self.block)
        counts = torch.stack((above, self._sizes(x) - above), dim=1).clamp_min_(1)  # a sum of nothing is 0
        sums = torch.stack((row_sums(blocks.clamp_min(0)), row_sums(blocks.clamp_max(0))), dim=1)
        found.copy_(sums.div_(counts))

    def dequantise(self, codes: Codes, out: torch.Tensor) -> None:
        """A sign times half the distance of the means, which is exact, plus their middle, rounded to fp32.

        That is the mean itself where one is no more than 2^15 times the other.
        """
        add_signs(codes["bits"], out.zero_())
        means = codes["means"].view(-1, self.means).float()
        whole = out.numel() // self.block
        self._fill(out[: whole * self.block].view(whole, self.block), means[:whole])
        if whole < means.shape[0]:
            self._fill(out[whole * self.block :].unsqueeze(0), means[whole:])

    def _fill(self, signs: torch.Tensor, means: torch.Tensor) -> None:
        """Put what they stand for in the place of signs (blocks, elements)."""
        if self.means == 1:
            signs.mul_(means)
            return
        above, below = means[:, :1], means[:, 1:]
        torch.addcmul((above + below) / 2, (above - below) / 2, signs, out=signs)

    def _sizes(self, x: torch.Tensor) -> torch.Tensor:
        """Return the number of elements in each block, of which the last may be cut off."""
        starts = torch.arange(0, x.numel(), self.block, device=x.device)
        return (x.numel() - starts).clamp_max_(self.block).float()

    def check_values(self, payload: Payload) -> Payload:
        """No mean magnitude and no mean of elements above zero is below it, and the other way round."""
        means = payload["means"].view(-1, self.means)
        wrong = torch.cat((means[:, :1] < 0, means[:, 1:] > 0), dim=1).view(-1)
        if wrong.device.type != "cpu":
            return Payload({**payload.tensors, "means": payload["means"].masked_fill(wrong, torch.nan)}, payload.numel)
        if bool(wrong.any()):
            raise PayloadError("a mean lies on the wrong side of zero")
        return payload


def _rows(x: torch.Tensor, width: int) -> torch.Tensor:
    """Return x (n,) as rows, the last filled up with zeros."""
    missing = -x.numel() % width
    return (torch.cat([x, x.new_zeros(missing)]) if missing else x).view(-1, width)


def row_sums(rows: torch.Tensor) -> torch.Tensor:
    """Add up each row (rows, width) by halves, element by element; width is a power of two."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows.squeeze(1)


def _ones(bits: torch.Tensor, block: int) -> torch.Tensor:
    """Return the number of ones in the bits of each block, as fp32, exactly."""
    bits = _rows(bits, block // 8)
    pairs = bits - ((bits >> 1) & 0x55)
    fours = (pairs & 0x33) + ((pairs >> 2) & 0x33)
    return ((fours + (fours >> 4)) & 0x0F).sum(1, dtype=torch.int32).float()
