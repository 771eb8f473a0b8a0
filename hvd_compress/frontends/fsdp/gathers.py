"""What a request means for the parameters that FSDP gathers, and which have no meaning there."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from hvd_compress.compressors import Cast
from hvd_compress.compressors.encodings import AsDtype, Encoding, InBlocks
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.frontends.asked import check_request
from hvd_compress.native import BlockFormat
from hvd_compress.policies import Auto
from hvd_compress.request.request import Request

CARRIED = "int8(), int4(), bf16(), dense() or auto(), or hvd_compress.fsdp.differences(int4())"
_ENCODINGS = (AsDtype(torch.bfloat16), *(InBlocks(BlockFormat(bits, 64 << n)) for bits in (8, 4) for n in range(5)))
"""Of those that there are, the ones with bits and blocks that weights of a model can do with."""


@dataclass(frozen=True)
class Gathers:
    """How parameters travel when FSDP gathers them.

    Attributes:
        encoding: rounds them, to nearest, so that each gather of the same weights gives the same; None leaves them as
            FSDP sends them.
        of_differences: whether what is rounded is the difference from what was gathered last.
        is_searched: whether one of SEARCHED is chosen by real steps.
    """

    encoding: Encoding | None = None
    of_differences: bool = False
    is_searched: bool = False

    @property
    def words(self) -> str:
        """What ranks compare, and what is shown."""
        if self.is_searched:
            return "whatever makes steps shortest"
        if self.encoding is None:
            return "exactly"
        return f"differences as {self.encoding.words}" if self.of_differences else self.encoding.words


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
    check_request(compression)
    encoding = compression.compressor.encoding
    if encoding not in _ENCODINGS or not encoding.takes_differences:
        raise UnsupportedError(f"differences() takes int4() or int8(), not {compression.compressor}: pass one of them")
    return Gathers(for_gathers(compression).encoding, of_differences=True)


def for_gathers(asked: Any) -> Gathers:
    """Return what `parameters=` of compress() asks for.

    Raises:
        ConfigError: this is no compression.
        UnsupportedError: parameters do not travel so; the message says what to take.
    """
    if isinstance(asked, Gathers):
        return asked
    if asked is differences:
        raise ConfigError("differences is a function: call it, as in differences(Compression.int4())")
    if inspect.isfunction(asked):
        check_request(asked)
    if not isinstance(asked, Request):
        raise ConfigError(f"parameters={asked!r} is no compression: pass {CARRIED}, the others of Compression")
    compressor, policy = asked.compressor, asked.policy
    if not asked.feedback.keeps_all:
        raise ConfigError(
            "with_feedback() schedules error feedback, and gathers have none: leave it out of parameters="
        )
    if any(getattr(asked, word) != "auto" for word in ("collective", "algorithm", "engine", "device")):
        raise ConfigError("FSDP gathers parameters in one way, over its own group: leave by() out of parameters=")
    if policy == Auto():
        return Gathers(is_searched=True)
    if policy is not None:
        raise UnsupportedError(f"parameters= takes no policy, such as {type(policy).__name__}: pass {CARRIED}")
    if compressor == Cast():
        return Gathers()
    if getattr(compressor, "coded", False):
        raise UnsupportedError("gathers have one length on all ranks, and codes have not: leave coded=True out")
    if getattr(compressor, "stochastic", False):
        raise UnsupportedError(
            "parameters are rounded to nearest, so that both passes of a step see the same: leave stochastic=True out"
        )
    if compressor.encoding not in _ENCODINGS:
        raise UnsupportedError(f"parameters= does not take {compressor}: pass {CARRIED}")
    return Gathers(compressor.encoding)


SEARCHED = (Gathers(), Gathers(AsDtype(torch.bfloat16)), Gathers(InBlocks(BlockFormat(8))))
"""What auto() chooses from: what loses more, later. None takes memory, as differences() does."""
