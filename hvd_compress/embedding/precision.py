"""How synchronised rows and gradients are encoded on the network: as they are, in bf16, or in 8 bits and a scale a row.

Each row is encoded by itself, in whole words of 32 bits, so that messages of several precisions are one tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from hvd_compress.checks import check_choice

_LARGEST_CODE = 127


class Precision(ABC):
    """Encodes rows. A row with an element that is not finite is decoded with one that is not.

    Attributes:
        lossy: rows change on their way.
    """

    lossy = True

    @abstractmethod
    def words(self, width: int) -> int:
        """Return how many words of 32 bits an encoded row of `width` elements takes."""

    @abstractmethod
    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the words of float32 rows (n, width), as float32 (n, words(width)); they are no numbers."""

    @abstractmethod
    def decode(self, words: torch.Tensor, width: int) -> torch.Tensor:
        """Return float32 rows (n, width)."""


class Exact(Precision):
    """float32, without a copy."""

    lossy = False

    def words(self, width: int) -> int:
        return width

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def decode(self, words: torch.Tensor, width: int) -> torch.Tensor:
        return words


class BFloat16(Precision):
    """bf16, rounded to nearest even: two elements a word. Beyond 3.39e38 it is infinite."""

    def words(self, width: int) -> int:
        return -(-width // 2)

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        words = torch.zeros(rows.shape[0], self.words(rows.shape[1]))
        words.view(torch.bfloat16)[:, : rows.shape[1]].copy_(rows)
        return words

    def decode(self, words: torch.Tensor, width: int) -> torch.Tensor:
        return words.view(torch.bfloat16)[:, :width].to(torch.float32)


class Int8(Precision):
    """Whole multiples of max |x| / 127 of the row, rounded to nearest even: a float32 scale, and four elements a word.

    A row with an element that is not finite is NaN throughout: its scale is NaN or infinite, and its codes are 0.
    Next to the largest float32 an element may arrive as infinite.
    """

    def words(self, width: int) -> int:
        return 1 - (-width // 4)

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        words = torch.zeros(rows.shape[0], self.words(rows.shape[1]))
        scales = rows.abs().amax(dim=1, keepdim=True).div_(_LARGEST_CODE)
        # 0 / 0 is 0; a scale that is 0 or has few bits, next to the smallest float32, can make larger codes.
        codes = rows.div(scales).nan_to_num_(0.0).round_().clamp_(-_LARGEST_CODE, _LARGEST_CODE)
        words[:, :1] = scales
        words.view(torch.int8)[:, 4 : 4 + rows.shape[1]].copy_(codes)
        return words

    def decode(self, words: torch.Tensor, width: int) -> torch.Tensor:
        return words.view(torch.int8)[:, 4 : 4 + width].to(torch.float32).mul_(words[:, :1])


PRECISIONS: dict[str, Precision] = {"exact": Exact(), "bf16": BFloat16(), "int8": Int8()}


def precision_of(name: str) -> Precision:
    """Raises ConfigError for a name that is none of PRECISIONS."""
    check_choice("sync_precision", name, PRECISIONS)
    return PRECISIONS[name]
