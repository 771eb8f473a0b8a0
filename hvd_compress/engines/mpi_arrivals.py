"""Arrivals over MPI: one small message from rank to rank, beside the collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from hvd_compress.engines.arrivals import Arrivals, group_number

TAG = 29317
"""Of our messages on COMM_WORLD. A communicator of our own would take a collective, which the absent do not join."""

_seen: dict[tuple[int, int], int] = {}
"""The last place that was told, by group and source (global rank): all groups of this process read one mailbox."""


class MpiArrivals(Arrivals):
    """Arrivals of the ranks `ranks` of COMM_WORLD. Every one of them makes its groups in the same order.

    Sends 16 bytes to each other rank when this one has waited for a while, and nothing else.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__()
        self._ranks, self._group = list(ranks), group_number(ranks)
        self._own = MPI.COMM_WORLD.rank
        self._sent: list[tuple[MPI.Request, np.ndarray]] = []

    def arrive(self, place: int) -> None:
        if MPI.Is_finalized():
            return
        self._sent = [(request, message) for request, message in self._sent if not request.Test()]
        message = np.array([self._group, place], dtype=np.int64)
        for rank in self._ranks:
            if rank != self._own:
                self._sent.append((MPI.COMM_WORLD.Isend(message, dest=rank, tag=TAG), message))

    def collect(self) -> None:
        status, message = MPI.Status(), np.empty(2, dtype=np.int64)
        while not MPI.Is_finalized() and MPI.COMM_WORLD.Iprobe(tag=TAG, status=status):
            MPI.COMM_WORLD.Recv(message, source=status.source, tag=TAG)
            group, place = (int(number) for number in message)
            _seen[group, status.source] = place

    def absent(self, place: int) -> tuple[int, ...]:
        self.collect()
        others = ((number, rank) for number, rank in enumerate(self._ranks) if rank != self._own)
        return tuple(number for number, rank in others if _seen.get((self._group, rank), 0) < place)
