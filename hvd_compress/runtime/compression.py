"""What Horovod calls Compression: casts of what is allreduced, and the base of a program's own."""

from __future__ import annotations

from typing import Any

import torch


class NoneCompressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return what to send, and what decompress() needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Return the result in the dtype of what was compressed."""
        return tensor if context is None else tensor.to(context)


Compressor = NoneCompressor
"""What Horovod calls the base of a program's own."""


class FP16Compressor(NoneCompressor):
    """Sends floating-point numbers as half."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return what to send, and what decompress() needs."""
        return (tensor.half(), tensor.dtype) if tensor.is_floating_point() else (tensor, None)


class Compression:
    """By name."""

    none = NoneCompressor
    fp16 = FP16Compressor
