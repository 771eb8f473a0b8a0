"""The engine over sockets: as any other, and what waits in it ends when a rank is gone, or by an order."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.engines.sockets import Meeting, SocketEngine
from hvd_compress.errors import CommunicationError
from tests.unit.engines.promises import PROMISES

T = TypeVar("T")
TIMEOUT_S = 30.0


def on_sockets(ranks: int, body: Callable[[SocketEngine], T], timeout_s: float = TIMEOUT_S) -> list[T]:
    """Run `body` in a thread a rank."""

    def of_rank(bootstrap: InProcessEngine) -> T:
        meeting = Meeting.of(bootstrap)
        try:
            engine = SocketEngine(meeting, timeout_s)
            try:
                return body(engine)
            finally:
                engine.close()
        finally:
            meeting.listener.close()

    return run_ranks(ranks, of_rank)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_promise(promise: Callable[[SocketEngine], None], ranks: int) -> None:
    on_sockets(ranks, promise)


def test_messages_larger_than_buffers_cross() -> None:
    """Both directions at once, of every pair, in all dtypes' bytes."""

    def body(engine: SocketEngine) -> None:
        numel = 3_000_001
        mine = torch.full((numel,), float(engine.rank + 1))
        engine.allreduce(mine)
        assert torch.equal(mine, torch.full((numel,), 6.0))
        parts = engine.alltoall([torch.full((1_000_000 + rank,), engine.rank, dtype=torch.uint8) for rank in range(3)])
        assert [(each.numel(), int(each.min()), int(each.max())) for each in parts] == [
            (1_000_000 + engine.rank, rank, rank) for rank in range(3)
        ]
        told = torch.arange(numel) if engine.rank == 1 else torch.zeros(numel, dtype=torch.int64)
        engine.broadcast(told, 1)
        assert torch.equal(told, torch.arange(numel))

    on_sockets(3, body)


def test_a_rank_that_is_gone_is_named_at_once() -> None:
    """By those that wait for it, and then by those that wait for these."""

    def body(engine: SocketEngine) -> str:
        tensor = torch.ones(100_000)
        engine.allreduce(tensor)
        if engine.rank == 2:
            return ""
        with pytest.raises(CommunicationError) as caught:
            engine.allreduce(tensor)
        with pytest.raises(CommunicationError):
            engine.allreduce(tensor)
        return str(caught.value)

    start_s = time.monotonic()
    words = on_sockets(3, body, timeout_s=600.0)
    assert time.monotonic() - start_s < 300.0
    assert "rank 2 has closed its connection: it has ended, or given up an exchange" in words
    assert all("has closed its connection" in each for each in words[:2])


def until_it_fails(engine: Engine) -> None:
    """One may end on a rank that needs nothing of the others any more."""
    for _ in range(100):
        engine.allreduce(torch.ones(1))


@pytest.mark.parametrize("which", ["itself", "a part", "a twin"])
def test_abort_wakes_what_waits(which: str) -> None:
    """Here, in what was split from it, and on the ranks that this one exchanges with."""

    def body(engine: SocketEngine) -> str:
        whole = engine
        part = engine.split(0) if which == "a part" else None
        twin = engine.twin() if which == "a twin" else None
        used = part or twin or whole
        if engine.rank == 1:
            threading.Timer(0.2, whole.abort, ["the job has changed"]).start()
        if engine.rank == 2:
            time.sleep(0.4)
        with pytest.raises(CommunicationError) as caught:
            until_it_fails(used)
        with pytest.raises(CommunicationError):
            whole.split(0)
        return str(caught.value)

    words = on_sockets(3, body)
    assert words[1] == "the job has changed"
    assert all("has closed its connection" in words[rank] for rank in (0, 2)), words


def test_ranks_that_exchange_other_lengths_are_told() -> None:
    def body(engine: SocketEngine) -> str:
        with pytest.raises(CommunicationError) as caught:
            engine.allgather(torch.ones(3 + engine.rank), [3 + engine.rank] * 2)
        return str(caught.value)

    words = on_sockets(2, body)
    assert words[1] == "rank 0 has sent 12 bytes where 16 were expected: ranks exchange different tensors"
    assert words[0] == "rank 1 has sent 16 bytes where 12 were expected: ranks exchange different tensors"


def test_a_rank_that_is_stopped_is_named() -> None:
    done = threading.Event()

    def body(engine: SocketEngine) -> str:
        if engine.rank == 1:
            done.wait(TIMEOUT_S)
            return ""
        with pytest.raises(CommunicationError) as caught:
            engine.allreduce(torch.ones(3))
        done.set()
        return str(caught.value)

    assert on_sockets(2, body, timeout_s=0.5)[0] == "nothing has come from rank 1 for 0.5 s"


def test_parts_and_twins_do_not_mix() -> None:
    """Ranks that are in no part count as the others do."""

    def body(engine: SocketEngine) -> None:
        low = engine.split(0 if engine.rank < 2 else None)
        again = engine.split(engine.rank % 2)
        twin = engine.twin()
        assert again is not None
        for each, ranks in ((low, (0, 1)), (again, (engine.rank % 2, engine.rank % 2 + 2)), (twin, range(4))):
            if each is not None:
                mine = torch.tensor([10.0**engine.rank])
                each.allreduce(mine)
                assert mine.item() == sum(10.0**rank for rank in ranks if rank < 4)

    on_sockets(4, body)


def test_what_has_ended_gives_its_sockets_back_at_once() -> None:
    """Also where something refers to it: of thousands of meetings no descriptor may wait for the garbage collector."""
    kept: list[Engine] = []

    def body(engine: SocketEngine) -> None:
        part = engine.split(0)
        assert part is not None
        kept.extend([engine, part])
        if engine.rank == 0:
            engine.abort("enough")
        for each in (engine, part):
            with pytest.raises(CommunicationError):
                until_it_fails(each)

    before = len(os.listdir("/proc/self/fd"))
    on_sockets(3, body)
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(kept) == 6
