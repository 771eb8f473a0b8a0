"""What a policy wants to know of an exchange, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Probe:
    """What is wanted of one exchange.

    Attributes:
        flags: 16 bits that this rank tells the others, in the header of its payload, if it sends one.
        root_stats: whether AR-Topk is to say whose indices were used, and what was sent.
        ks: numbers of elements whose captured energy is read, perhaps none; None where it is not looked at.
    """

    flags: int = 0
    root_stats: bool = False
    ks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class RootStats:
    """The rank whose indices were used, the same on all ranks, and the squared norm of what this rank sent.

    `sent` is a tensor () of float64, where compression runs.
    """

    root: int
    sent: torch.Tensor


class GainSample(Protocol):
    """The captured energy of an exchange.

    Attributes:
        before_s, after_s: seconds of the host that encoding and decoding took longer for it.
    """

    before_s: float
    after_s: float

    def gains(self) -> list[float]:
        """Return the share of ||corrected||^2 for each k of the probe, then of what was sent. May wait for a GPU."""
        ...


@dataclass(frozen=True)
class ProbeReport:
    """What is known of an exchange when it is over.

    Attributes:
        flags: of the ranks whose payload all ranks received, or-ed bit by bit: the same on every rank; 0 where no
            payload has a header.
        on_critical_path: False on a rank whose encoding no other rank waits for: with STAR the root alone selects.
        root_stats: None where they were not wanted, or no single rank's indices count.
        sample: None where captured energy was not looked at.
    """

    flags: int = 0
    on_critical_path: bool = True
    root_stats: RootStats | None = None
    sample: GainSample | None = None
