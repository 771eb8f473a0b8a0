"""Payloads as the bytes that an engine moves, on their way out and in."""

from __future__ import annotations

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Work
from hvd_compress.compressors.base import Compressor, Round
from hvd_compress.errors import PayloadError, located
from hvd_compress.payload import Payload


def check_size(compressor: Compressor, round_: Round, payload: Payload) -> None:
    """Raise PayloadError where a payload has not the fixed size that the other ranks expect."""
    if round_.fixed and payload.wire_bytes != round_.nbytes:
        raise PayloadError(
            f"{compressor} sends {payload.wire_bytes} bytes, and its wire() says {round_.nbytes}: say "
            "fixed=False where data decide"
        )


def is_fixed(compressor: Compressor, layout: Layout) -> bool:
    """Whether all ranks know how much they get."""
    return all(round_.fixed for round_ in compressor.wire(layout))


class Packer:
    """Packs payloads of one bucket in one step into buffers of its lane, and unpacks those of other ranks.

    What was packed is kept until the step is over: a stream may still read it.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._kept: list[Payload] = []

    def pack(self, name: str, payload: Payload) -> torch.Tensor:
        """Return the bytes of a payload, in its own memory or the lane's buffer `name`; call it as lane.post()."""
        work = self._work
        self._kept.append(payload)
        in_place = payload.lies_packed and work.lane.in_place
        packed = None if in_place else work.lane.buffer(name, payload.packed_bytes, torch.uint8)
        return payload.pack(work.step, work.bucket, packed, work.lane.place)

    def unpack(self, rank: int, packed: torch.Tensor, template: Payload, exact: bool = True) -> Payload:
        """Return what a rank sent; call it as lane.fetch().

        Args:
            template: a payload of the same names, dtypes and number of elements.
            exact: whether nothing may follow it.

        Raises:
            PayloadError: the bytes are no such payload of this step and bucket; it names the rank.
        """
        work = self._work
        with located(f"payload from rank {rank}"):
            return template.unpack(work.lane.fetch(packed), work.step, work.bucket, packed, exact)
