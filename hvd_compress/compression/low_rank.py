"""What sends factors of matrices."""

from __future__ import annotations

from hvd_compress.compression.part import Part
from hvd_compress.compressors import PowerSGD
from hvd_compress.request.request import Request


class LowRank(Part):
    """Part of `Compression`."""

    @staticmethod
    def powersgd(
        rank: int = 4, start_step: int = 0, min_compression_rate: float = 2.0, *, factors: str = "fp32"
    ) -> Request:
        """Send a low-rank approximation of each matrix, with error feedback and a warm start (Vogels et al. 2019).

        Vectors, and matrices that would not shrink enough, travel dense beside it.

        Args:
            rank: columns of the two factors, 1 or more. More keeps more of the gradient, and takes more bytes.
            start_step: the first step that is compressed; all elements are sent before, which helps where gradients
                change fast at first.
            min_compression_rate: a matrix is approximated where it has more than this many times the elements of its
                factors.
            factors: how they travel: "fp32", summed by an allreduce; or "bf16" or "int8", which can only be gathered,
                by (N-1) times their bytes instead of 2 (N-1)/N times. With N ranks bf16 sends fewer bytes up to N = 3,
                int8 up to N = 7, or 5 where many vectors travel beside them, as in ResNet-50. What rounding loses is
                sent with the next gradient.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        return Request(PowerSGD(rank, start_step, min_compression_rate, factors))
