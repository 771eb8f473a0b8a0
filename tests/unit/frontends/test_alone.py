"""A job with one rank exchanges nothing and compresses nothing, and a warning says so."""

from __future__ import annotations

import pytest

from hvd_compress.compression import Compression
from hvd_compress.compressors import Cast
from hvd_compress.frontends.alone import request_of
from hvd_compress.settings import Settings
from tests.brought import brought
from tests.recorded import Recorded

REQUESTS = {
    "fixed": Compression.int4().by(engine="mpi"),
    "controller": Compression.topk(0.01),
    **dict(brought("ADAPTIVE")),
    "policy": Compression.per_bucket(lambda _: Compression.int4()),
    "momentum": Compression.demo(),
    "dense": Compression.dense(),
    **dict(brought("FIXED")),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_one_rank_is_told_once_that_nothing_is_exchanged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    request = REQUESTS[name]
    found = request_of(request, 1, Settings())
    assert (found.compressor, found.policy, found.engine) == (Cast(), None, request.engine)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (name != "dense")
    assert all("nothing is exchanged" in line and "mpirun, horovodrun or torchrun" in line for line in lines)


@pytest.mark.parametrize("name", REQUESTS)
def test_several_ranks_and_one_that_is_recorded_do_what_was_asked_for(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert request_of(REQUESTS[name], 2, Settings()) is REQUESTS[name]
    recorded = Settings(recordings=(Recorded(),))
    assert request_of(REQUESTS[name], 1, recorded) is REQUESTS[name]
    assert not caplog.records
