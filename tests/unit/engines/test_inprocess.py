"""The in-process engine keeps every promise of an engine, and a rank that is missing is an error, not a hang."""

from __future__ import annotations

import threading

import pytest
import torch

from hvd_compress.engines import base, hosts
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.errors import CommunicationError, ConfigError, UsageError
from tests.unit.engines.promises import PROMISES


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promise(promise, world_size):
    run_ranks(world_size, promise)


def test_results_come_in_rank_order():
    assert run_ranks(4, lambda engine: engine.rank**2) == [0, 1, 4, 9]


def test_a_missing_rank_is_an_error_that_says_who_waited_for_whom():
    engine = InProcessWorld(2, timeout_s=0.05).engine(0)
    with pytest.raises(CommunicationError, match=r"rank 0 waited 0.05 s for rank 1 in allreduce \(ring\) of 12 bytes"):
        engine.allreduce(torch.ones(3), "ring")


def test_the_first_error_wins_and_wakes_the_others():
    def body(engine: InProcessEngine) -> None:
        if engine.rank == 2:
            raise ZeroDivisionError("on purpose")
        engine.allreduce(torch.ones(3))

    with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
        run_ranks(4, body, timeout_s=600)
    notes = getattr(caught.value, "__notes__", None)
    assert notes is None or notes == ["raised on rank 2 of 4"]


def test_an_engine_that_is_lost_says_why():
    def body(engine):
        engine.lost = "the transport is gone"
        with pytest.raises(CommunicationError, match="the transport is gone"):
            engine.allreduce(torch.ones(3))
        assert not engine.running
        assert engine.pending == "allreduce (auto) of 12 bytes"

    run_ranks(1, body)


def test_abandon_fails_the_other_ranks_and_all_later_calls():
    def body(engine: InProcessEngine) -> str:
        if engine.rank == 0:
            engine.abandon()
        with pytest.raises(CommunicationError, match="rank 0 gave up") as caught:
            engine.allreduce(torch.ones(3))
        return str(caught.value)

    assert len(set(run_ranks(3, body, timeout_s=600))) == 1


@pytest.mark.parametrize("verb", ["allgather", "alltoall", "gather"])
def test_untrue_lengths_are_found(verb: str):
    def body(engine: InProcessEngine) -> None:
        lengths = [1, 2] if engine.rank == 0 else [7, 2]
        own = torch.ones(engine.rank + 1)
        if verb == "alltoall":
            engine.alltoall([own, own], lengths)
        elif verb == "gather":
            engine.gather(own, 1, lengths)
        else:
            engine.allgather(own, lengths)

    with pytest.raises(CommunicationError, match=rf"{verb} was told lengths \[7, 2\], but they are \[1, 2\]"):
        run_ranks(2, body)


def test_the_sender_may_overwrite_what_it_sent():
    def body(engine: InProcessEngine) -> list[float]:
        tensor = torch.full((2,), float(engine.rank))
        engine.send(1 - engine.rank, tensor)
        tensor.fill_(-1.0)
        return engine.recv(1 - engine.rank).tolist()

    assert run_ranks(2, body) == [[1.0, 1.0], [0.0, 0.0]]


def test_hosts_are_unknown_before_they_are_asked_for():
    with pytest.raises(UsageError, match=r"call locate\(\) of the in-process engine"):
        _ = InProcessWorld(2).engine(0).hosts
    assert InProcessWorld(1).engine(0).hosts == (0,)


def test_hosts_count_by_their_first_rank(monkeypatch):
    """And again within a part of the ranks."""
    places = threading.local()
    monkeypatch.setattr(base, "host_identity", lambda: places.name)

    def body(engine: InProcessEngine):
        places.name = ["b", "a", "b", "c", "a"][engine.rank]
        engine.locate()
        part = engine.split(int(engine.rank > 1))
        return engine.hosts, part.hosts

    whole, low, high = (0, 1, 0, 2, 1), (0, 1), (0, 1, 2)
    assert run_ranks(5, body) == [(whole, low)] * 2 + [(whole, high)] * 3


def test_hosts_can_be_given():
    def body(engine: InProcessEngine):
        assert engine.hosts == engine.capabilities.hosts == engine.locate()
        assert engine.sent_messages == 0
        part = engine.split(int(engine.rank > 1))
        return engine.hosts, part.hosts, part.capabilities.hosts

    assert (
        run_ranks(4, body, hosts=(7, 7, 7, 3))
        == [((0, 0, 0, 1), (0, 0), (0, 0))] * 2 + [((0, 0, 0, 1), (0, 1), (0, 1))] * 2
    )
    with pytest.raises(ConfigError, match=r"hosts=\(0, 0, 1\) has 3 numbers for 4 ranks"):
        InProcessWorld(4, hosts=(0, 0, 1))


def test_hosts_of_one_machine_that_have_names_are_several(monkeypatch):
    """Those of an emulated network: each has a name of its own, and one kernel runs them all."""
    found = {}
    for name in ("host1", "host2"):
        monkeypatch.setattr(hosts.socket, "gethostname", lambda name=name: name)
        found[name] = hosts.host_identity()
    assert found["host1"] != found["host2"]
    assert hosts.host_identity() == found["host2"]


def test_machines_of_one_name_are_told_apart_by_their_boot(monkeypatch, tmp_path):
    found = []
    for boot in ("one", "two"):
        (tmp_path / boot).write_text(boot + "\n")
        monkeypatch.setattr(hosts, "_BOOT_ID", tmp_path / boot)
        found.append(hosts.host_identity())
    assert found[0] != found[1]
    monkeypatch.setattr(hosts, "_BOOT_ID", tmp_path / "missing")
    assert hosts.host_identity().strip()


def test_a_failure_reaches_the_parts_and_that_of_a_part_the_whole():
    have_split = threading.Barrier(4)

    def sum_for_ever(engine: InProcessEngine) -> None:
        while True:
            engine.allreduce(torch.ones(3))

    def body(engine: InProcessEngine) -> None:
        part = engine.split(engine.rank % 2)
        have_split.wait()
        if engine.rank == 0:
            part.abandon()
        for one in (part, engine):
            with pytest.raises(CommunicationError, match="rank 0 gave up"):
                sum_for_ever(one)

    run_ranks(4, body, timeout_s=600)


def test_what_a_part_sends_is_counted_in_the_whole():
    def body(engine: InProcessEngine) -> tuple[int, int]:
        part = engine.split(engine.rank % 2)
        before = engine.sent_bytes
        part.allreduce(torch.ones(64))
        return engine.sent_bytes - before, part.sent_bytes

    assert run_ranks(4, body) == [(256, 256)] * 4
