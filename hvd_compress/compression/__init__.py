"""The `Compression` namespace: what a user may ask for."""

from __future__ import annotations

from hvd_compress.compression.choosing import Choosing
from hvd_compress.compression.low_rank import LowRank
from hvd_compress.compression.momenta import Momenta
from hvd_compress.compression.quantisers import Quantisers
from hvd_compress.compression.sparsifiers import Sparsifiers
from hvd_compress.compression.uncompressed import Uncompressed

__all__ = ["Compression"]


class Compression(Sparsifiers, Quantisers, LowRank, Momenta, Uncompressed, Choosing):
    """What to pass as `compression=` to a front end. Each function returns a request."""
