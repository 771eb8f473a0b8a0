"""Several payloads in one message, as bytes, on their way out and in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.packed import Packer
from hvd_compress.compressors.base import SingleRound
from hvd_compress.errors import PayloadError
from hvd_compress.payload import Payload


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


class ListPacker(Packer):
    """Packs also several payloads into one buffer."""

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
