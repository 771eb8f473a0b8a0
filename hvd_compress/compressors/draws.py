"""Random numbers from counters: the same on every device, whatever was drawn before."""

from __future__ import annotations

import torch

GAMMA = 0x9E3779B97F4A7C15
SUM = 1 << 32
"""In a key, in the place of a shard's owner, where the owner rounds the sum; no rank has this number."""


def mixed(*numbers: int) -> int:
    """Return 64 bits that depend on all the numbers: SplitMix64's finaliser (Steele et al. 2014) over each in turn."""
    found = 0
    for number in numbers:
        found = (found + number + GAMMA) % 2**64
        found = (found ^ found >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        found = (found ^ found >> 27) * 0x94D049BB133111EB % 2**64
        found ^= found >> 31
    return found


def words(key: int, count: int, device: torch.device) -> torch.Tensor:
    """Return random whole numbers (count,) int64 of 31 bits: SplitMix64's, from the state `key` on."""
    return _shifted(_whole_words(key, count, device), 33)


def mantissas(key: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    """Return random whole numbers (count,) int32 of 23 bits, those of the elements from `start`, an even number, on.

    Element i takes a half of word i // 2. Its number depends on key and i alone, in whatever chunks a bucket is gone
    through.
    """
    found = _whole_words((key + start // 2 * GAMMA) % 2**64, -(-count // 2), device)
    return found.view(torch.int32)[:count].bitwise_and_(0x7FFFFF)


def _whole_words(key: int, count: int, device: torch.device) -> torch.Tensor:
    """Return random words (count,) of 64 bits, as int64."""
    found = torch.arange(1, count + 1, device=device) * _signed(GAMMA) + _signed(key)  # modulo 2^64
    found = (found ^ _shifted(found, 30)) * _signed(0xBF58476D1CE4E5B9)
    found = (found ^ _shifted(found, 27)) * _signed(0x94D049BB133111EB)
    return found ^ _shifted(found, 31)


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right, as numbers without a sign."""
    shifted: torch.Tensor = (x >> by) & (2 ** (64 - by) - 1)
    return shifted
