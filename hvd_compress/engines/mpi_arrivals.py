"""Arrivals over MPI's name service: mpirun holds names and values for the job, beside all messages."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_compress.engines.arrivals import GroupArrivals
from hvd_compress.engines.mpi_library import MPI


class MpiArrivals(GroupArrivals):
    """Arrivals of the ranks `ranks` of COMM_WORLD.

    No messages: one of ours on COMM_WORLD could reach a receive of the user's from any source with any tag, and a
    communicator of our own would take a collective, which the missing do not join.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(ranks, MPI.COMM_WORLD.rank)
        self._published: str | None = None

    def announce(self, wait: int) -> None:
        _require_running()
        if self._published is not None:
            MPI.Unpublish_name(self._name(self.own), self._published)
        self._published = str(wait)
        MPI.Publish_name(self._name(self.own), self._published)

    def announced(self, rank: int) -> int:
        _require_running()
        try:
            return int(MPI.Lookup_name(self._name(rank)))
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_NAME:
                raise
            return 0

    def _name(self, rank: int) -> str:
        return f"hvd_compress.{self.group}.{rank}"


def _require_running() -> None:
    """A call after MPI has ended would end the process."""
    if MPI.Is_finalized():
        raise RuntimeError("MPI has been shut down")
