"""A rank that sees a change says so, and ranks compare their times at once; where that finds nothing, they get deaf."""

from __future__ import annotations

import math

import pytest

from hvd_compress.controller.alarm import DEAF, DEAFEST, USUAL_STEPS, Alarm
from hvd_compress.controller.chooser import Chooser, Policy
from hvd_compress.controller.controller import Controller
from hvd_compress.controller.expected import Bucket
from hvd_compress.controller.history import History
from hvd_compress.controller.network import Network
from hvd_compress.controller.report import Agreed, Timing
from hvd_compress.controller.watch import LONGEST_WINDOW
from hvd_compress.cost.candidates import Candidate
from hvd_compress.cost.formulas import Formulas


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
    alarm.hear(True)
    alarm.restart()
    assert not alarm.due
    for _ in range(USUAL_STEPS + 2):
        alarm.seen(0.5)
    assert not alarm.raised


def test_false_alarms_make_deaf_for_a_while_and_true_ones_open_the_ears() -> None:
    alarm, found = Alarm(), []

    def steps_until_due() -> int:
        return next(step for step in range(1, 1000) if alarm.hear(True) or alarm.due)

    for _ in range(7):
        found.append(steps_until_due())
        alarm.ask()
        alarm.answered(found=False)
    assert found == [1, *(DEAF * 2**n for n in range(5)), DEAFEST]
    alarm.answered(found=True)
    assert steps_until_due() == 1
    alarm.ask()
    alarm.answered(found=False)
    assert steps_until_due() == DEAF


def test_an_alarm_while_ranks_compare_earlier_steps_waits_for_the_next_time() -> None:
    alarm = Alarm()
    alarm.ask()
    alarm.hear(True)
    alarm.answered(found=False)
    assert alarm.due


def train(changes: bool) -> tuple[int, str]:
    """Return the steps from a change that one rank tells of until ranks agree on it, and what they make of it."""
    ways = (Candidate("allgather", "ring"), Candidate("star", "ring"))
    bucket = Bucket(100_000, 4, 0.01, ways)
    controller = Controller([bucket], Network(Formulas(1e-3, 1e-9, 4)), Policy(), History())
    change, step, drift = math.inf, 0, ""
    while step < change + LONGEST_WINDOW and not drift:
        first = len(controller._pending.steps) == 1 and controller._watch.window == LONGEST_WINDOW
        change = min(change, step) if first and controller.settled and step > 80 else change
        new = changes and step >= change
        seconds = 0.4 if new else 0.1 if controller.candidates() == ways[:1] else 0.11
        controller.hear(controller.note)
        controller.record([Timing(0.0, seconds, 0.0)], 0.2)
        step += 1
        if controller.due:
            told = controller.report().keywords["steps"]  # type: ignore[attr-defined]
            rows = tuple(tuple(timing.seconds for timing in row) for row in told)
            # Agreeing takes so long that it is done rarely.
            drift = controller.take(step, Agreed(rows, ((0.0,),) * len(rows), 0.2, 0.05, 0.05, told=((),) * 4))
    return int(step - change), drift


def test_a_change_ends_a_long_window(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    drifted = Chooser.drifted
    monkeypatch.setattr(Chooser, "drifted", lambda self, s, alarmed: told.append(alarmed) or drifted(self, s, alarmed))
    steps, drift = train(changes=True)
    assert told[-1]  # that a rank saw it counts where noise was taken for a change before
    assert not told[-2]
    assert steps <= 4
    assert drift == "bucket 0 by allgather-ring took 400.00 ms instead of 100.00"
    steps, drift = train(changes=False)
    assert (steps, drift) == (LONGEST_WINDOW, "")
