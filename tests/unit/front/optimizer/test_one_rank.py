"""A job with one rank exchanges nothing, and is told so."""

from __future__ import annotations

import pytest

from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.request.request import Request
from tests.harness import SHAPES, backward, make_optimizer, make_parameters

REQUESTS = {
    "fixed": Compression.int4(),
    "controller": Compression.topk(0.01),
    "ratio": Compression.flexible(),
    "policy": Compression.covap(),
    "dense": Compression.dense(),
}


@pytest.mark.parametrize(
    ("name", "ranks", "told"),
    [("fixed", 1, 1), ("controller", 1, 1), ("ratio", 1, 1), ("policy", 1, 1), ("dense", 1, 0), ("fixed", 2, 0)],
)
def test_one_rank_is_told_once_that_nothing_is_exchanged(
    name: str, ranks: int, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    request: Request = REQUESTS[name]

    def body(engine: InProcessEngine) -> list[str]:
        parameters = make_parameters(SHAPES)
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size)
        for step in range(3):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        return [decision.reason for decision in optimizer.decisions.values()]

    reasons = run_ranks(ranks, body)[0]
    lines = [record.getMessage() for record in caplog.records if "one rank" in record.getMessage()]
    assert len(lines) == told
    assert all("nothing is exchanged" in line and "mpirun, horovodrun or torchrun" in line for line in lines)
    assert not any("1 ranks" in reason for reason in reasons)
