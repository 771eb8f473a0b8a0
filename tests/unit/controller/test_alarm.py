"""A rank that sees a change says so, and ranks compare their times at once; where that finds nothing, they get deaf."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hvd_compress.controller.alarm import DEAF, DEAFEST, USUAL_STEPS, Alarm, Ear
from hvd_compress.controller.controller import Controller
from hvd_compress.controller.network import Network
from hvd_compress.controller.policy import Policy
from hvd_compress.controller.report import Agreed, Timing, Took
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.events.history import History
from tests.controlled import known_bucket


def taught(usual: float) -> Alarm:
    alarm = Alarm()
    for _ in range(USUAL_STEPS):
        alarm.seen(usual)
    return alarm


def test_two_odd_steps_in_a_row_are_said() -> None:
    alarm = taught(0.1)
    for odd in (0.16, 0.06):
        alarm.seen(odd)
        assert not alarm.raised
        alarm.seen(0.1)
        alarm.seen(odd)
        alarm.seen(odd)
        assert alarm.raised
        alarm.seen(0.1)
        assert not alarm.raised


@pytest.mark.parametrize("seconds", [0.00102, 0.0013, math.nan])
def test_what_is_little_or_no_number_is_not_odd(seconds: float) -> None:
    alarm = taught(0.001)
    for _ in range(3):
        alarm.seen(seconds)
    assert not alarm.raised


def test_what_is_usual_is_no_single_step() -> None:
    alarm = Alarm()
    for second in (0.5, 0.1, 0.1, 0.1, 0.1, 0.1):
        alarm.seen(second)
    assert not alarm.raised


def test_nothing_is_odd_before_it_is_known_what_is_usual() -> None:
    alarm = Alarm()
    for second in (0.1, 0.9, 0.9):
        alarm.seen(second)
    assert not alarm.raised


def test_after_another_choice_the_usual_is_learned_anew() -> None:
    alarm = taught(0.1)
    alarm.restart()
    for _ in range(USUAL_STEPS + 2):
        alarm.seen(0.5)
    assert not alarm.raised


def test_false_alarms_make_deaf_for_a_while_and_true_ones_open_the_ears() -> None:
    ear, found = Ear(), []

    def steps_until_due() -> int:
        return next(step for step in range(1, 1000) if ear.hear(True) or ear.due)

    for _ in range(7):
        found.append(steps_until_due())
        ear.was_false()
    assert found == [1, *(DEAF * 2**n for n in range(5)), DEAFEST]
    ear.forgive()
    assert steps_until_due() == 1
    ear.was_false()
    assert steps_until_due() == DEAF


def test_false_alarms_are_forgotten_after_as_many_steps_without() -> None:
    ear = Ear()
    for _ in range(3):
        while not ear.due:
            ear.hear(True)
        ear.was_false()
    for _ in range(DEAFEST):
        ear.hear(False)
    ear.hear(True)
    assert ear.due
    ear.was_false()
    assert next(step for step in range(1, 1000) if ear.hear(True) or ear.due) == 4 * DEAF  # not 8


def test_what_the_network_was_not_measured_for_makes_nobody_deaf() -> None:
    ear = Ear()
    ear.was_false()
    ear.hear(True)
    assert ear.due
    ear.forget()
    assert not ear.due
    assert not ear.deaf


@pytest.mark.parametrize("changes", [True, False])
def test_an_alarm_is_due_in_the_midst_of_a_window(changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was measured there of another network is no trial of the round that follows."""
    monkeypatch.setattr(Network, "remeasured", lambda known, _: replace(known, latency=9.0))
    (engine,) = run_ranks(1, lambda engine: engine)
    ways = (Path("allgather", "ring"), Path("star", "ring"))
    bucket = known_bucket(100_000, 0.01, ways)
    controller = Controller([bucket], Network(Formulas(1e-3, 1e-9, 4)), Policy(), History())
    since, alarms = 0, []
    for step in range(104):
        seconds = 0.4 if changes and step >= 100 else 0.1 if controller.candidates() == ways[:1] else 0.11
        controller.hear(controller.note)
        controller.record([Timing(0.0, seconds, 0.0)], 0.2)
        if suspicion := controller.alarm:
            alarms.append(step)
            assert len(controller._pending.steps) > 1
            controller.remeasure(step, suspicion, engine)
            assert controller.candidates() == (controller._courses[0].chooser.candidate(0),)
            assert not controller._pending.steps
            assert controller.alarm is None
        since += 1
        if step < 100 and controller.due:
            controller.report()
            rows = ((seconds,),) * since
            assert (
                controller.take(step, Agreed(rows, ((0.0,),) * since, 0.2, 0.05, Took(0.05, 0.05), told=((),) * 4))
                is None
            )
            since = 0
    assert alarms == ([102] if changes else [])  # two odd steps, and one in which that is said
