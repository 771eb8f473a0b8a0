"""Payloads as the bytes that an engine moves, on their way out and in."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_compress.collectives.base import Work
from hvd_compress.compressors.base import Compressor, Round
from hvd_compress.engines.base import Engine
from hvd_compress.engines.layout import AtMost, Lengths
from hvd_compress.errors import PayloadError, located
from hvd_compress.payload import Payload


def check_size(compressor: Compressor, round_: Round, payload: Payload) -> None:
    """Raise PayloadError where a payload has not the fixed size that the other ranks expect."""
    if round_.fixed and payload.wire_bytes != round_.nbytes:
        raise PayloadError(
            f"{compressor} sends {payload.wire_bytes} bytes, and its wire() says {round_.nbytes}: say "
            "fixed=False where data decide"
        )


class Packer:
    """Packs payloads of one bucket in one step into buffers of its lane, and unpacks those of other ranks.

    What was packed is kept until the step is over: a stream may still read it.

    Args:
        fixed: whether all ranks know how long payloads are.
    """

    def __init__(self, work: Work, fixed: bool = True) -> None:
        self._work, self._fixed = work, fixed
        self._exact = True  # nothing follows a payload in the memory that it arrived in
        self._kept: list[Payload] = []

    def pack(self, name: str, payload: Payload) -> torch.Tensor:
        """Return the bytes of a payload, in its own memory or the lane's buffer `name`; call it as lane.post()."""
        work = self._work
        self._kept.append(payload)
        in_place = payload.lies_packed and work.lane.in_place
        packed = None if in_place else work.lane.buffer(name, payload.packed_bytes, torch.uint8)
        return payload.pack(work.step, work.bucket, packed, work.lane.place)

    def lengths(self, engine: Engine, sent: Sequence[int], received: Sequence[int]) -> Lengths:
        """Return what to say to an engine of the bytes to and from each rank: these, or at most these."""
        if self._fixed:
            return received
        self._exact = not engine.takes_shorter
        return AtMost(sent, received)

    def inbox(self, name: str, lengths: Lengths) -> torch.Tensor | None:
        """Return the lane's memory for what an all-gather of these lengths brings; None where data decide them."""
        return self._work.lane.inbox(name, sum(lengths), torch.uint8) if isinstance(lengths, Sequence) else None

    def unpack(self, rank: int, packed: torch.Tensor, template: Payload) -> Payload:
        """Return what a rank sent; call it as lane.fetch().

        Args:
            template: a payload of the same names, dtypes and number of elements.

        Raises:
            PayloadError: the bytes are no such payload of this step and bucket; it names the rank.
        """
        work = self._work
        with located(f"payload from rank {rank}"):
            return template.unpack(work.lane.fetch(packed), work.step, work.bucket, packed, self._exact)
