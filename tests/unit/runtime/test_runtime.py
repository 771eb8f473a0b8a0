"""Ranks in one process, each with a runtime of its own, whose messages take real connections."""

from __future__ import annotations

import itertools
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from hvd_compress.engines import dialing
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.errors import CommunicationError, ConfigError, UsageError
from hvd_compress.runtime import connections
from hvd_compress.runtime.executor import Entry, Executor
from hvd_compress.runtime.negotiator import Negotiator
from hvd_compress.runtime.reduce import scale
from hvd_compress.runtime.request import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    AVERAGE,
    BARRIER,
    BROADCAST,
    MAX,
    MIN,
    PRODUCT,
    REDUCESCATTER,
    SUM,
    Request,
    Response,
)
from hvd_compress.runtime.runtime import Runtime

DTYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
TIMEOUT_S = 20.0
SHORT_S = 3.0
"""Where its end is awaited."""


def entry(verb: str, name: str, tensor: torch.Tensor | None = None, *, into: bool = False, **fields: Any) -> Entry:
    """Return what submits a tensor."""
    dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
    shape = () if tensor is None else tuple(tensor.shape)
    return Entry(Request(verb, name, dtype=dtype, shape=shape, **fields), tensor, tensor if into else None)


def run(runtime: Runtime, *arguments: Any, **fields: Any) -> Any:
    """Submit one tensor and return its result."""
    submitted = entry(*arguments, **fields)
    runtime.submit([submitted])
    return runtime.wait(submitted)


@contextmanager
def runtime_of(engine: Engine, timeout_s: float = TIMEOUT_S) -> Iterator[Runtime]:
    runtime = Runtime(engine, 1 << 20, timeout_s)
    try:
        yield runtime
    finally:
        runtime.close()


def in_ranks(size: int, body: Callable[[Runtime, int], Any]) -> Sequence[Any]:
    """Run `body` on each rank, and let none leave before all are done."""

    def whole(engine: Engine) -> Any:
        with runtime_of(engine) as runtime:
            found = body(runtime, engine.rank)
            run(runtime, BARRIER, "the end")
            return found

    return run_ranks(size, whole)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", [SUM, AVERAGE, MIN, MAX, PRODUCT])
def test_it_reduces(op: str, dtype: torch.dtype, size: int) -> None:
    def body(runtime: Runtime, rank: int) -> Any:
        return run(runtime, ALLREDUCE, "x", (torch.arange(7) + 2 * rank).to(dtype), op=op)

    stacked = torch.stack([(torch.arange(7) + 2 * rank).double() for rank in range(size)])
    expected = {
        SUM: stacked.sum(0),
        AVERAGE: stacked.mean(0),
        MIN: stacked.amin(0),
        MAX: stacked.amax(0),
        PRODUCT: stacked.prod(0),
    }[op]
    for found in in_ranks(size, body):
        torch.testing.assert_close(found, expected.to(dtype))


def test_it_scales_before_and_after() -> None:
    def body(runtime: Runtime, rank: int) -> Any:
        return run(runtime, ALLREDUCE, "x", torch.full((3,), rank + 1.0), op=SUM, prescale=0.5, postscale=4.0)

    assert all(torch.equal(found, torch.full((3,), 6.0)) for found in in_ranks(2, body))


def test_in_place_is_in_place() -> None:
    def body(runtime: Runtime, rank: int) -> Any:
        tensor = torch.full((2, 2), float(rank))
        return run(runtime, ALLREDUCE, "x", tensor, into=True, op=SUM) is tensor and tensor.tolist()

    assert in_ranks(3, body) == [[[3.0, 3.0], [3.0, 3.0]]] * 3


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.complex64], ids=str)
def test_it_moves_any_dtype(dtype: torch.dtype) -> None:
    def of(rank: int) -> torch.Tensor:
        return (torch.arange((rank + 1) * 2).reshape(rank + 1, 2) % 3).to(dtype)

    def body(runtime: Runtime, rank: int) -> Any:
        gathered = run(runtime, ALLGATHER, "gathered", of(rank))
        sent = run(runtime, BROADCAST, "sent", of(1) if rank == 1 else torch.zeros(2, 2, dtype=dtype), root=1)
        return gathered, sent

    for gathered, sent in in_ranks(3, body):
        assert torch.equal(gathered, torch.cat([of(rank) for rank in range(3)]))
        assert torch.equal(sent, of(1))


def test_all_to_all_has_splits_of_its_own() -> None:
    def body(runtime: Runtime, rank: int) -> Any:
        splits = [[0, 2, 1], [1, 0, 0], [2, 2, 0]][rank]
        tensor = torch.arange(sum(splits) * 2.0).reshape(-1, 2) + 100 * rank
        return run(runtime, ALLTOALL, "x", tensor, splits=tuple(splits))

    found = in_ranks(3, body)
    assert [rows.tolist() for _, rows in found] == [[0, 1, 2], [2, 0, 2], [1, 0, 0]]
    assert found[0][0].tolist() == [[100.0, 101.0], [200.0, 201.0], [202.0, 203.0]]
    assert found[2][0].tolist() == [[4.0, 5.0]]


def test_a_reduce_scatter_gives_first_ranks_the_rows_that_are_left() -> None:
    def body(runtime: Runtime, rank: int) -> Any:
        return run(runtime, REDUCESCATTER, "x", torch.arange(8.0).reshape(4, 2) + rank, op=SUM)

    found = in_ranks(3, body)
    whole = 3 * torch.arange(8.0).reshape(4, 2) + 3
    assert [tensor.shape[0] for tensor in found] == [2, 1, 1]
    assert torch.equal(torch.cat(list(found)), whole)


def test_ranks_submit_in_orders_of_their_own() -> None:
    names = [f"tensor {number}" for number in range(40)]

    def body(runtime: Runtime, rank: int) -> Any:
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(rank)).tolist()
        entries = {
            names[each]: entry(ALLREDUCE, names[each], torch.full((each + 1,), float(each)), op=SUM) for each in order
        }
        for submitted in entries.values():
            runtime.submit([submitted])
        return [runtime.wait(entries[name]).tolist() for name in names]

    for found in in_ranks(3, body):
        assert found == [[3.0 * each] * (each + 1) for each in range(len(names))]


def test_names_that_nobody_gave_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends forget numbers alike."""
    monkeypatch.setattr("hvd_compress.runtime.connections.REMEMBERED", 3)

    def body(runtime: Runtime, rank: int) -> Any:
        return [run(runtime, ALLREDUCE, str(step % 5), torch.ones(2), op=SUM).tolist() for step in range(20)]

    assert in_ranks(2, body) == [[[2.0, 2.0]] * 20] * 2


def test_a_process_set_is_matched_by_itself() -> None:
    def body(runtime: Runtime, rank: int) -> Any:
        number = runtime.add_set([0, 2])
        other = runtime.add_set([1])
        mine = other if rank == 1 else number
        found = run(runtime, ALLREDUCE, "x", torch.full((2,), rank + 1.0), op=SUM, process_set_id=mine).tolist()
        everybody = run(runtime, ALLREDUCE, "x", torch.ones(1), op=SUM).tolist()
        if rank != 1:
            sent = run(
                runtime, BROADCAST, "sent", torch.full((1,), float(rank)), root=2, process_set_id=number
            ).tolist()
            assert sent == [2.0]
        runtime.remove_set(number)
        return found, everybody

    assert in_ranks(3, body) == [([4.0, 4.0], [3.0]), ([2.0, 2.0], [3.0]), ([4.0, 4.0], [3.0])]


def test_who_has_joined_takes_part_with_zeros() -> None:
    def body(runtime: Runtime, rank: int) -> Any:
        found = []
        for step in range(rank + 1):
            found.append(run(runtime, ALLREDUCE, f"step {step}", torch.ones(3), op=SUM).tolist()[0])
        last = runtime.join()
        found.append(run(runtime, ALLREDUCE, "after", torch.ones(3), op=AVERAGE).tolist()[0])
        return found, last

    assert in_ranks(3, body) == [([3.0, 1.0], 2), ([3.0, 2.0, 1.0], 2), ([3.0, 2.0, 1.0, 1.0], 2)]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            {"tensor": torch.ones(3)},
            r"rank 0 wants allreduce of float32 \[2\] by Sum, and rank 1 allreduce of float32 \[3\]",
        ),
        ({"tensor": torch.ones(2).int()}, r"rank 1 allreduce of int32 \[2\]"),
        ({"op": MAX}, r"rank 1 allreduce of float32 \[2\] by Max"),
        ({"verb": ALLGATHER, "op": ""}, r"rank 1 allgather of float32 \[2\]"),
        ({"postscale": 0.5}, r"times 1 and 0\.5"),
    ],
)
def test_what_differs_is_an_error_that_names_both_sides(other: dict[str, Any], words: str) -> None:
    def body(runtime: Runtime, rank: int) -> None:
        fields = {"verb": ALLREDUCE, "name": "x", "tensor": torch.ones(2), "op": SUM} | (other if rank else {})
        verb, name, tensor = fields.pop("verb"), fields.pop("name"), fields.pop("tensor")
        with pytest.raises(ConfigError, match=f"'x': .*{words}"):
            run(runtime, verb, name, tensor, **fields)
        assert run(runtime, ALLREDUCE, "x", torch.ones(1), op=SUM).item() == 2

    in_ranks(2, body)


def test_a_name_in_flight_is_refused() -> None:
    def body(runtime: Runtime, rank: int) -> None:
        twice = [entry(ALLREDUCE, "x", torch.ones(1), op=SUM) for _ in range(2)]
        with pytest.raises(ConfigError, match="'x' is in flight already"):
            runtime.submit(twice)
        waits = twice[0]
        if rank == 0:  # rank 1 asks for it only when it has seen the second of rank 0 refused
            runtime.submit([waits])
            with pytest.raises(ConfigError, match="'x' is in flight already"):
                runtime.submit(twice[1:])
        run(runtime, BARRIER, "refused")
        if rank == 1:
            runtime.submit([waits])
        assert torch.equal(runtime.wait(waits), torch.full((1,), 2.0))

    in_ranks(2, body)


def test_who_does_not_come_is_named_and_gets_the_error_when_it_comes() -> None:
    others_know, all_know = threading.Barrier(3), threading.Barrier(3)

    def ranks(engine: Engine) -> str:
        with runtime_of(engine, SHORT_S) as runtime:
            run(runtime, BARRIER, "begin")
            if engine.rank == 1:
                others_know.wait()
            with pytest.raises(CommunicationError) as caught:
                run(runtime, ALLREDUCE, "x", torch.ones(1), op=SUM)
            if engine.rank != 1:
                others_know.wait()
            all_know.wait()
            return str(caught.value)

    with pytest.warns(UserWarning, match=r"allreduce of 'x' has waited \d s for ranks \[1\]"):
        first, late, third = run_ranks(3, ranks)
    assert (
        first
        == third
        == (
            "allreduce of 'x': rank 1 did not submit it within 3 s, as ranks 0, 2 did; where one is only slow, as "
            "while it evaluates alone, raise HVD_COMPRESS_TIMEOUT_S on all ranks"
        )
    )
    assert late == "allreduce of 'x': other ranks gave it up: rank 1 did not submit it within 3 s"


def test_a_rank_that_stops_while_tensors_move_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    move = Executor.run

    def stopped(executor: Executor, response: Response, entries: Any) -> None:
        if "x" in entries and executor.rank == 1:
            over.wait()
        move(executor, response, entries)

    monkeypatch.setattr(Executor, "run", stopped)

    def body(engine: Engine) -> str:
        with runtime_of(engine, SHORT_S) as runtime:
            submitted = entry(ALLREDUCE, "x", torch.ones(1), op=SUM)
            runtime.submit([submitted])
            if engine.rank == 1:
                over.wait()
                return ""
            try:
                with pytest.raises(CommunicationError) as caught:
                    runtime.wait(submitted)
            finally:
                over.set()
            return str(caught.value)

    told, _ = run_ranks(2, body)
    # By its own watch, by what the other one says, or by the collective that the other one has ended.
    words = r"rank [01] has waited 3 s for allreduce of 'x' to end: a rank is stopped, or gone"
    assert re.fullmatch(rf"allreduce of 'x': (.* failed: )?{words}", told)


@pytest.mark.parametrize("leaves", [1, 2])
def test_who_leaves_is_named(leaves: int) -> None:
    both = threading.Barrier(2)

    def body(engine: Engine) -> str:
        with runtime_of(engine) as runtime:
            if engine.rank == leaves:
                return ""
            with pytest.raises(CommunicationError) as caught:
                run(runtime, ALLREDUCE, "x", torch.ones(1), op=SUM)
            both.wait()  # else rank 1 may come when rank 0 has left, too
            return str(caught.value)

    found = [words for words in run_ranks(3, body) if words]
    assert found == [f"allreduce of 'x': rank {leaves} has shut down"] * 2


def test_after_it_is_closed_nothing_is_submitted() -> None:
    def body(engine: Engine) -> None:
        runtime = Runtime(engine, 1 << 20, TIMEOUT_S)
        runtime.close()
        with pytest.raises(UsageError, match="has shut down"):
            run(runtime, BARRIER, "x")

    run_ranks(1, body)


def test_averages_of_whole_numbers_are_exact() -> None:
    values = torch.full((3,), 49)
    scale(values, 1.0, 49)
    assert values.tolist() == [1, 1, 1]
    large = torch.tensor([2**60 + 2, -(2**60) - 3])  # more digits than a double has
    scale(large, 1.0, 2)
    assert large.tolist() == [2**59 + 1, -(2**59) - 1]


def test_who_loses_its_runtime_says_so_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to those who take no part in what fails, and would wait for it later."""
    move = Executor.run

    def failing(executor: Executor, response: Response, entries: Any) -> None:
        if "x" in entries and executor.rank == 1:
            raise ValueError("no memory")
        move(executor, response, entries)

    monkeypatch.setattr(Executor, "run", failing)
    all_have_the_set = threading.Barrier(3)  # the failure may reach a rank before its own part of add_set() has ended

    def body(engine: Engine) -> str:
        with runtime_of(engine) as runtime:
            number = runtime.add_set([1])
            all_have_the_set.wait(TIMEOUT_S)
            name = "x" if engine.rank == 1 else "y"
            with pytest.raises(CommunicationError) as caught:
                run(runtime, ALLREDUCE, name, torch.ones(1), op=SUM, process_set_id=number if engine.rank == 1 else 0)
            return str(caught.value)

    first, second, third = run_ranks(3, body)
    why = "allreduce of float32 [1] by Sum ['x'] failed: no memory"
    assert second == f"allreduce of 'x': {why}"
    assert first == third == f"allreduce of 'y': {why}"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_ranks_call_rank_0_by_ipv4_and_ipv6(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    monkeypatch.setattr(dialing, "_addresses", lambda interface: [address])

    def body(runtime: Runtime, rank: int) -> Any:
        return run(runtime, ALLREDUCE, "x", torch.ones(1), op=SUM).item()

    assert in_ranks(3, body) == [3.0] * 3


def test_a_result_is_no_view_and_has_its_memory_for_itself() -> None:
    def body(runtime: Runtime, rank: int) -> None:
        entries = [entry(ALLREDUCE, name, torch.ones(3), op=SUM) for name in "ab"]
        runtime.submit(entries)
        alone = run(runtime, BROADCAST, "c", torch.ones(3), root=0)
        rows = run(runtime, ALLGATHER, "d", torch.ones(3, 1))
        results = [*map(runtime.wait, entries), alone, rows]
        assert not any(result._is_view() for result in results)
        results[0].add_(1)
        assert results[1].tolist() == [2.0] * 3

    in_ranks(2, body)


def test_what_a_rank_asked_for_before_it_leaves_is_no_trap_for_others() -> None:
    left = threading.Event()

    def body(engine: Engine) -> str:
        with runtime_of(engine) as runtime:
            run(runtime, BARRIER, "begin")
            submitted = entry(ALLREDUCE, "x", torch.ones(1), op=SUM)
            if engine.rank:
                left.wait()
                with pytest.raises(CommunicationError) as caught:
                    run(runtime, ALLREDUCE, "x", torch.ones(1), op=SUM)
                return str(caught.value)
            runtime.submit([submitted])
        left.set()
        assert submitted.error is not None
        return ""

    assert all("rank 0 has shut down" in told for told in run_ranks(3, body)[1:])


def test_nothing_is_kept_of_what_was_moved() -> None:
    def body(engine: Engine) -> int:
        with runtime_of(engine) as runtime:
            for step in range(5):
                run(runtime, ALLREDUCE, str(step), torch.ones(1), op=SUM)
            run(runtime, BARRIER, "the end")
            return len(engine.take_calls())

    assert run_ranks(2, body) == [0, 0]


def fill(runtime: Runtime, process_set_id: int) -> None:
    """Ask for tensors whose names have many bytes, again and again."""
    for step in itertools.count():
        name = f"{step} of {'many ' * 10_000}"
        run(runtime, ALLREDUCE, name, torch.ones(1), op=SUM, process_set_id=process_set_id)


def test_a_rank_that_takes_no_answers_is_an_error_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped, and in no process set of what the others do: its connection fills up."""
    monkeypatch.setattr(connections, "_STUCK_S", 0.5)
    over, stopped = threading.Event(), threading.Event()
    receive = Negotiator._receive

    def stops(negotiator: Negotiator, rank: int, connection: Any) -> bool:
        if negotiator._rank == 2 and stopped.is_set():
            over.wait()
        return receive(negotiator, rank, connection)

    monkeypatch.setattr(Negotiator, "_receive", stops)

    def body(engine: Engine) -> str:
        with runtime_of(engine) as runtime:
            number = runtime.add_set([0, 1])
            if engine.rank == 2:
                stopped.set()
                over.wait()
                return ""
            stopped.wait()
            try:
                with pytest.raises(CommunicationError) as caught:
                    fill(runtime, number)
            finally:
                over.set()
            return str(caught.value)

    first, second, _ = run_ranks(3, body)
    assert all("rank 2 is gone" in each for each in (first, second))
