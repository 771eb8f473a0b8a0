"""A payload's bytes on their way out and in."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work
from hvd_compress.collectives.packed import Packer
from hvd_compress.compressors import BlockQuantizer
from hvd_compress.devices.lane import HostLane


class StagedLane(HostLane):
    """As a lane from whose memory an engine cannot take: payloads cross the bus into its buffers."""

    in_place = False

    def __init__(self) -> None:
        self.staged = torch.zeros(4096, dtype=torch.uint8)

    def buffer(self, name: str, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return self.staged.view(dtype)[:numel]


@pytest.mark.parametrize("staged", [True, False])
def test_what_lies_packed_leaves_from_its_own_memory_where_an_engine_takes_it(staged: bool) -> None:
    lane, layout = StagedLane() if staged else HostLane(), Layout.of(200)
    packer = Packer(Work(torch.zeros(200), layout, 4, 2, 1.0, lane=lane))
    payload = BlockQuantizer(4).compress(torch.randn(200), layout)
    assert payload.lies_packed
    sent = packer.pack("sent", payload)
    home = lane.staged if isinstance(lane, StagedLane) else payload["codes"]
    assert sent.untyped_storage().data_ptr() == home.untyped_storage().data_ptr()
    again = packer.unpack(1, sent.clone(), payload)
    assert torch.equal(again["codes"], payload["codes"])
