"""Schemes that have a price and no exchange yet: of the papers' tables, for `hvd-compress choose`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Compressor
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities
from hvd_compress.errors import UnsupportedError
from hvd_compress.schemes.base import Exchange, Scheme, Work


@dataclass(frozen=True)
class Priced(Scheme):
    """A scheme of which only the collectives are known. With M bytes of gradient and P of payload:

    | scheme             | collectives                                   |
    | parameter-server   | gather of M, linear broadcast of M (Table I)  |
    | alltoall-allgather | all-to-all of P, all-gather of P/N            |
    | gather-broadcast   | gather of P, broadcast of P                   |
    """

    compressor: Compressor
    path: Path
    names = ("parameter-server", "alltoall-allgather", "gather-broadcast")

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        return ()

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        sent = sum(round_.nbytes for round_ in self.compressor.wire(layout))
        if self.path.scheme == "parameter-server":
            return (Stage("gather", "auto", layout.nbytes), Stage("broadcast", "linear", layout.nbytes))
        if self.path.scheme == "gather-broadcast":
            return (Stage("gather", "auto", sent), Stage("broadcast", "auto", sent))
        return (Stage("alltoall", "auto", sent), Stage("allgather", "auto", sent / world_size))

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        raise UnsupportedError(f"scheme {self.path.scheme!r} has a price, and cannot be run")
