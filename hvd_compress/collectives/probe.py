"""What a policy wants to know of an exchange, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Probe:
    """What is wanted of one exchange.

    Attributes:
        root_stats: whether AR-Topk is to say whose indices were used, and what was sent.
        ks: numbers of elements whose captured energy is read, perhaps none; None where it is not looked at.
        norm: whether the norm of the result is wanted.
    """

    root_stats: bool = False
    ks: tuple[int, ...] | None = None
    norm: bool = False


@dataclass(frozen=True)
class RootStats:
    """The rank whose indices were used, the same on all ranks, and the squared norm of what this rank sent.

    `sent` is a tensor () of float64, where compression runs.
    """

    root: int
    sent: torch.Tensor


class GainSample(Protocol):
    """The captured energy of an exchange. What is asked may wait for a GPU.

    Attributes:
        before_s, after_s: seconds of the host that encoding and decoding took longer for it.
    """

    before_s: float
    after_s: float

    def gains(self) -> list[float]:
        """Return the share of ||corrected||^2 that this rank's k largest elements hold, for each k of the probe."""
        ...

    def energies(self) -> tuple[float, float] | None:
        """Return ||corrected||^2 and what of it was not sent; None where the compressor remembers nothing."""
        ...


@dataclass(frozen=True)
class ProbeReport:
    """What is known of an exchange when it is over.

    Attributes:
        on_critical_path: False on a rank whose encoding no other rank waits for: with STAR the root alone selects.
        root_stats: None where they were not wanted, or no single rank's indices count.
        sample: None where captured energy was not looked at.
        norm: of the result, a tensor () of fp32 that is the same on all ranks; None where it was not wanted.
    """

    on_critical_path: bool = True
    root_stats: RootStats | None = None
    sample: GainSample | None = None
    norm: torch.Tensor | None = None

    @property
    def sent(self) -> float | None:
        """The share of ||corrected||^2 that was sent; None where nobody looked, or no residual says what was not."""
        energies = self.sample.energies() if self.sample is not None else None
        if energies is None:
            return None
        everything, left = energies
        return 1.0 - left / everything if everything != 0.0 else 1.0
