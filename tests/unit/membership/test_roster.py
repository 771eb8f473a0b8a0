"""Who meets next: decided without sockets, by what members say and by the time."""

from __future__ import annotations

import random

import pytest

from hvd_compress.membership.roster import Drop, End, Meet, Order, Over, Roster

LATE_S, PATIENCE_S = 10.0, 60.0


def begun(members: int = 3, least: int = 1, most: int = 8) -> Roster:
    """A job whose members, from 0, have met."""
    roster = Roster(members, least, most, LATE_S, PATIENCE_S)
    for number in range(members):
        assert roster.decide(0.0) == []
        roster.came(number, f"process {number}")
    assert roster.decide(0.0) == [Meet(1, tuple(range(members)), "the job begins")]
    assert roster.decide(0.0) == []
    for number in range(members):
        roster.trained(number)
    return roster


def ready(roster: Roster, *members: int, now: float = 0.0) -> list[Order]:
    found: list[Order] = []
    for number in members:
        found += roster.ready(number, now)
    return found + roster.decide(now)


def test_those_who_are_left_meet_in_the_order_of_their_ranks() -> None:
    roster = begun()
    why = "rank 0 (process 0) has ended"
    assert roster.left(0, "has ended", 1.0) == [Over(1, why, (1, 2))]
    assert roster.failed(1, 1, "no connection", 1.0) == [], "it is over already"
    assert ready(roster, 2) == [], "it waits for the other"
    assert ready(roster, 1) == [Meet(2, (1, 2), why)]


def test_two_that_end_at_once_and_one_that_ends_while_others_meet() -> None:
    roster = begun(5)
    assert len(roster.left(3, "has ended", 0.0)) == 1
    assert roster.left(0, "has ended", 0.0) == []
    assert ready(roster, 1, 2) == []
    assert roster.left(4, "has ended", 0.0) == []
    assert roster.decide(0.0) == [Meet(2, (1, 2), "rank 3 (process 3) has ended")]
    assert roster.left(1, "has ended", 0.0) == [Over(2, "rank 0 (process 1) has ended", (2,))]
    assert ready(roster, 2) == [Meet(3, (2,), "rank 0 (process 1) has ended")]


def test_a_failed_exchange_ends_a_meeting_once() -> None:
    roster = begun()
    assert roster.failed(2, 1, "no connection", 0.0) == [Over(1, "rank 2 (process 2): no connection", (0, 1, 2))]
    assert ready(roster, 0, 1, 2) == [Meet(2, (0, 1, 2), "rank 2 (process 2): no connection")]
    assert roster.failed(1, 1, "no connection", 0.0) == [], "of the meeting before"


def test_who_comes_is_let_in_after_the_others_ranks() -> None:
    roster = begun(2, most=3)
    roster.came(7, "process 7")
    assert roster.decide(0.0) == [Over(1, "process 7 has come", (0, 1))]
    roster.came(8, "process 8")
    assert ready(roster, 1) == []
    assert ready(roster, 0) == [Meet(2, (0, 1, 7), "process 7 has come")], "there is room for one"
    assert roster.decide(0.0) == []
    assert len(roster.left(1, "has ended", 0.0)) == 1
    assert ready(roster, 0, 7) == [Meet(3, (0, 7, 8), "rank 1 (process 1) has ended")]


def test_one_that_dies_while_it_is_let_in() -> None:
    roster = begun(2)
    roster.came(2, "process 2")
    roster.decide(0.0)
    assert roster.left(2, "has ended", 0.0) == []
    assert ready(roster, 0, 1) == [Meet(2, (0, 1), "process 2 has come")]


def test_one_that_is_stopped_is_dropped_after_the_timeout_and_not_before() -> None:
    roster = begun()
    roster.failed(0, 1, "no answer", 5.0)
    ready(roster, 0, 1, now=5.0)
    assert roster.decide(5.0 + LATE_S - 0.1) == []
    (drop,) = roster.decide(5.0 + LATE_S)
    assert isinstance(drop, Drop)
    assert drop.member == 2
    assert "waited 10 s (HVD_COMPRESS_TIMEOUT_S)" in drop.why
    assert roster.decide(5.0 + LATE_S) == [Meet(2, (0, 1), "rank 0 (process 0): no answer")]
    assert roster.left(2, "has ended", 20.0) == []


def test_one_that_computes_is_waited_for_longer() -> None:
    roster = begun()
    roster.failed(0, 1, "no answer", 0.0)
    ready(roster, 0, 1)
    roster.leaves(2, 1)
    assert roster.decide(PATIENCE_S - 0.1) == []
    (drop,) = roster.decide(PATIENCE_S)
    assert isinstance(drop, Drop)
    assert "waited 60 s (--elastic-timeout)" in drop.why
    assert roster.decide(PATIENCE_S) == [Meet(2, (0, 1), "rank 0 (process 0): no answer")]


def test_too_few_wait_for_others_and_then_the_job_ends() -> None:
    roster = begun(3, least=3)
    roster.left(1, "has ended", 0.0)
    assert ready(roster, 0, 2) == []
    assert roster.decide(PATIENCE_S - 0.1) == []
    roster.came(9, "process 9")
    assert roster.decide(PATIENCE_S - 0.1) == [Meet(2, (0, 2, 9), "rank 1 (process 1) has ended")]
    roster.left(9, "has ended", 100.0)
    assert ready(roster, 0, 2, now=100.0) == []
    (end,) = roster.decide(100.0 + PATIENCE_S)
    assert isinstance(end, End)
    assert end.why == roster.ended
    assert "2 processes are there, and --min-np is 3: nobody has come within 60 s" in end.why
    assert "Last: rank 2 (process 9) has ended" in end.why
    assert roster.decide(1000.0) == []


def test_a_job_that_begins_with_fewer_than_it_wanted() -> None:
    roster = Roster(4, 2, 4, LATE_S, PATIENCE_S)
    for number in range(2):
        roster.came(number, f"process {number}")
    assert roster.decide(0.0) == []
    assert roster.decide(PATIENCE_S) == [Meet(1, (0, 1), "the job begins")]


def test_new_processes_alone_do_not_begin_the_training_anew() -> None:
    roster = begun(2)
    roster.came(2, "process 2")
    roster.decide(0.0)
    roster.left(0, "has ended", 0.0)
    roster.left(1, "has ended", 0.0)
    (end,) = roster.decide(0.0)
    assert end == End("no rank is left that has trained. Last: process 2 has come")
    assert roster.decide(1.0) == []
    roster.came(3, "process 3")
    assert roster.decide(2.0) == [Drop(3, end.why)], "who comes after the end learns of it, too"
    assert roster.decide(3.0) == []
    assert roster.ended


def test_one_that_has_not_got_all_yet_does_not_go_on_alone() -> None:
    roster = begun(1)
    roster.came(1, "process 1")
    roster.decide(0.0)
    assert ready(roster, 0) == [Meet(2, (0, 1), "process 1 has come")]
    roster.left(0, "has ended", 0.0)
    assert isinstance(ready(roster, 1)[-1], End)


def test_a_second_training_of_a_job() -> None:
    roster = begun(3, least=1)
    for number in range(3):
        roster.finished(number)
    for number in range(3):
        roster.trained(number)
    roster.left(1, "has ended", 0.0)
    assert ready(roster, 0) == []
    assert ready(roster, 2) == [Meet(2, (0, 2), "rank 1 (process 1) has ended")]


def test_who_has_finished_is_not_missed() -> None:
    roster = begun(2)
    roster.finished(0)
    roster.came(5, "process 5")
    assert roster.decide(0.0) == [Drop(5, "the training has ended")], "nobody begins anew with a job that is done"
    assert roster.left(0, "has ended", 0.0) == []
    roster.finished(1)
    assert roster.left(1, "has ended", 0.0) == []


class Play:
    """Processes that do what the roster orders, but for those that are stopped."""

    def __init__(self) -> None:
        self.roster, self.now = begun(4), 0.0
        self.alive, self.stopped = {0, 1, 2, 3}, set[int]()
        self.meeting: tuple[int, ...] | None = (0, 1, 2, 3)
        self.trained = {0, 1, 2, 3}

    def may_miss(self, member: int) -> bool:
        """Whether somebody who has trained goes on without it."""
        return bool(self.trained & self.alive - self.stopped - {member})

    def carry_out(self, orders: list[Order]) -> None:
        orders = orders + self.roster.decide(self.now)
        while orders:
            order = orders.pop(0)
            if isinstance(order, Over):
                self.meeting = None
                for each in order.members:
                    if each in self.alive - self.stopped:
                        orders += self.roster.ready(each, self.now)
            elif isinstance(order, Drop):
                assert order.member in self.stopped
                self.end(order.member)
            else:
                assert isinstance(order, Meet)
                assert set(order.members) <= self.alive
                self.meeting = order.members
                self.trained |= set(order.members)
                for each in order.members:
                    self.roster.trained(each)
            orders += self.roster.decide(self.now)

    def end(self, member: int) -> None:
        self.alive.discard(member)
        self.stopped.discard(member)
        self.carry_out(self.roster.left(member, "has ended", self.now))


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_those_who_are_alive_meet(seed: int) -> None:
    """Members end, fail, stop and come in any order: no meeting has one that is gone, and the last has all others."""
    draw, play, numbers = random.Random(seed), Play(), iter(range(4, 1000))
    for _ in range(200):
        play.now += draw.random()
        event, chosen = draw.choice(("ends", "fails", "stops", "comes", "nothing")), draw.choice(sorted(play.alive))
        if event == "ends" and play.may_miss(chosen):
            play.end(chosen)
        elif event == "fails" and play.meeting is not None and chosen in play.meeting:
            play.carry_out(play.roster.failed(chosen, play.roster.generation, "it failed", play.now))
        elif event == "stops" and play.may_miss(chosen):
            play.stopped.add(chosen)
        elif event == "comes" and len(play.alive) < 8:
            number = next(numbers)
            play.alive.add(number)
            play.roster.came(number, f"process {number}")
        play.carry_out([])
    for _ in range(4):  # one may have been ready before it was stopped
        if play.meeting is not None and play.stopped & set(play.meeting):  # who waits for it notices
            first = next(each for each in play.meeting if each not in play.stopped)
            play.carry_out(play.roster.failed(first, play.roster.generation, "no answer", play.now))
        play.now += LATE_S
        play.carry_out([])
    assert play.meeting is not None
    assert set(play.meeting) == play.alive - play.stopped, "and those that are stopped are left out"
