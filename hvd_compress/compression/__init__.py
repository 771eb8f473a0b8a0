"""The `Compression` namespace: what a user may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvd_compress import guests
from hvd_compress.compression.choosing import Choosing
from hvd_compress.compression.low_rank import LowRank
from hvd_compress.compression.momenta import Momenta
from hvd_compress.compression.part import of_class
from hvd_compress.compression.quantisers import Quantisers
from hvd_compress.compression.sparsifiers import Sparsifiers
from hvd_compress.compression.uncompressed import Uncompressed
from hvd_compress.compressors import OWN
from hvd_compress.errors import UnknownCompressionError, known_are

__all__ = ["Compression"]


class _Names(type):
    """Has what guests bring; says what there is where a name is none of them."""

    def __dir__(cls) -> list[str]:
        return [*super().__dir__(), *guests.compressions()]

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{cls.__name__} has no attribute {name!r}")
        if (function := guests.compression(name)) is not None:
            return function
        known = [each for each in dir(cls) if not each.startswith("_")]
        raise UnknownCompressionError(f"there is no Compression.{name}{known_are(known, name)}")


if not TYPE_CHECKING:

    class _OfGuests:
        """What guests bring is imported when it is named."""

else:
    from hvd_compress.papers.accordion.compressions import Switching
    from hvd_compress.papers.covap.compressions import Filtering
    from hvd_compress.papers.family.compressions import Family
    from hvd_compress.papers.flexible.compressions import TradingOff

    class _OfGuests(Family, Switching, Filtering, TradingOff):
        """The same for type checkers and the reference."""


class Compression(Sparsifiers, Quantisers, LowRank, Momenta, Uncompressed, Choosing, _OfGuests, metaclass=_Names):
    """What to pass as `compression=` to a front end. Each function returns a request."""


for _name, _kind in OWN.items():
    if not _kind.functions and _name not in dir(Compression):
        setattr(Compression, _name, staticmethod(of_class(_name, _kind)))
