"""The network as it is now: calibrated curves, bent to what a few fresh measurements say."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress.controller.differ import times_apart
from hvd_compress.cost.calibrate import KIB
from hvd_compress.cost.predict import Costs
from hvd_compress.engines.base import Engine

SMALL, LARGE, LARGEST = KIB, 256 * KIB, 16384 * KIB
ADDED = 0.2
"""What more bytes are to add to the time of a small message, as a share of that."""
REFERENCE = ("allreduce", "auto")
ALIKE = 1.4
"""Networks whose factors differ by at most this are one and the same: a few messages say no more than that."""


@dataclass(frozen=True)
class Network:
    """What collectives cost now. Prices them for `predict`, the same on all ranks.

    A curve is the time of a small message, which is latency, and what more bytes add, which is bandwidth. Each of them
    has its own factor, by which it left the curves.

    Attributes:
        costs: curves, or formulas where nothing was measured.
        latency: times of small messages, over those of `costs`.
        transfer: the same of what more bytes add (255 KiB, or as many as count where latency is long).
    """

    costs: Costs
    latency: float = 1.0
    transfer: float = 1.0

    @property
    def world_size(self) -> int:
        return self.costs.world_size

    def seconds(self, verb: str, algorithm: str, size: float) -> float:
        """Return the seconds of one collective with `size` bytes in each rank's tensor."""
        whole = self.costs.seconds(verb, algorithm, size)
        small = min(whole, self.costs.seconds(verb, algorithm, SMALL))
        return self.latency * small + self.transfer * (whole - small)

    def like(self, other: Network) -> bool:
        """Whether both are one and the same network, as far as can be told."""
        return max(times_apart(self.latency, other.latency), times_apart(self.transfer, other.transfer)) <= ALIKE

    def remeasured(self, engine: Engine) -> Network:
        """Return the network as it is found now, or this very one where it is like that. Collective, in the engine's
        thread, the same on all ranks.

        What seems to be another one is measured again, with as many bytes as its latency does not hide: noise only
        makes longer, so that the shorter times count.
        """
        size = self._large
        small, large = _measured(engine, size)
        found = self._bent(small, large, size)
        if found.like(self):
            return self
        again, large_again = _measured(engine, found._large)
        large = min(large, large_again) if found._large == size else large_again
        found = self._bent(min(small, again), large, found._large)
        return self if found.like(self) else found

    @property
    def _large(self) -> int:
        """Bytes that add to the time of a small message what can be told from noise."""
        size, small = LARGE, self.seconds(*REFERENCE, SMALL)
        while size < LARGEST and self.seconds(*REFERENCE, size) < (1 + ADDED) * small:
            size *= 4
        return size

    def _bent(self, small: float, large: float, size: int) -> Network:
        """Return the network on which an allreduce of SMALL and one of `size` bytes take so many seconds."""
        before = self.costs.seconds(*REFERENCE, SMALL)
        added = self.costs.seconds(*REFERENCE, size) - before
        # Within one machine bytes may add less than the noise: then one factor says all there is to say.
        latency = small / before if before > 0 else 1.0
        transfer = (large - small) / added if added > 0.1 * before and large > small else latency
        return Network(self.costs, latency, transfer)


def _measured(engine: Engine, size: int) -> tuple[float, float]:
    """Return the seconds of an allreduce of SMALL, the shorter one of two, and of `size` bytes. Collective.

    On a slow network all of it takes as long as several steps: there is no more of it. The first one also brings ranks
    in step, and what each took is exchanged at the end (24 bytes).
    """
    _, algorithm = REFERENCE
    with engine.aside() as calls:
        for each in (SMALL, SMALL, size):
            engine.allreduce(torch.zeros(each // 4), algorithm)
        mine = torch.tensor([call.seconds for call in calls], dtype=torch.float64)
        first, second, large = torch.stack(engine.allgather(mine, [3] * engine.world_size)).mean(0).tolist()
    return min(first, second), large
