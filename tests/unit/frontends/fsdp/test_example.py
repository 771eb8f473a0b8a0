"""examples/fsdp_lm.py, as torchrun starts it on two ranks."""

from __future__ import annotations

import pytest

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

import os
import re
import socket
from contextlib import ExitStack

import torch.distributed as dist

from tests.examples import printed_by
from tests.unit.frontends.ddp.job import run_ranks

pytestmark = pytest.mark.level2


WAYS = (("1", "int8"), ("2",), ("1", "differences"))
"""Shards of which parameters travel in few bits, and replicas."""


def test_it_learns_from_few_bytes() -> None:
    with ExitStack() as held:
        servers = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in WAYS]
        ports = [each.getsockname()[1] for each in servers]
    first, second = run_ranks(programs, ports, ranks=2)
    (alone,) = run_ranks(on_one, ports[0], ranks=1)
    assert re.fullmatch(r"step 10: loss \S+, 1.000 of the bytes of what is compressed\n", alone), alone
    shares = []
    for told in first:
        found = re.fullmatch(r"step 10: loss (\S+), (\S+) of the bytes of what is compressed\n", told)
        assert found is not None, told
        assert float(found[1]) < 4.5, "from 5.5 at first"
        shares.append(float(found[2]))
    int8, gradients, differences = shares
    assert gradients <= 4.3 / 32
    assert differences < 3.2 / 32 < int8 < 7.2 / 32
    assert second == ["", "", ""]


def programs(rank: int, ports: list[int]) -> list[str]:
    """Run it in a process that has no process group any more."""
    dist.destroy_process_group()
    return [program(rank, port, "10", *words) for port, words in zip(ports, WAYS, strict=True)]


def on_one(rank: int, port: int) -> str:
    dist.destroy_process_group()
    return program(rank, port, "10", size=1)


def program(rank: int, port: int, *words: str, size: int = 2) -> str:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return printed_by("fsdp_lm.py", *words)
