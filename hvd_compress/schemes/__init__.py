"""Who sends what, in which rounds?"""

from hvd_compress.schemes.allgather import AllGather
from hvd_compress.schemes.alltoall import AllToAll
from hvd_compress.schemes.artopk import ARTopk
from hvd_compress.schemes.base import Exchange, Scheme, Work
from hvd_compress.schemes.dense import Dense
from hvd_compress.schemes.observed import Observed

__all__ = ["ARTopk", "AllGather", "AllToAll", "Dense", "Exchange", "Observed", "Scheme", "Work"]
