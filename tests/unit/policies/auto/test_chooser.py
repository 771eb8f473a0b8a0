"""A choice that stands: how often ranks compare times, and what is remembered of it when the network has changed."""

from __future__ import annotations

from hvd_compress.policies.auto.chooser import Chooser
from hvd_compress.services.agreement import LONGEST, WINDOW, StepTimes
from hvd_compress.services.detector import THRESHOLD, Alarm

ARMS = [1.0, 1.0, 1.0]


def train(chooser: Chooser, taken_s: list[float], steps: int) -> int:
    """Return after how many steps it wants the network to be measured; all of them if it does not."""
    for step in range(steps):
        arm = chooser.next()
        if rings(chooser, arm, taken_s[arm]):
            return step + 1
    return steps


def rings(chooser: Chooser, arm: int, taken_s: float) -> bool:
    """Record a step; return whether the network should be measured."""
    window_s = chooser.record([(arm, StepTimes(taken_s, taken_s, taken_s))])
    if window_s is not None:
        chooser.alarm.add(window_s)
    return chooser.alarm.rings


def search_again(chooser: Chooser, same: int | None) -> None:
    chooser.alarm.answer()
    chooser.again(ARMS, [0.0] * 3, same)


def settled(taken_s: list[float]) -> Chooser:
    chooser = Chooser(ARMS, [0.0] * 3, Alarm())
    train(chooser, taken_s, 30)
    assert chooser.settled
    return chooser


def test_short_steps_are_compared_seldom() -> None:
    """Also by a job that goes on with what another one has chosen."""
    assert settled([0.2, 0.1, 0.3]).every == 5
    assert settled([0.02, 0.01, 0.03]).every == LONGEST
    resumed = Chooser([1.0], [0.0], Alarm())
    resumed.alarm.expect(0.01, found=2)
    assert resumed.every == WINDOW
    train(resumed, [0.01], WINDOW)
    assert resumed.every == LONGEST


def test_a_resumed_choice_is_compared_with_what_it_took_before() -> None:
    for taken_s, changes in ((0.2, False), (0.26, False), (0.5, True), (0.05, True)):
        chooser = Chooser([1.0], [0.0], Alarm())
        chooser.alarm.expect(0.2, found=2)
        assert (train(chooser, [taken_s], 3 * LONGEST) < 3 * LONGEST) == changes, taken_s


def test_two_kinds_of_steps_in_turns_are_not_searched_for_ever() -> None:
    """As of two lengths of a text, for which one arm is the best."""
    chooser, searching = settled([0.2, 0.1, 0.3]), 0
    for step in range(6000):
        searching += not chooser.settled
        taken_s = [0.2, 0.1, 0.3][chooser.next()] * (2 if step // 40 % 2 else 1)
        if rings(chooser, chooser.next(), taken_s):
            search_again(chooser, 1)
    assert searching <= 0.05 * 6000


def test_an_alarm_that_found_the_same_arm_makes_the_next_one_rarer() -> None:
    """By its name: when curves are measured again, arms may have other numbers."""
    for same, taken_s, factor in ((1, [0.2, 0.1, 0.3], 2), (2, [0.4, 0.6, 0.2], 2), (2, [0.2, 0.1, 0.3], 1)):
        chooser = settled([0.2, 0.1, 0.3])
        search_again(chooser, same)
        train(chooser, taken_s, 30)
        assert chooser.alarm.threshold == factor * THRESHOLD
    chooser = settled([0.2, 0.1, 0.3])
    search_again(chooser, None)
    train(chooser, [0.2, 0.1, 0.3], 30)
    assert chooser.alarm.threshold == THRESHOLD
