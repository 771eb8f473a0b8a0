"""Which values do I send?"""

from hvd_compress.compressors.base import (
    Compressor,
    FeedbackCompressor,
    Input,
    Requantizer,
    Round,
    Rounds,
    SingleRound,
    Sparsifier,
)
from hvd_compress.compressors.blocks import BlockQuantizer
from hvd_compress.compressors.cast import Cast
from hvd_compress.compressors.efsign import EFSign
from hvd_compress.compressors.powersgd import PowerSGD
from hvd_compress.compressors.topk import TopK

COMPRESSORS: dict[str, type[Compressor]] = {
    "cast": Cast,
    "topk": TopK,
    "efsign": EFSign,
    "powersgd": PowerSGD,
    "blocks": BlockQuantizer,
}
"""By the names that plans use; their settings are the fields of these dataclasses."""

__all__ = [
    "COMPRESSORS",
    "BlockQuantizer",
    "Cast",
    "Compressor",
    "EFSign",
    "FeedbackCompressor",
    "Input",
    "PowerSGD",
    "Requantizer",
    "Round",
    "Rounds",
    "SingleRound",
    "Sparsifier",
    "TopK",
]
