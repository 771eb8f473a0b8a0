"""A coordinator and members, each with real connections, in one process."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from hvd_compress.engines.dialing import cut
from hvd_compress.engines.sockets import SocketEngine
from hvd_compress.errors import CommunicationError, JobEndedError
from hvd_compress.membership.coordinator import Coordinator
from hvd_compress.membership.member import Member
from hvd_compress.membership.roster import Roster

TIMEOUT_S = 60.0


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    made = Coordinator(Roster(3, 2, 8, late_s=1.0, patience_s=0.5))
    yield made
    made.close()


def alone(engine: SocketEngine) -> float:
    found = torch.tensor([10.0**engine.rank])
    engine.allreduce(found)
    return found.item()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def met(members: list[Member]) -> list[SocketEngine]:
    """Let these meet, each in a thread of its own; return their engines in the order of the list."""
    with ThreadPoolExecutor(len(members)) as threads:
        return list(threads.map(lambda each: SocketEngine(each.meet(), TIMEOUT_S), members))


def leave(*members: Member) -> None:
    """As processes do that end."""
    for each in members:
        cut(each._connection)
        each._listener.close()


def test_ranks_end_and_come(coordinator: Coordinator) -> None:
    members = [Member(coordinator.endpoint, TIMEOUT_S) for _ in range(3)]
    with ExitStack() as ends:
        engines = met(members)
        ranks = [engine.rank for engine in engines]
        assert sorted(ranks) == [0, 1, 2]
        with ThreadPoolExecutor(3) as threads:
            assert list(threads.map(alone, engines)) == [111.0] * 3
        gone = ranks.index(1)
        waits = [each for place, each in enumerate(engines) if place != gone]
        told: list[str] = []
        for place in (ranks.index(0), ranks.index(2)):
            members[place].when_over(told.append)
        with ThreadPoolExecutor(2) as threads:
            found = [threads.submit(alone, each) for each in waits]
            time.sleep(0.1)
            leave(members[gone])
            for each in found:
                with pytest.raises(CommunicationError, match=r"rank \d .*has (ended|closed its connection)"):
                    each.result()
        until(lambda: len(told) == 2)
        left = [members[ranks.index(rank)] for rank in (0, 2)]
        engines = met(left)
        assert [engine.rank for engine in engines] == [0, 1], "in the order of their ranks before"
        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(alone, engines)) == [11.0] * 2
        comes = Member(coordinator.endpoint, TIMEOUT_S)
        with ThreadPoolExecutor(1) as waiting:
            last = waiting.submit(lambda: SocketEngine(comes.meet(), TIMEOUT_S))
            until(lambda: all("has come" in each.over for each in left))
            engines = met(left)
            assert [*(engine.rank for engine in engines), last.result().rank] == [0, 1, 2]
            engines.append(last.result())
        for engine in engines:
            ends.callback(engine.close)
        leave(*left, comes)


def test_a_failure_that_one_rank_sees_ends_what_all_exchange(coordinator: Coordinator) -> None:
    members = [Member(coordinator.endpoint, TIMEOUT_S) for _ in range(3)]
    engines = met(members)
    waits = engines[0]
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(alone, waits)
        members[1].fail("the disk is full")
        why = rf"rank {engines[1].rank} \(.*\): the disk is full"
        with pytest.raises(CommunicationError, match=rf"{why}|rank \d has closed its connection"):
            found.result()  # the others end their connections when they know, which may be before this one does
    until(lambda: bool(members[0].over))
    assert re.fullmatch(why, members[0].over)
    with pytest.raises(CommunicationError, match="the disk is full"):
        waits.another()
    leave(*members)


def test_one_that_does_not_come_to_the_next_meeting_is_told(coordinator: Coordinator) -> None:
    members = [Member(coordinator.endpoint, TIMEOUT_S) for _ in range(3)]
    met(members)
    members[0].fail("no answer")
    engines = met(members[:2])
    assert len(engines) == 2
    with pytest.raises(JobEndedError, match=r"the others have waited 0\.5 s \(--elastic-timeout\)"):
        members[2].meet()
    leave(*members)


def test_one_that_has_left_is_not_waited_for_while_its_process_lives(coordinator: Coordinator) -> None:
    members = [Member(coordinator.endpoint, TIMEOUT_S, start) for start in range(3)]
    met(members)
    coordinator.dismiss(2, "its host is gone")
    until(lambda: all(each.over for each in members))
    assert [bool(each.leaving) for each in members] == [False, False, True]
    assert coordinator.leaving == {2}
    met(members)
    members[2].go()
    engines = met(members[:2])
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(alone, engines)) == [11.0] * 2
    with pytest.raises(JobEndedError, match="it has left the job"):
        members[2].meet()
    assert members[2].has_ended
    leave(*members[:2])
    members[2]._listener.close()


def test_one_that_is_dismissed_before_it_is_there_is_told_then(coordinator: Coordinator) -> None:
    coordinator.dismiss(1, "there are enough")
    members = [Member(coordinator.endpoint, TIMEOUT_S, start) for start in range(3)]
    met(members)
    until(lambda: bool(members[1].leaving))
    assert not members[0].leaving
    leave(*members)


def test_the_end_of_the_job_is_told_to_all(coordinator: Coordinator) -> None:
    members = [Member(coordinator.endpoint, TIMEOUT_S) for _ in range(3)]
    met(members)
    leave(*members[1:])
    with pytest.raises(JobEndedError, match="1 processes are there, and --min-np is 2"):
        members[0].meet()
    assert "--min-np is 2" in coordinator.ended
    leave(members[0])


def test_a_coordinator_that_ends_is_told() -> None:
    coordinator = Coordinator(Roster(2, 1, 2, late_s=1.0, patience_s=1.0))
    members = [Member(coordinator.endpoint, TIMEOUT_S) for _ in range(2)]
    engines = met(members)
    coordinator.close()
    for member, engine in zip(members, engines, strict=True):
        until(lambda own=member: bool(own.over))  # type: ignore[misc]
        with pytest.raises(CommunicationError, match="the launcher has ended, and with it the job"):
            alone(engine)
        for _ in range(2):
            with pytest.raises(JobEndedError, match="the launcher has ended"):
                member.meet()
        member._listener.close()


def test_strangers_and_nonsense_change_nothing(coordinator: Coordinator) -> None:
    with pytest.raises(CommunicationError, match="cannot connect"):
        Member(replace(coordinator.endpoint, token=bytes(32)), 0.2)
    for said in (b"\x00\x00\x00\x03abc", b'\x00\x00\x00\x06["no"]', b'\x00\x00\x00\x08["ready"]', b"\xff" * 12):
        stranger = Member(coordinator.endpoint, TIMEOUT_S)
        with socket.socket(fileno=stranger._connection.fileno()) as raw:
            raw.sendall(said)
            until(lambda own=stranger: bool(own._ended))  # type: ignore[misc]
            raw.detach()
        leave(stranger)
    members = [Member(coordinator.endpoint, TIMEOUT_S) for _ in range(3)]
    engines = met(members)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(alone, engines)) == [111.0] * 3
    leave(*members)
    until(lambda: not any("member" in each.name for each in threading.enumerate()))


def test_ranks_say_who_waits(coordinator: Coordinator) -> None:
    """Each in a group of all ranks and in one of two; and in the next meeting those that have not come are others."""
    members = [Member(coordinator.endpoint, TIMEOUT_S) for _ in range(3)]
    engines = sorted(met(members), key=lambda each: each.rank)
    everybody, pair = ([each.arrivals(ranks) for each in engines] for ranks in ([0, 1, 2], [0, 2]))
    for each in (*everybody, *pair[::2]):
        each.open()
    everybody[0].announce(3)
    everybody[2].announce(2)
    until(lambda: everybody[0].missing(2) == (1,))
    assert everybody[0].missing(3) == (1, 2)
    assert pair[0].missing(1) == (2,)
    pair[2].announce(1)
    until(lambda: pair[0].missing(1) == ())
    leave(members[1])
    again = sorted(met([members[0], members[2]]), key=lambda each: each.rank)
    others = [each.arrivals([0, 1]) for each in again]
    for each in others:
        each.open()
    assert others[1].missing(1) == (0,)
    everybody[0].announce(9)  # of a meeting that is over
    others[0].announce(1)
    until(lambda: others[1].missing(1) == ())
    assert others[1].missing(2) == (0,)
    leave(members[0], members[2])
    with pytest.raises(CommunicationError, match="the launcher has not answered"):
        others[0].missing(1)
