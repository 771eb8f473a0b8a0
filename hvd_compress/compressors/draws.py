"""Random numbers from counters: the same on every device, whatever was drawn before."""

from __future__ import annotations

import torch

GAMMA = 0x9E3779B97F4A7C15


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
    found = torch.arange(1, count + 1, device=device) * _signed(GAMMA) + _signed(key)  # modulo 2^64
    found = (found ^ _shifted(found, 30)) * _signed(0xBF58476D1CE4E5B9)
    found = (found ^ _shifted(found, 27)) * _signed(0x94D049BB133111EB)
    return _shifted(found ^ _shifted(found, 31), 33)


def mantissas(key: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    """Return random whole numbers (count,) int32 of 23 bits, those of the elements from `start` on.

    An element's number depends on the key and its place alone, in whatever chunks a bucket is gone through.
    """
    return (words((key + start * GAMMA) % 2**64, count, device) >> 8).int()


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right, as numbers without a sign."""
    shifted: torch.Tensor = (x >> by) & (2 ** (64 - by) - 1)
    return shifted
