"""SplitMix64: a hash of whole numbers that needs no state (Steele, Lea and Flood 2014)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

GAMMA = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: spreads small numbers before they are hashed."""


def mix(numbers: Hashes) -> Hashes:
    """Return a hash of each number; equal numbers have equal ones."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    hashes: Hashes = numbers ^ (numbers >> np.uint64(31))
    return hashes
