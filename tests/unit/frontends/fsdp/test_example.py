"""examples/fsdp_lm.py, as torchrun starts it on two ranks."""

from __future__ import annotations

import pytest

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

import os
import re
import socket

import torch.distributed as dist

from tests.examples import printed_by
from tests.unit.frontends.ddp.job import run_ranks

pytestmark = pytest.mark.level2


def test_it_learns_from_few_bytes() -> None:
    """As shards, and as replicas."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [each.getsockname()[1] for each in (one, other)]
    first, second = run_ranks(programs, ports, ranks=2)
    for told in first:
        found = re.fullmatch(r"step 10: loss (\S+), (\S+) of uncompressed bytes\n", told)
        assert found is not None, told
        assert float(found[1]) < 4.5, "from 5.5 at first"
        assert float(found[2]) <= 4.3 / 32
    assert second == ["", ""]


def programs(rank: int, ports: list[int]) -> list[str]:
    """Run it in a process that has no process group any more."""
    dist.destroy_process_group()
    return [program(rank, port, *words) for port, words in zip(ports, (("10",), ("10", "2")), strict=True)]


def program(rank: int, port: int, *words: str) -> str:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return printed_by("fsdp_lm.py", *words)
