"""Which values do I send?"""

from collections.abc import Iterator as _Iterator
from collections.abc import Mapping as _Mapping
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from hvd_compress import guests as _guests
from hvd_compress.compressors.base import (
    Compressor,
    FeedbackCompressor,
    Input,
    Requantizer,
    Round,
    Rounds,
    SingleRound,
)
from hvd_compress.compressors.blocks import BlockQuantizer
from hvd_compress.compressors.cast import Cast
from hvd_compress.compressors.chunked import ChunkedQuantizer
from hvd_compress.compressors.demo import DeMo
from hvd_compress.compressors.efsign import EFSign
from hvd_compress.compressors.momentum import CompressedMomentum, DenseMomentum
from hvd_compress.compressors.natural import Natural
from hvd_compress.compressors.onebit import OneBit
from hvd_compress.compressors.powersgd import PowerSGD
from hvd_compress.compressors.sparsifier import FixedRatio, Sparsifier, kept_of
from hvd_compress.compressors.topk import TopK

if _TYPE_CHECKING:
    from hvd_compress.papers.family.atomo import ATOMO
    from hvd_compress.papers.family.dgc import DGC
    from hvd_compress.papers.family.mstopk import MSTopK
    from hvd_compress.papers.family.oktopk import OkTopk
    from hvd_compress.papers.family.qsgd import QSGD
    from hvd_compress.papers.family.randomk import RandomK
    from hvd_compress.papers.family.sidco import SIDCo
    from hvd_compress.papers.family.signsgd import SignSGD
    from hvd_compress.papers.family.threshold import Threshold


class _Compressors(_Mapping[str, type[Compressor]]):
    """Those of the core, and those of guests, which are imported when they are looked up.

    Looking up one whose guest is not here raises ConfigError.
    """

    def __getitem__(self, name: str) -> type[Compressor]:
        found: type[Compressor] | None = OWN.get(name) or _guests.compressor(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> _Iterator[str]:
        return iter([*OWN, *_guests.compressors()])

    def __len__(self) -> int:
        return sum(1 for _ in self)


OWN: _Mapping[str, type[Compressor]] = {
    "cast": Cast,
    "topk": TopK,
    "efsign": EFSign,
    "powersgd": PowerSGD,
    "blocks": BlockQuantizer,
    "onebit": OneBit,
    "natural": Natural,
    "momentum": CompressedMomentum,
    "demo": DeMo,
}
"""Those of the core, by the names that plans use; their settings are the fields of these dataclasses. `Compression` has
a function of each: where none is written in `compression/`, it takes these fields."""
COMPRESSORS: _Mapping[str, type[Compressor]] = _Compressors()
"""Those of guests, too."""

__all__ = [
    "ATOMO",
    "COMPRESSORS",
    "DGC",
    "OWN",
    "QSGD",
    "BlockQuantizer",
    "Cast",
    "ChunkedQuantizer",
    "CompressedMomentum",
    "Compressor",
    "DeMo",
    "DenseMomentum",
    "EFSign",
    "FeedbackCompressor",
    "FixedRatio",
    "Input",
    "MSTopK",
    "Natural",
    "OkTopk",
    "OneBit",
    "PowerSGD",
    "RandomK",
    "Requantizer",
    "Round",
    "Rounds",
    "SIDCo",
    "SignSGD",
    "SingleRound",
    "Sparsifier",
    "Threshold",
    "TopK",
    "kept_of",
]

if not _TYPE_CHECKING:
    __all__ = _guests.offered(__all__, "classes")

    def __getattr__(name: str) -> _Any:
        """Import a guest's compressor, when it is named."""
        return _guests.attribute(__name__, name, "classes")

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
