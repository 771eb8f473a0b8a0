"""Requests and answers, without threads."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress.runtime.connections import RequestCache
from hvd_compress.runtime.coordinator import Coordinator
from hvd_compress.runtime.request import (
    ADD_SET,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    JOIN,
    MAX,
    MIN,
    PRODUCT,
    REMOVE_SET,
    SUM,
    Request,
)

BYTES = 4 * 10


def summed(name: str, numel: int = 1, **fields: object) -> Request:
    """Return what an allreduce asks for."""
    return Request(ALLREDUCE, name, dtype="float32", shape=(numel,), op=SUM, **fields)  # type: ignore[arg-type]


def asked(size: int, *requests: Request, fusion_bytes: int = BYTES) -> Coordinator:
    """Return a coordinator of whom all ranks have asked for these."""
    coordinator = Coordinator(size, fusion_bytes)
    for request in requests:
        for rank in range(size):
            coordinator.submit(rank, request, 0.0)
    return coordinator


def assert_nothing_waits(coordinator: Coordinator) -> None:
    coordinator.expire(1e9, 0.0)
    assert coordinator.take() == []


def names(coordinator: Coordinator) -> list[list[str]]:
    return [[request.name for request in response.requests] for response in coordinator.take()]


@given(st.integers(1, 4), st.integers(0, 2**32), st.lists(st.integers(1, 12), min_size=1, max_size=12))
def test_all_that_is_asked_for_is_answered_once_within_the_bound(size: int, seed: int, numels: list[int]) -> None:
    requests = [summed(str(number), numel) for number, numel in enumerate(numels)]
    left = [(rank, request) for rank in range(size) for request in requests]
    random.Random(seed).shuffle(left)
    coordinator, found = Coordinator(size, BYTES), []
    for rank, request in left:
        coordinator.submit(rank, request, 0.0)
        found += coordinator.take()
    assert sorted(each for response in found for each in response.requests) == sorted(requests)
    assert all(len(r.requests) == 1 or sum(e.shape[0] for e in r.requests) * 4 <= BYTES for r in found)
    assert not any(response.error for response in found)
    assert_nothing_waits(coordinator)


def test_small_ones_that_are_alike_are_fused() -> None:
    other = summed("d")._replace(dtype="float64")
    assert names(asked(2, summed("a", 6), other, summed("b", 3), summed("c", 3))) == [["a", "b"], ["d"], ["c"]]


def test_a_group_is_moved_as_one_when_it_is_whole() -> None:
    group = [summed(f"g{number}", 20, group=("g", 3)) for number in range(3)]
    coordinator = asked(2, *group[:2], summed("alone"))
    assert names(coordinator) == [["alone"]]
    for rank in range(2):
        coordinator.submit(rank, group[2], 0.0)
    assert names(coordinator) == [["g0", "g1", "g2"]]


def test_what_cannot_be_fused_is_not() -> None:
    gathers = [Request(ALLGATHER, name, dtype="float32", shape=(1,)) for name in "ab"]
    assert names(asked(2, *gathers)) == [["a"], ["b"]]


def test_rows_of_all_ranks_are_told() -> None:
    coordinator = Coordinator(3, BYTES)
    for rank in (2, 0, 1):
        coordinator.submit(rank, Request(ALLGATHER, "x", dtype="float32", shape=(rank, 5)), 0.0)
    (response,) = coordinator.take()
    assert response.sizes == (0, 1, 2)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(BROADCAST, "x", dtype="float32", shape=(1,), root=5), "its root, rank 5, is not in the process set"),
        (Request(ALLTOALL, "x", dtype="float32", shape=(3,), splits=(1, 1)), r"splits \[1, 1\].*2 ranks, 3 in all"),
        (Request(ALLGATHER, "x", dtype="float32"), "has no rows"),
        (summed("x", process_set_id=7), "no process set 7"),
    ],
)
def test_what_all_want_wrongly_is_an_error(request_: Request, words: str) -> None:
    answers = asked(2, request_).take()
    assert answers
    for response in answers:
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(response.error)


def test_a_rank_that_is_missing_is_told_of_once_and_then_given_up() -> None:
    coordinator = Coordinator(3, BYTES)
    coordinator.submit(0, summed("x"), 10.0)
    coordinator.submit(2, summed("x"), 11.0)
    assert list(coordinator.overdue(12.0, 3.0)) == []
    assert list(coordinator.overdue(14.0, 3.0)) == [(summed("x"), [1], 4.0)]
    assert list(coordinator.overdue(15.0, 3.0)) == []
    coordinator.expire(16.0, 5.0)
    (given_up,) = coordinator.take()
    assert (given_up.to, given_up.missing) == ((0, 2), True)
    coordinator.submit(1, summed("x"), 17.0)
    (late,) = coordinator.take()
    assert (late.to, late.missing) == ((1,), True)
    assert_nothing_waits(coordinator)


def test_who_waits_in_join_for_a_rank_that_is_gone_hears_of_it() -> None:
    coordinator = Coordinator(3, BYTES)
    coordinator.join(1, 0.0)
    coordinator.leave(2, "is gone")
    (response,) = coordinator.take()
    assert (response.requests[0].verb, response.error, response.to) == (JOIN, "join: rank 2 is gone", (1,))


def test_a_gather_does_not_bear_ranks_that_have_joined() -> None:
    coordinator = Coordinator(2, BYTES)
    coordinator.join(1, 0.0)
    coordinator.submit(0, Request(ALLGATHER, "x", dtype="float32", shape=(1,)), 0.0)
    coordinator.submit(0, Request(BARRIER, "y"), 0.0)
    refused, barrier = coordinator.take()
    assert "rank 1 has joined" in refused.error
    assert (barrier.error, barrier.absent) == ("", (1,))


@given(st.lists(st.sampled_from("abcdefgh"), max_size=60))
def test_both_ends_of_a_connection_number_alike(sent: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hvd_compress.runtime.connections.REMEMBERED", 4)
        here, there = RequestCache(), RequestCache()
        for name in sent:
            said = here.encode(summed(name))
            assert there.decode(said if isinstance(said, int) else list(said)) == summed(name)


def test_a_group_of_which_one_tensor_does_not_fit_is_refused_as_a_whole() -> None:
    coordinator = Coordinator(2, BYTES)
    for rank in range(2):
        for number in range(2):
            coordinator.submit(rank, summed(f"g{number}", 1 + rank * number, group=("g", 2)), 0.0)
    refused = coordinator.take()
    assert [(each.requests[0].name, each.to) for each in refused] == [("g0", (0, 1)), ("g1", (0, 1))]
    assert "another tensor of its group does not fit" in refused[0].error
    assert "rank 1 allreduce of float32 [2]" in refused[1].error


def test_what_a_rank_that_has_left_had_asked_for_is_refused() -> None:
    coordinator = Coordinator(2, BYTES)
    coordinator.submit(1, summed("before"), 0.0)
    coordinator.submit(0, summed("complete"), 0.0)
    coordinator.submit(1, summed("complete"), 0.0)
    coordinator.leave(1, "has shut down")
    coordinator.submit(0, summed("before"), 0.0)
    found = coordinator.take()
    assert {each.requests[0].name for each in found} == {"before", "complete"}
    assert all(each.error.endswith("rank 1 has shut down") for each in found)


def test_what_ranks_asked_for_before_they_joined_comes_first() -> None:
    coordinator = Coordinator(2, BYTES)
    coordinator.submit(0, summed("x"), 0.0)
    coordinator.join(0, 0.0)
    coordinator.join(1, 0.0)
    moved, joined = coordinator.take()
    assert (moved.requests, moved.absent) == ((summed("x"),), (1,))
    assert (joined.requests[0].verb, joined.last) == (JOIN, 1)


def test_who_leaves_while_it_has_joined_takes_part_in_nothing() -> None:
    coordinator = Coordinator(3, BYTES)
    coordinator.join(2, 0.0)
    coordinator.leave(2, "is gone")
    for rank in range(2):
        coordinator.submit(rank, summed("x"), 0.0)
    assert all("rank 2 is gone" in each.error for each in coordinator.take())


def test_tensors_of_a_set_that_is_removed_are_refused() -> None:
    coordinator = asked(2, Request(ADD_SET, "new", shape=(0, 1)))
    (response,) = coordinator.take()
    coordinator.submit(0, summed("x", process_set_id=response.last), 0.0)
    for request_ in (Request(REMOVE_SET, "old", shape=(response.last,)), summed("y", process_set_id=response.last)):
        for rank in range(2):
            coordinator.submit(rank, request_, 0.0)
    *refused, removed = coordinator.take()
    assert [each.error for each in refused] == [
        f"allreduce of {name!r}: process set {response.last} is removed" for name in "xy"
    ]
    assert not removed.error
    coordinator.expire(99.0, 1.0)


def test_one_rank_without_rows_is_an_error() -> None:
    coordinator = Coordinator(2, BYTES)
    for rank, shape in enumerate([(1,), ()]):
        coordinator.submit(rank, Request(ALLGATHER, "x", dtype="float32", shape=shape), 0.0)
    (refused,) = coordinator.take()
    assert "has no rows" in refused.error


def test_a_group_that_does_not_become_whole_is_given_up() -> None:
    group = [summed(f"g{number}", group=("g", 3)) for number in range(2)]
    coordinator = asked(2, *group)
    coordinator.expire(5.0, 5.0)
    assert coordinator.take() == []
    coordinator.expire(6.0, 5.0)
    assert [each.error for each in coordinator.take()] == [
        f"allreduce of 'g{number}': other tensors of its group did not come within 5 s" for number in range(2)
    ]


@pytest.mark.parametrize("op", [MIN, MAX, PRODUCT])
def test_zeros_of_who_has_joined_are_in_no_minimum(op: str) -> None:
    coordinator = Coordinator(2, BYTES)
    coordinator.join(1, 0.0)
    coordinator.submit(0, summed("x")._replace(op=op), 0.0)
    (response,) = coordinator.take()
    assert response.error == f"allreduce of 'x': rank 1 has joined, and its zeros would change a {op}"


def test_errors_do_not_wait_for_what_moves() -> None:
    coordinator = asked(2, summed("moves"))
    coordinator.submit(0, summed("late"), 0.0)
    coordinator.expire(6.0, 5.0)
    (response,) = coordinator.take(errors_alone=True)
    assert (response.requests[0].name, response.silent) == ("late", True)
    assert names(coordinator) == [["moves"]]


def test_who_joins_does_not_wait_without_a_limit() -> None:
    coordinator = Coordinator(3, BYTES)
    coordinator.join(1, 0.0)
    coordinator.submit(0, summed("x"), 4.0)
    coordinator.submit(2, summed("x"), 4.0)
    assert names(coordinator) == [["x"]]
    coordinator.expire(9.0, 5.0)
    assert coordinator.take() == []
    coordinator.expire(9.1, 5.0)
    (response,) = coordinator.take()
    assert response.error.startswith("join: ranks 0, 2 did neither join nor submit anything within 5 s")
    assert (response.to, response.silent) == ((1,), True)


def test_what_a_late_rank_is_missing_of_fails_at_once() -> None:
    """Else the rest of one step would meet names of the next."""
    coordinator = Coordinator(3, BYTES)
    for rank, name, now in ((0, "a", 0.0), (1, "a", 0.0), (0, "b", 3.0), (1, "b", 3.0), (2, "c", 3.0)):
        coordinator.submit(rank, summed(name), now)
    coordinator.expire(6.0, 5.0)
    assert [each.requests[0].name for each in coordinator.take()] == ["a", "b"]
    coordinator.submit(2, summed("b"), 7.0)
    (response,) = coordinator.take()
    assert response.error == "allreduce of 'b': other ranks gave it up: rank 2 did not submit it within 5 s"
    coordinator.join(2, 7.0)  # it will not come for "a"
    assert not coordinator._late
