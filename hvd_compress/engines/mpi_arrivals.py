"""Arrivals over MPI: one small message from rank to rank, beside the collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from hvd_compress.engines.arrivals import GroupArrivals

TAG = 29317
"""Of our messages on COMM_WORLD. A communicator of our own would take a collective, which the missing do not join."""

_announced: dict[tuple[int, int], int] = {}
"""The last wait, by group and source (global rank): all groups of this process read one mailbox."""


class MpiArrivals(GroupArrivals):
    """Arrivals of the ranks `ranks` of COMM_WORLD.

    Sends 16 bytes to each other rank when this one has waited for a while, and nothing else.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(ranks, MPI.COMM_WORLD.rank)
        self._sending: list[tuple[MPI.Request, np.ndarray]] = []

    def announce(self, wait: int) -> None:
        if MPI.Is_finalized():
            return
        self._sending = [(request, message) for request, message in self._sending if not request.Test()]
        message = np.array([self.group, wait], dtype=np.int64)
        for rank in self.others:
            self._sending.append((MPI.COMM_WORLD.Isend(message, dest=rank, tag=TAG), message))

    def collect(self) -> None:
        status, message = MPI.Status(), np.empty(2, dtype=np.int64)
        while not MPI.Is_finalized() and MPI.COMM_WORLD.Iprobe(tag=TAG, status=status):
            MPI.COMM_WORLD.Recv(message, source=status.source, tag=TAG)
            group, wait = (int(number) for number in message)
            _announced[group, status.source] = wait

    def announced(self, rank: int) -> int:
        return _announced.get((self.group, rank), 0)
