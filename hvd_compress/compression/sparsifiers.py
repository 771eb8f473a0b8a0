"""What sends some elements and their places."""

from __future__ import annotations

from hvd_compress.compression.part import Part
from hvd_compress.compressors import TopK
from hvd_compress.request.request import Request
from hvd_compress.warned import warn_caller


class Sparsifiers(Part):
    """Part of `Compression`."""

    @staticmethod
    def topk(
        ratio: float = 0.01, *, layerwise: bool = False, values: str = "fp32", index_coding: str = "none"
    ) -> Request:
        """Send the elements of largest magnitude, with error feedback.

        Args:
            ratio: share of the elements that is sent, in (0, 1]; 0.01 is one per cent.
            layerwise: select in each parameter by itself (LWTopk) instead of in the fused bucket.
            values: "fp32", "bf16" or "int8" (8 bits, and a scale for each 64 values): what rounding takes of a value is
                sent with later gradients. Rounded values travel by all-gather.
            index_coding: "none", 4 bytes an index; or "delta", coded without loss: about 1.1 bytes an index at ratio
                0.01.

        Raises:
            ConfigError: a value is out of range or unknown.

        Warns of ratio=1: one per cent was probably meant.
        """
        compressor = TopK(ratio, layerwise, values=values, index_coding=index_coding)
        request = Request(compressor)
        warn_of_everything(ratio, "topk")
        return request


def warn_of_everything(ratio: float, name: str) -> None:
    """Warn the caller of a function of `Compression`: one per cent was probably meant."""
    if ratio == 1 and isinstance(ratio, int):
        warn_caller(
            f"Compression.{name}(ratio=1) sends every element; one per cent is 0.01, and Compression.dense() sends all "
            "without indices"
        )
