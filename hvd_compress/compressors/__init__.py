"""Which values do I send?"""

from hvd_compress.compressors.atomo import ATOMO
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
from hvd_compress.compressors.dgc import DGC
from hvd_compress.compressors.efsign import EFSign
from hvd_compress.compressors.momentum import CompressedMomentum, DenseMomentum
from hvd_compress.compressors.mstopk import MSTopK
from hvd_compress.compressors.natural import Natural
from hvd_compress.compressors.oktopk import OkTopk
from hvd_compress.compressors.onebit import OneBit
from hvd_compress.compressors.powersgd import PowerSGD
from hvd_compress.compressors.qsgd import QSGD
from hvd_compress.compressors.randomk import RandomK
from hvd_compress.compressors.sidco import SIDCo
from hvd_compress.compressors.signsgd import SignSGD
from hvd_compress.compressors.sparsifier import FixedRatio, Sparsifier, kept_of
from hvd_compress.compressors.threshold import Threshold
from hvd_compress.compressors.topk import TopK

COMPRESSORS: dict[str, type[Compressor]] = {
    "cast": Cast,
    "topk": TopK,
    "mstopk": MSTopK,
    "dgc": DGC,
    "oktopk": OkTopk,
    "randomk": RandomK,
    "threshold": Threshold,
    "sidco": SIDCo,
    "efsign": EFSign,
    "qsgd": QSGD,
    "powersgd": PowerSGD,
    "atomo": ATOMO,
    "blocks": BlockQuantizer,
    "signsgd": SignSGD,
    "onebit": OneBit,
    "natural": Natural,
    "momentum": CompressedMomentum,
    "demo": DeMo,
}
"""By the names that plans use; their settings are the fields of these dataclasses."""

__all__ = [
    "ATOMO",
    "COMPRESSORS",
    "DGC",
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
