"""The network as it is now: calibrated curves, bent to what a few fresh measurements say."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress.controller.differ import times_apart
from hvd_compress.cost.calibrate import KIB
from hvd_compress.cost.predict import Costs
from hvd_compress.engines.base import Engine

SMALL, LARGE, LARGEST = KIB, 256 * KIB, 16384 * KIB
ADDED = 0.1
"""What more bytes are to add to the time of a small message, as a share of that, or they tell nothing."""
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

        What seems to be another one is measured again: noise only makes longer, so that the shorter times count.
        """
        small, large, size = _measured(engine)
        if self._bent(small, large, size).like(self):
            return self
        again, large_again, size_again = _measured(engine)
        large = min(large, large_again) if size_again == size else large_again
        found = self._bent(min(small, again), large, size_again)
        return self if found.like(self) else found

    def _bent(self, small: float, large: float, size: int) -> Network:
        """Return the network on which an allreduce of SMALL and one of `size` bytes take so many seconds."""
        before = self.costs.seconds(*REFERENCE, SMALL)
        added = self.costs.seconds(*REFERENCE, size) - before
        # Within one machine bytes may add less than the noise: then one factor says all there is to say.
        latency = small / before if before > 0 else 1.0
        transfer = (large - small) / added if added > 0 and large > (1 + ADDED) * small else latency
        return Network(self.costs, latency, transfer)


def _measured(engine: Engine) -> tuple[float, float, int]:
    """Return the seconds of an allreduce of SMALL, the shorter one of two, and of more bytes, and how many. Collective.

    On a slow network LARGE bytes take as long as several steps: there is no more of it. Where latency hides them more
    are sent, four times as many each time. The first one also brings ranks in step, and what each took is exchanged.
    """
    _, algorithm = REFERENCE

    def mean_s(*sizes: int) -> list[float]:
        with engine.aside() as calls:
            for size in sizes:
                engine.allreduce(torch.zeros(size // 4, device=engine.device), algorithm)
            mine = torch.tensor([call.seconds for call in calls], dtype=torch.float64)
            ranks = engine.control.allgather(mine, [len(sizes)] * engine.world_size)
            found: list[float] = torch.stack(ranks).mean(0).tolist()
            return found

    first, second, large = mean_s(SMALL, SMALL, LARGE)
    small, size = min(first, second), LARGE
    while large < (1 + ADDED) * small and size < LARGEST:
        size *= 4
        (large,) = mean_s(size)
    return small, large, size
