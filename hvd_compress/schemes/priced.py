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
    """A scheme of which only the collectives are known. With M bytes of gradient:

    | scheme             | collectives                                   |
    | parameter-server   | gather of M, linear broadcast of M (Table I)  |
    """

    compressor: Compressor
    path: Path
    names = ("parameter-server",)

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        return ()

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        return (Stage("gather", "auto", layout.nbytes), Stage("broadcast", "linear", layout.nbytes))

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        raise UnsupportedError(f"scheme {self.path.scheme!r} has a price, and cannot be run")
