"""What sends every element in a few bits."""

from __future__ import annotations

from typing import Literal

from hvd_compress.compression.part import Part
from hvd_compress.compressors import BlockQuantizer, EFSign, Natural, OneBit
from hvd_compress.errors import ConfigError
from hvd_compress.request.request import Request


class Quantisers(Part):
    """Part of `Compression`."""

    @staticmethod
    def efsign(*, layerwise: bool = True) -> Request:
        """Send one bit an element and one scale a parameter (or a bucket), with error feedback.

        Args:
            layerwise: one scale for each parameter instead of one for the bucket.

        Raises:
            ConfigError: a value is unknown.
        """
        return Request(EFSign(layerwise))

    @staticmethod
    def onebit(block: int = 512, means: int = 2) -> Request:
        """Send one bit an element and two bf16 means a block, with error feedback (1-bit SGD, Seide et al. 2014).

        A thirtieth of the bytes of dense. The sum over ranks is compressed again, by the rank that owns that shard of
        the bucket, which remembers what that loses.

        Args:
            block: elements that share means: a power of two from 64 to 65,536.
            means: 2, of a block's elements above zero and of those below; 1, the mean magnitude, for both.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        return Request(OneBit(block, means))

    @staticmethod
    def natural(*, error_feedback: bool = False, seed: int = 0) -> Request:
        """Send sign and exponent of each element, rounded at random to a power of two, right on average: 8 bits.

        Natural compression (Horvath et al. 2022). Unlike int8(stochastic=True) it has no scale: small elements beside
        large ones lose no more than others do.

        Args:
            error_feedback: send what rounding loses with the next gradient.
            seed: of the random numbers.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        return Request(Natural(error_feedback, seed))

    @staticmethod
    def int8(block: int = 64, stochastic: bool = False, *, seed: int = 0) -> Request:
        """Send 8 bits an element and a bf16 scale for each block of elements: a quarter of the bytes of dense.

        The sum over ranks is rounded again, by the rank that owns that shard of the bucket.

        Args:
            block: elements that share a scale: a power of two from 64 to 1024. With 64 it takes 1/4 of a bit an
                element.
            stochastic: round at random, right on average, without error feedback. Else round to nearest; what that
                loses is sent with the next gradient.
            seed: of the random numbers.

        Raises:
            ConfigError: a value is out of range or unknown.
        """
        return Request(BlockQuantizer(8, block, stochastic, seed))

    @staticmethod
    def int4(block: int | None = None, stochastic: bool = False, *, coded: bool = False, seed: int = 0) -> Request:
        """Send 4 bits an element and a bf16 scale a block, as int8(): an eighth of the bytes of dense.

        Args:
            block: as int8(); 64, or 256 with `coded`, where larger blocks save more bits than they lose.
            stochastic, seed: as int8().
            coded: send whole numbers by Huffman codes (1952), which lose nothing, though larger blocks do. It pays
                where a step waits for the line.
        """
        return _few_bits(4, block, stochastic, coded, seed)

    @staticmethod
    def int3(block: int | None = None, stochastic: bool = False, *, coded: bool = False, seed: int = 0) -> Request:
        """Send one of -3..3 an element, in 3 bits, and a bf16 scale a block, as int4(): a tenth of the bytes of dense.

        Its loss lies between that of int4() and of int2(). Coded it takes a sixteenth of the bytes of dense.
        """
        return _few_bits(3, block, stochastic, coded, seed)

    @staticmethod
    def int2(
        block: int | None = None,
        stochastic: bool = False,
        *,
        levels: Literal[3, 5] = 3,
        coded: bool = False,
        seed: int = 0,
    ) -> Request:
        """Send -1, 0 or 1 an element and a bf16 scale a block, as int4(): a fourteenth of the bytes of dense.

        It loses so much that training takes more steps.

        Args:
            levels: 5 sends one of -2..2 in 2.5 bits, a twelfth of the bytes of dense; coded in no more bits than 3.

        Raises:
            ConfigError: levels is not 3 or 5, or another value is out of range.
        """
        if levels not in (3, 5):
            raise ConfigError(f"levels = {levels!r} is not 3 or 5")
        return _few_bits(2 if levels == 3 else 2.5, block, stochastic, coded, seed)


def _few_bits(bits: float, block: int | None, stochastic: bool, coded: bool, seed: int) -> Request:
    """Return the request; coded, larger blocks of more levels lose less at the same bits (results/coded.md)."""
    block = (256 if coded is True else 64) if block is None else block
    return Request(BlockQuantizer(bits, block, stochastic, seed, coded))
