"""Payloads whose length data decide: ranks tell each other how long theirs are."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import AllGather, Work, variants
from hvd_compress.compressors import FeedbackCompressor, Round
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.payload import Payload

NUMEL, THRESHOLD = 200, 1.0


@dataclass(frozen=True)
class Threshold(FeedbackCompressor):
    """Sends what lies above a threshold: perhaps nothing, perhaps all."""

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        indices = (corrected.abs() > THRESHOLD).nonzero().reshape(-1).to(torch.int32)
        return Payload({"indices": indices, "values": corrected[indices.long()]}, layout.numel)

    def compress_feedback(
        self, gradient: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor, layout: Layout
    ) -> Payload:
        payload = self.compress(torch.add(gradient, residual, out=pending), layout)
        pending[payload["indices"].long()] = 0.0
        return payload

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        native.scatter_add(payload["indices"], payload["values"], out, scale)

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        return (Round(8 * layout.numel, fixed=False),)


def values(rank: int) -> torch.Tensor:
    """Ranks send different numbers of elements: rank 0 none."""
    return rank * torch.randn(NUMEL, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_send_as_much_as_they_have(size: int) -> None:
    def body(engine: InProcessEngine) -> tuple[torch.Tensor, torch.Tensor, int]:
        state = BucketState(Residual(torch.zeros(NUMEL), torch.empty(NUMEL)))
        work = Work(values(engine.rank), Layout.of(NUMEL), 0, 0, 1 / size, state)
        exchange = AllGather(Threshold()).exchange(work, engine.rank, size)
        exchange.encode()
        exchange.communicate(engine)
        assert exchange.decode()
        assert work.pending is not None
        return work.gradient, work.pending, engine.sent_bytes

    ranks = run_ranks(size, body)
    kept = [torch.where(values(rank).abs() > THRESHOLD, values(rank), 0.0) for rank in range(size)]
    for rank, (result, pending, _) in enumerate(ranks):
        assert torch.equal(result, ranks[0][0])
        torch.testing.assert_close(result, torch.stack(kept).mean(0))
        assert torch.equal(pending, values(rank) - kept[rank])
    assert all(sent <= (size - 1) * (8 * NUMEL + 128) for *_, sent in ranks)


def test_no_algorithm_is_forced_where_lengths_differ() -> None:
    """Libraries have a choice for equal lengths alone."""
    can = InProcessWorld(1).engine(0).capabilities
    assert variants(Threshold(), Layout.of(NUMEL), can) == (Path("allgather"),)
