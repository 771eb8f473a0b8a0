"""What compresses a momentum in the place of gradients; hvd_compress.optim has the optimizers that go with it."""

from __future__ import annotations

from hvd_compress.compression.part import Part
from hvd_compress.compressors import CompressedMomentum, DeMo, DenseMomentum, Requantizer
from hvd_compress.compressors.momentum import INNER
from hvd_compress.policies import Warmup
from hvd_compress.request.request import Request


class Momenta(Part):
    """Part of `Compression`."""

    @staticmethod
    def momentum(beta: float = 0.9, warmup_steps: int = 0, inner: Requantizer = INNER) -> Request:
        """Send the momentum that all ranks share, in a few bits, after a dense warm-up (1-bit Adam, Tang et al. 2021).

        The result is the gradient that leads from one momentum to the next. `hvd_compress.optim.OneBitAdam(...)` is the
        optimizer for it, and its compression() calls this with what it has itself. Adam of torch goes on changing its
        variance after the warm-up, by gradients that are no gradients any more.

        Args:
            beta: of the optimizer's momentum, from 0 on, below 1.
            warmup_steps: in the first so many steps gradients travel dense, while the momentum is built. The exchange
                counts them, also those that were not finite.
            inner: what compresses the momentum.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        policy = Warmup(DenseMomentum(beta), warmup_steps) if warmup_steps else None
        compressor = CompressedMomentum(beta, inner)
        return Request(compressor, policy=policy)

    @staticmethod
    def demo(k: int = 32, chunk: int = 64, decay: float = 0.999) -> Request:
        """Send the largest cosine coefficients of each rank's momentum, which keeps the rest (DeMo, Peng et al. 2024).

        `hvd_compress.optim.DeMo(...)` is the optimizer for it, which moves by signs; one with a momentum of its own
        would have two.

        Args:
            k: coefficients that are sent of each chunk.
            chunk: a chunk of a matrix has up to so many rows and columns, of a vector so many elements; up to 128.
            decay: of the momentum, above 0, up to 1.

        Raises:
            ConfigError: a value is out of range.
        """
        return Request(DeMo(k, chunk, decay))
