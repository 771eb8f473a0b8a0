"""Several payloads in one message."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import BlockQuantizer, TopK
from hvd_compress.devices.lane import HostLane
from hvd_compress.errors import PayloadError
from hvd_compress.schemes import Work
from hvd_compress.schemes.packed import Packer, template_of

COMPRESSOR = TopK(0.1)
LAYOUTS = Layout.of(200), Layout.of(31)
TEMPLATES = [template_of(COMPRESSOR, layout) for layout in LAYOUTS]


@pytest.fixture
def packer() -> Packer:
    return Packer(Work(torch.zeros(231), Layout.of(200, 31), 4, 2, 1.0))


@pytest.fixture
def packed(packer: Packer) -> torch.Tensor:
    return packer.pack_all("sent", [COMPRESSOR.compress(torch.randn(one.numel), one) for one in LAYOUTS]).clone()


def test_they_come_back_in_their_order(packer: Packer, packed: torch.Tensor) -> None:
    assert packed.numel() == sum(template.packed_bytes for template in TEMPLATES)
    assert [payload.numel for payload in packer.unpack_all(1, packed, TEMPLATES)] == [200, 31]


class StagedLane(HostLane):
    """As a lane from whose memory an engine cannot take: payloads cross the bus into its buffers."""

    in_place = False

    def __init__(self) -> None:
        self.staged = torch.zeros(4096, dtype=torch.uint8)

    def buffer(self, name: str, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return self.staged.view(dtype)[:numel]


@pytest.mark.parametrize("staged", [True, False])
def test_what_lies_packed_leaves_from_its_own_memory_where_an_engine_takes_it(staged: bool) -> None:
    lane, layout = StagedLane() if staged else HostLane(), LAYOUTS[0]
    packer = Packer(Work(torch.zeros(200), layout, 4, 2, 1.0, lane=lane))
    payload = BlockQuantizer(4).compress(torch.randn(200), layout)
    assert payload.lies_packed
    sent = packer.pack("sent", payload)
    home = lane.staged if isinstance(lane, StagedLane) else payload["codes"]
    assert sent.untyped_storage().data_ptr() == home.untyped_storage().data_ptr()
    again = packer.unpack_all(1, sent.clone(), [template_of(BlockQuantizer(4), layout)])[0]
    assert torch.equal(again["codes"], payload["codes"])


@pytest.mark.parametrize("extra", [-1, 1])
def test_more_or_fewer_bytes_than_they_take(packer: Packer, packed: torch.Tensor, extra: int) -> None:
    arrived, expected = torch.zeros(packed.numel() + extra, dtype=torch.uint8), packed.numel()
    with pytest.raises(PayloadError, match=f"{expected + extra} bytes arrived from rank 3, expected {expected}"):
        packer.unpack_all(3, arrived, TEMPLATES)
