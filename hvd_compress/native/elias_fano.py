"""Ascending indices in few bits: the code of Elias (1974) and Fano (1971)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress.errors import MismatchError
from hvd_compress.native.checks import MAX_NUMEL, check_tensor, checked_int
from hvd_compress.native.module import memory, on, prepare

WORD_BITS = 32


@dataclass(frozen=True)
class EliasFano:
    """The code of `count` indices of 0..numel-1, ascending without repetition.

    The floor(log2(numel / count)) low bits of each index are stored as they are, and the differences of what lies above
    them in unary (csrc/include/hvd_compress/elias_fano.hpp says it exactly). So the length depends on the two numbers
    alone: 8.6 bits an index where one of a hundred is sent.

    Attributes:
        numel: of what is indexed, up to 2^31 - 1.
        count: how many indices, up to numel.
    """

    numel: int
    count: int

    def __post_init__(self) -> None:
        checked_int("numel", self.numel, 0, MAX_NUMEL)
        checked_int("count", self.count, 0, self.numel)

    @property
    def low_bits(self) -> int:
        """How many bits of an index are stored as they are."""
        return (self.numel // self.count).bit_length() - 1 if self.count else 0

    @property
    def words(self) -> int:
        """How many int32 words the code has."""
        if self.count == 0:
            return 0
        high_bits = self.count + (self.numel - 1 >> self.low_bits)
        return -(-high_bits // WORD_BITS) + -(-self.count * self.low_bits // WORD_BITS)

    @property
    def nbytes(self) -> int:
        """Bytes of the code."""
        return 4 * self.words


def elias_fano_encode(indices: torch.Tensor, numel: int) -> torch.Tensor:
    """Return the code of indices, (EliasFano(numel, count).words,) int32.

    Args:
        indices: (count,) int32 in 0..numel-1, ascending without repetition.
        numel: of what is indexed.

    Raises:
        MismatchError: an index lies outside, or not above the one before.
    """
    check_tensor("indices", indices, (torch.int32,))
    code = EliasFano(numel, indices.numel())
    words = torch.empty(code.words, dtype=torch.int32, device=indices.device)
    prepare(like=indices)
    first_bad = on(indices).elias_fano_encode(indices.data_ptr(), code.count, code.numel, words.data_ptr())
    if first_bad >= 0:
        raise MismatchError(_told(int(indices[first_bad]), first_bad, code))
    return words


def elias_fano_decode(words: torch.Tensor, numel: int, count: int) -> torch.Tensor:
    """Return the indices that a code stands for, (count,) int32. On CUDA bad ones are -1.

    Args:
        words: (EliasFano(numel, count).words,) int32, as from elias_fano_encode().
        numel, count: as they were there.

    Raises:
        MismatchError: the code has another length, more or fewer indices, one that lies outside of 0..numel-1, or one
            that does not lie above the one before.
    """
    check_tensor("words", words, (torch.int32,))
    code = EliasFano(numel, count)
    if words.numel() != code.words:
        raise MismatchError(f"{words.numel()} words for {count} indices of {numel}, expected {code.words}")
    indices = torch.empty(code.count, dtype=torch.int32, device=words.device)
    workspace = prepare(on(words).elias_fano_workspace_bytes(code.numel, code.count), words)
    first_bad = on(words).elias_fano_decode(
        words.data_ptr(), code.count, code.numel, indices.data_ptr(), *memory(workspace)
    )
    if first_bad == code.count:
        raise MismatchError(f"the code has more than {code.count} indices")
    if first_bad >= 0:
        raise MismatchError(f"the code has no index at position {first_bad} of {code.count} that can be one of {numel}")
    return indices


def _told(index: int, position: int, code: EliasFano) -> str:
    return (
        f"index {index} at position {position} of {code.count} lies outside 0..{code.numel - 1}, or does not lie above "
        "the one before"
    )
