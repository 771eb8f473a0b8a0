"""Advice on bucket_cap_mb, in real jobs."""

from __future__ import annotations

import logging

import pytest
import torch.distributed as dist

from hvd_compress.buckets.cutting import BUCKET_S
from hvd_compress.engines import base
from hvd_compress.frontends.ddp import hook
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import compressed, make_model, optimizer_of, train

STEPS = 12
SHORT_S, LONG_S = BUCKET_S, 64 * BUCKET_S


@pytest.mark.parametrize(
    ("hosts", "wait_s", "told"),
    [
        ((0, 1), (LONG_S, LONG_S), 1),
        ((0, 1), (LONG_S, SHORT_S), 0),  # rank 0 waits for the other one, and not for the network
        ((0, 1), (SHORT_S, LONG_S), 0),
        ((0, 0), (LONG_S, LONG_S), 0),
    ],
)
def test_more_buckets_are_advised_where_all_ranks_wait(
    hosts: tuple[int, int], wait_s: tuple[float, float], told: int
) -> None:
    messages = run_ranks(advised, hosts, wait_s, ranks=2, HVD_COMPRESS_ADAPT="0")
    assert messages[1] == []
    assert len(messages[0]) == told, messages
    assert all("waits 128 ms" in message and "makes 3" in message for message in messages[0]), messages


def advised(rank: int, hosts: tuple[int, int], wait_s: tuple[float, float]) -> list[str]:
    """Return what is told to a program whose steps wait so long."""
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("hvd_compress").addHandler(handler)
    base.host_identity = lambda: f"host {hosts[dist.get_rank()]}"
    add = hook.Watch.add
    hook.Watch.add = lambda watch, _: add(watch, wait_s[rank])
    hook.number_of_buckets = lambda waited_s, nbytes: 8 if waited_s >= LONG_S else 1
    ddp = compressed(make_model(), "int4", bucket_cap_mb=25)
    train(ddp, optimizer_of(ddp), rank, range(STEPS))
    return [message for message in told if "bucket_cap_mb" in message]
