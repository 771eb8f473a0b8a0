"""What sends every element, as it is or rounded."""

from __future__ import annotations

import torch

from hvd_compress.compressors import Cast
from hvd_compress.decision import Request


class Uncompressed:
    """Part of `Compression`."""

    @staticmethod
    def bf16(*, engine: str = "auto", device: str = "auto") -> Request:
        """Send every element as bfloat16.

        Sums are made in fp32 where the engine cannot sum bfloat16 (MPI, Horovod), by as many bytes; torch.distributed
        sums in bfloat16.
        """
        return Request(Cast(torch.bfloat16), engine=engine, device=device)

    @staticmethod
    def half(*, engine: str = "auto", device: str = "auto") -> Request:
        """Send every element as float16; what is above 65,504, or sums to more, is infinite, and the step is skipped.

        DDP's `Compression.fp16` is this. That of hvd_compress.torch is Horovod's and takes Horovod's own path; this one
        takes the path of the others here, over any engine.
        """
        return Request(Cast(torch.float16), engine=engine, device=device)

    @staticmethod
    def dense(algorithm: str = "auto", *, engine: str = "auto", device: str = "auto") -> Request:
        """Send every element as it is, through this package's pipeline: what the others are measured against."""
        return Request(Cast(), algorithm=algorithm, engine=engine, device=device)
