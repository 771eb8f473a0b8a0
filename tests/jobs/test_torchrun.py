"""Each compressor of the conformance suite, in a job of two processes that torchrun has started."""

from __future__ import annotations

import re

import pytest

from tests.harness import chosen
from tests.jobs.launch import launch

RANKS = 2


@pytest.mark.level1
def test_every_compressor_trains_and_ranks_stay_equal() -> None:
    job = launch("torchrun", "ddp_all", ranks=RANKS)
    assert job.status == 0, job.output
    assert job.survivors == []
    trained = re.findall(r"^all ranks have trained with (\S+)$", job.output, re.MULTILINE)
    assert trained == list(chosen())
