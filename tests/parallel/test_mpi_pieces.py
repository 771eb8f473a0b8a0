"""Ranks that share a host sum in pieces that stay in the cache; others in one call."""

from __future__ import annotations

import pytest
import torch

from tests.parallel.training import ENGINES

pytestmark = pytest.mark.skipif("mpi" not in ENGINES, reason="needs mpirun")


@pytest.mark.parametrize("algorithm", ["auto", "ring", "rabenseifner"])
def test_pieces_are_summed_on_one_host_alone(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hvd_compress.engines import mpi

    monkeypatch.setattr(mpi, "PIECE_BYTES", 28)
    engine = mpi.MpiEngine()
    assert engine.piece_bytes is None, "nobody has asked where ranks are"
    engine.locate()
    assert engine.piece_bytes == 28
    for dtype in (torch.float32, torch.float64, torch.uint8):
        tensor = torch.arange(30).to(dtype)
        engine.allreduce(tensor, algorithm)
        assert torch.equal(tensor, torch.arange(30).to(dtype) * engine.world_size)
    assert [call.tensor_bytes for call in engine.take_calls()] == [120, 240, 30], "a collective counts once"
    monkeypatch.setattr(engine, "_hosts", tuple(range(engine.world_size)))
    assert engine.piece_bytes is None
    engine.close()
