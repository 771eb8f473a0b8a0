"""Several payloads in one message."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work
from hvd_compress.compressors import TopK
from hvd_compress.errors import PayloadError
from hvd_compress.papers.espresso.tree.packed import ListPacker, template_of

COMPRESSOR = TopK(0.1)
LAYOUTS = Layout.of(200), Layout.of(31)
TEMPLATES = [template_of(COMPRESSOR, layout) for layout in LAYOUTS]


@pytest.fixture
def packer() -> ListPacker:
    return ListPacker(Work(torch.zeros(231), Layout.of(200, 31), 4, 2, 1.0))


@pytest.fixture
def packed(packer: ListPacker) -> torch.Tensor:
    return packer.pack_all("sent", [COMPRESSOR.compress(torch.randn(one.numel), one) for one in LAYOUTS]).clone()


def test_they_come_back_in_their_order(packer: ListPacker, packed: torch.Tensor) -> None:
    assert packed.numel() == sum(template.packed_bytes for template in TEMPLATES)
    assert [payload.numel for payload in packer.unpack_all(1, packed, TEMPLATES)] == [200, 31]


@pytest.mark.parametrize("extra", [-1, 1])
def test_more_or_fewer_bytes_than_they_take(packer: ListPacker, packed: torch.Tensor, extra: int) -> None:
    arrived, expected = torch.zeros(packed.numel() + extra, dtype=torch.uint8), packed.numel()
    with pytest.raises(PayloadError, match=f"{expected + extra} bytes arrived from rank 3, expected {expected}"):
        packer.unpack_all(3, arrived, TEMPLATES)
