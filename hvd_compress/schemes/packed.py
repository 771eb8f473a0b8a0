"""Payloads as the bytes that an engine moves, on their way out and in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Compressor, Round, SingleRound
from hvd_compress.errors import PayloadError, located
from hvd_compress.payload import Payload
from hvd_compress.schemes.base import Work


def check_size(compressor: Compressor, round_: Round, payload: Payload) -> None:
    """Raise PayloadError where a payload has not the fixed size that the other ranks expect."""
    if round_.fixed and payload.wire_bytes != round_.nbytes:
        raise PayloadError(
            f"{compressor} sends {payload.wire_bytes} bytes, and its wire() says {round_.nbytes}: say "
            "fixed=False where data decide"
        )


@dataclass(frozen=True)
class Template:
    """What is known of a payload before it arrives: names, dtypes and number of elements, and the bytes it comes in."""

    payload: Payload
    packed_bytes: int


@lru_cache(maxsize=4096)
def template_of(compressor: SingleRound, layout: Layout) -> Template:
    """Return that of a compressor whose payloads have one size. It compresses zeros, once for each layout."""
    sent = compressor.compress(torch.zeros(layout.numel, dtype=torch.float32, device="cpu"), layout)
    return Template(
        Payload({name: tensor[:0] for name, tensor in sent.tensors.items()}, layout.numel), sent.packed_bytes
    )


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

    def pack_all(self, name: str, payloads: Sequence[Payload]) -> torch.Tensor:
        """Return the bytes of several payloads, one behind the other; as pack()."""
        work = self._work
        self._kept += payloads
        sizes = [payload.packed_bytes for payload in payloads]
        packed = work.lane.buffer(name, sum(sizes), torch.uint8)
        for payload, part in zip(payloads, torch.split(packed, sizes), strict=True):
            payload.pack(work.step, work.bucket, part, work.lane.place)
        return packed

    def unpack_all(self, rank: int, packed: torch.Tensor, templates: Sequence[Template]) -> list[Payload]:
        """Return the payloads that a rank has sent one behind the other; as unpack()."""
        sizes = [template.packed_bytes for template in templates]
        if packed.numel() != sum(sizes):
            raise PayloadError(f"{packed.numel()} bytes arrived from rank {rank}, expected {sum(sizes)}")
        parts = zip(torch.split(packed, sizes), templates, strict=True)
        return [self.unpack(rank, part, template.payload) for part, template in parts]

    def unpack(self, rank: int, packed: torch.Tensor, template: Payload) -> Payload:
        """Return what a rank sent; call it as lane.fetch().

        Args:
            template: a payload of the same names, dtypes and number of elements.

        Raises:
            PayloadError: the bytes are no such payload of this step and bucket; it names the rank.
        """
        work = self._work
        with located(f"payload from rank {rank}"):
            return template.unpack(work.lane.fetch(packed), work.step, work.bucket, header=packed)
