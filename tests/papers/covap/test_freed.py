"""What is dropped is free at once."""

from __future__ import annotations

from hvd_compress.compression import Compression
from tests.freed import left_over


def test_nothing_stays_of_a_session() -> None:
    assert left_over(Compression.covap("auto")) == [[], []]
