"""What is dropped is free at once: nothing of a session is part of a circle."""

from __future__ import annotations

import pytest

from hvd_compress.compression import Compression
from tests.freed import left_over

REQUESTS = {
    "auto": Compression.auto(),
    "dense": Compression.dense(),
    "artopk": Compression.topk(0.1).by(collective="artopk"),
    "int4": Compression.int4(),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_nothing_stays_of_a_session(name: str) -> None:
    assert left_over(REQUESTS[name]) == [[], []]
