"""Which values do I send?"""

from hvd_compress.compressors.base import Compressor, FeedbackCompressor, Input, Round, Rounds, SingleRound, Sparsifier
from hvd_compress.compressors.cast import Cast
from hvd_compress.compressors.efsign import EFSign
from hvd_compress.compressors.powersgd import PowerSGD
from hvd_compress.compressors.topk import TopK

__all__ = [
    "Cast",
    "Compressor",
    "EFSign",
    "FeedbackCompressor",
    "Input",
    "PowerSGD",
    "Round",
    "Rounds",
    "SingleRound",
    "Sparsifier",
    "TopK",
]
