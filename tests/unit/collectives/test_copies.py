"""No copy that is not needed: what a kernel writes is what an engine takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import AllGather, Collective, Work
from hvd_compress.collectives.requantize import Requantize
from hvd_compress.compressors import BlockQuantizer, EFSign, TopK
from hvd_compress.compressors.base import Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.feedback.states import States

LAYOUT = Layout.of(40_000, 24_000)
COPIES = ("aten.copy_", "aten.cat", "aten.clone", "aten._to_copy", "aten.stack")
HEADER_BYTES = 64
"""Of a payload of two tensors."""


class Copied(TorchDispatchMode):
    """Counts the bytes that torch's operations copy."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        result = function(*arguments, **(named or {}))
        if str(function).startswith(COPIES):
            self.nbytes += result.nbytes
        return result


def copied(collective: Collective, compressor: Compressor, world_size: int) -> int:
    """The bytes that are copied on the way from a gradient to what leaves."""
    state = States().bind(LAYOUT, own=compressor.new_state(LAYOUT, torch.device("cpu")))
    work = Work(torch.randn(LAYOUT.numel), LAYOUT, 0, 0, 1 / world_size, state)
    exchange = collective.exchange(work, 0, world_size)
    with Copied() as mode:
        exchange.encode()
    return mode.nbytes


@pytest.mark.parametrize("compressor", [BlockQuantizer(4), BlockQuantizer(8), BlockQuantizer(2)])
def test_codes_are_written_where_they_leave(compressor: Compressor) -> None:
    assert copied(Requantize(compressor, Path("alltoall-allgather")), compressor, 3) <= 2 * HEADER_BYTES
    assert copied(AllGather(compressor), compressor, 3) <= HEADER_BYTES


@pytest.mark.parametrize("layerwise", [False, True])
def test_signs_are_written_where_they_leave(layerwise: bool) -> None:
    compressor = EFSign(layerwise)
    kept = 4 * len(LAYOUT.shapes)  # scales, by which the next step makes the residual
    assert copied(AllGather(compressor), compressor, 3) <= HEADER_BYTES + kept


def test_what_is_selected_is_copied_once() -> None:
    compressor = TopK(0.01)
    assert copied(AllGather(compressor), compressor, 3) <= HEADER_BYTES + 8 * (LAYOUT.numel // 100)
