"""examples/fsdp_lm.py, as torchrun starts it on two ranks."""

from __future__ import annotations

import tests.unit.front.fsdp.supported  # noqa: F401

# isort: split

import io
import os
import re
import runpy
import socket
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch.distributed as dist

from tests.unit.front.ddp.job import run_ranks

EXAMPLE = Path(__file__).parents[4] / "examples" / "fsdp_lm.py"


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


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60


def programs(rank: int, ports: list[int]) -> list[str]:
    """Run it in a process that has no process group any more."""
    dist.destroy_process_group()
    return [program(rank, port, *words) for port, words in zip(ports, (("10",), ("10", "2")), strict=True)]


def program(rank: int, port: int, *words: str) -> str:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = [str(EXAMPLE), *words]
    with redirect_stdout(io.StringIO()) as told:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    return told.getvalue()
