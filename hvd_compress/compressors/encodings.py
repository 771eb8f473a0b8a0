"""How the elements of a shard lie in a message of fixed length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from hvd_compress import native
from hvd_compress.native import BlockCodes, BlockFormat

ALIGN = 16
"""Bytes that parts of a message begin at a multiple of."""


class Encoding(ABC):
    """Writes elements to bytes and reads them back, the same on every rank, to the bit.

    Attributes:
        takes_differences: whether it rounds small values as well as large ones.
    """

    takes_differences: ClassVar[bool] = False

    @property
    @abstractmethod
    def words(self) -> str:
        """What it is called."""

    @abstractmethod
    def nbytes(self, numel: int) -> int:
        """Return the length of a message of `numel` elements."""

    @abstractmethod
    def write(self, values: torch.Tensor, into: torch.Tensor) -> None:
        """Write values (n,) of fp32, fp16 or bf16 to `into` (nbytes(n),) uint8."""

    @abstractmethod
    def read(self, message: torch.Tensor, out: torch.Tensor) -> None:
        """Read a message (nbytes(n),) uint8 to `out` (n,)."""


@dataclass(frozen=True)
class AsDtype(Encoding):
    """Elements of a dtype, rounded to nearest."""

    dtype: torch.dtype

    @property
    def words(self) -> str:
        return "bf16" if self.dtype == torch.bfloat16 else str(self.dtype)

    def nbytes(self, numel: int) -> int:
        return numel * self.dtype.itemsize

    def write(self, values: torch.Tensor, into: torch.Tensor) -> None:
        into.view(self.dtype).copy_(values)

    def read(self, message: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(message.view(self.dtype))


@dataclass(frozen=True)
class InBlocks(Encoding):
    """Whole numbers in units of a bf16 scale for each block, rounded to nearest: BlockQuantizer says how."""

    format: BlockFormat
    takes_differences = True

    @property
    def words(self) -> str:
        return f"int{self.format.bits} in blocks of {self.format.block}"

    def nbytes(self, numel: int) -> int:
        return self.format.nbytes(numel)

    def write(self, values: torch.Tensor, into: torch.Tensor) -> None:
        native.block_quantize(values, None, self.format, into=self._codes(into, values.numel()))

    def read(self, message: torch.Tensor, out: torch.Tensor) -> None:
        native.block_sum([self._codes(message, out.numel())], out, self.format, 1.0)

    def _codes(self, message: torch.Tensor, numel: int) -> BlockCodes:
        codes = self.format.code_bytes(numel)
        return BlockCodes(message[:codes], message[codes:].view(torch.bfloat16))


def aligned(nbytes: int) -> int:
    """Return the next multiple of ALIGN."""
    return -(-nbytes // ALIGN) * ALIGN
