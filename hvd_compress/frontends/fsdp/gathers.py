"""What a request means for the parameters that FSDP gathers, and which have no meaning there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hvd_compress.compressors import BlockQuantizer, Cast
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.frontends.asked import check_request
from hvd_compress.policies.auto.policy import Auto as AutoSettings
from hvd_compress.request.request import Request

CARRIED = "int8(), int4(), bf16(), dense() or auto(), or differences(int4())"
_BITS = (8, 4)


@dataclass(frozen=True)
class Gathers:
    """How parameters travel when FSDP gathers them.

    Attributes:
        compressor: rounds them, to nearest, so that each gather of the same weights gives the same; None leaves them
            as FSDP sends them.
        of_differences: whether what is rounded is the difference from what was gathered last.
        is_searched: whether one of SEARCHED is chosen by real steps.
    """

    compressor: BlockQuantizer | Cast | None = None
    of_differences: bool = False
    is_searched: bool = False

    @property
    def words(self) -> str:
        """What ranks compare, and what is shown."""
        if self.is_searched:
            return "whatever makes steps shortest"
        if self.compressor is None:
            return "exactly"
        if isinstance(self.compressor, Cast):
            return "bf16"
        form = f"int{self.compressor.bits} in blocks of {self.compressor.block}"
        return f"differences as {form}" if self.of_differences else form


def differences(compression: Request) -> Gathers:
    """Gather few bits of what has changed in the parameters since they were gathered last: `parameters=` of compress().

    SDP4Bit (Jia et al. 2024, Section 3.1) shows that 4 bits of weight differences train as 32. Each rank keeps a copy
    of the whole model as it was gathered last, in the dtype of the gathers: 4 bytes an element, or 2 with
    MixedPrecisionPolicy(param_dtype=torch.bfloat16). What rounding loses stays in the next difference, so nothing
    accumulates. A backward pass takes the parameters from the copy, and gathers nothing.

    Args:
        compression: Compression.int4() or int8().

    Raises:
        ConfigError: this is no compression.
        UnsupportedError: one that differences do not take.
    """
    found = for_gathers(compression)
    if not isinstance(found.compressor, BlockQuantizer):
        raise UnsupportedError("differences() takes few bits: pass int4() or int8(); bf16() and dense() go without it")
    return Gathers(found.compressor, of_differences=True)


def for_gathers(asked: Any) -> Gathers:
    """Return what `parameters=` of compress() asks for.

    Raises:
        ConfigError: this is no compression.
        UnsupportedError: parameters do not travel so; the message says what to take.
    """
    if isinstance(asked, Gathers):
        return asked
    check_request(asked)
    compressor, policy = asked.compressor, asked.policy
    if isinstance(policy, AutoSettings) and policy == AutoSettings():
        return Gathers(is_searched=True)
    if policy is not None:
        raise UnsupportedError(f"parameters= takes no policy, such as {type(policy).__name__}: pass {CARRIED}")
    if any(getattr(asked, word) != "auto" for word in ("collective", "algorithm", "engine", "device")):
        raise ConfigError("FSDP gathers parameters in one way, over its own group: leave by() out of parameters=")
    if isinstance(compressor, Cast) and compressor.dtype in (None, torch.bfloat16):
        return Gathers(compressor if compressor.dtype else None)
    if not isinstance(compressor, BlockQuantizer) or compressor.bits not in _BITS:
        raise UnsupportedError(f"parameters= does not take {compressor}: pass {CARRIED}")
    if compressor.coded:
        raise UnsupportedError("gathers have one length on all ranks, and codes have not: leave coded=True out")
    if compressor.stochastic:
        raise UnsupportedError(
            "parameters are rounded to nearest, so that both passes of a step see the same: leave stochastic=True out"
        )
    return Gathers(compressor)


SEARCHED = (Gathers(), Gathers(Cast(torch.bfloat16)), Gathers(BlockQuantizer(8)))
"""What auto() chooses from: what loses more, later. None takes memory, as differences() does."""
