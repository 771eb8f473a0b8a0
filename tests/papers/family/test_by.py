"""What `.by()` cannot do for compressors whose payloads differ in length between ranks."""

from __future__ import annotations

import pytest

from hvd_compress.buckets.layout import Layout
from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.errors import ConfigError
from hvd_compress.policies import decide
from hvd_compress.request.request import Request

CAN = InProcessWorld(2).engine(0).capabilities


@pytest.mark.parametrize(
    "request_",
    [Compression.dgc(0.1), Compression.sidco(0.1), Compression.threshold(0.1), Compression.oktopk(0.1)],
    ids=str,
)
def test_an_algorithm_of_an_all_gather_takes_payloads_of_one_length(request_: Request) -> None:
    with pytest.raises(
        ConfigError, match=r"algorithm='ring' names an all-gather of equal lengths, and those of .* differ"
    ):
        decide(request_.by(collective="allgather", algorithm="ring"), Layout.of(1000), 2, CAN)
    assert decide(request_.by(collective="allgather"), Layout.of(1000), 2, CAN).path.algorithm == "auto"
