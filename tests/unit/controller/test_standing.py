"""Whether a choice still takes what it took: what is drift, what is noise, and what lasts."""

from __future__ import annotations

import math

import pytest

from hvd_compress.controller.policy import Policy
from hvd_compress.controller.standing import Known, Standing

POLICY = Policy(drift=1.25, evident=2.0, broken=2.5, calm=3, least_s=0.001)
NONE = math.inf
"""There was no other way."""


def chosen(policy: Policy = POLICY) -> Standing:
    """A choice that took 0.1 s in its trials."""
    standing = Standing(policy)
    standing.begin(0.1, Known.TRIALS)
    return standing


def confirmed(policy: Policy = POLICY) -> Standing:
    standing = chosen(policy)
    assert not standing.drifted(0.1)
    assert standing.known is Known.WINDOW
    return standing


def test_drift_needs_two_windows_or_one_that_is_evident() -> None:
    standing = confirmed()
    assert not standing.drifted(0.15)
    assert not standing.drifted(0.1)  # one window that was as ever forgives the one before
    assert not standing.drifted(0.15)
    assert standing.drifted(0.15)
    assert chosen().drifted(0.04)


def test_windows_are_compared_with_the_first_one_and_not_with_the_shortest_trial() -> None:
    standing = chosen()
    assert not any(standing.drifted(0.14) for _ in range(5))
    assert not standing.drifted(0.19)
    assert standing.drifted(0.19)


def test_times_below_what_can_be_told_apart_are_no_drift() -> None:
    standing = Standing(POLICY)
    standing.begin(0.0001, Known.TRIALS)
    assert not any(standing.drifted(0.0009) for _ in range(5))


def test_a_first_window_that_denies_the_trials_is_believed_the_second_time() -> None:
    standing = chosen()
    assert standing.drifted(0.3)
    assert not standing.lasts(NONE)
    assert not any(standing.drifted(0.3) for _ in range(3))
    assert not standing.odd
    assert standing.drifted(0.1)


def test_what_one_choice_was_doubted_for_is_none_of_the_next() -> None:
    standing = chosen()
    assert standing.drifted(0.3)
    standing.begin(0.1, Known.TRIALS)  # the network was another one
    assert standing.drifted(0.3)


@pytest.mark.parametrize(("seconds", "again"), [(0.22, False), (0.25, True)])
def test_a_lucky_choice_that_its_first_window_denies_is_tried_again_once(seconds: float, again: bool) -> None:
    standing, rival_s = chosen(), 0.24
    assert standing.drifted(seconds)
    assert standing.lasts(rival_s) == again
    if again:
        standing.begin(0.1, Known.TRIALS)
        assert standing.drifted(seconds)
        assert not standing.lasts(rival_s)  # that is noise
        assert not standing.drifted(seconds)  # and usual from now on
        standing.begin(0.1, Known.TRIALS)
        assert standing.drifted(seconds)
        assert standing.lasts(rival_s)


def test_what_a_choice_was_doubted_for_says_nothing_of_what_is_sent_since_then() -> None:
    standing = chosen()
    assert standing.drifted(0.3)
    standing.relearn()
    assert not standing.broken(0.7)  # VAR is on trial: nothing else is taken
    assert standing.broken(0.8)  # what the window took counts, not the trials that it denied
    assert not standing.lasts(rival_s=0.2)


def test_a_window_that_is_as_ever_ends_the_doubt_of_the_trials() -> None:
    standing = chosen()
    assert standing.drifted(0.3)
    assert not standing.lasts(NONE)
    assert not standing.drifted(0.3)
    assert standing.broken(0.9)  # VAR is on trial
    assert not standing.lasts(rival_s=0.2)


def test_what_was_recalled_and_is_denied_is_tried_again_at_once() -> None:
    standing = Standing(POLICY)
    standing.begin(0.1, Known.BEFORE)
    assert standing.drifted(0.3)
    assert standing.lasts(NONE)
    standing.begin(0.1, Known.BEFORE)
    assert standing.broken(0.3)  # while VAR is on trial, too
    assert standing.lasts(NONE)
    standing.begin(0.1, Known.BEFORE)
    assert not standing.drifted(0.1)  # it holds
    assert standing.drifted(0.3)
    assert not standing.lasts(NONE)


def test_a_first_window_that_denies_the_trials_is_looked_into_whatever_was_noise_before() -> None:
    """It could not be seen later: the second one is believed."""
    standing = confirmed()
    for _ in range(3):
        assert any(standing.drifted(0.22) for _ in range(8))
        standing.lasts(NONE)
        assert not standing.drifted(0.1)
    standing.scale(1.2)
    assert standing.drifted(0.26)


def test_noise_is_forgotten_after_many_windows_without() -> None:
    standing = confirmed(Policy(drift=1.25, evident=2.0, least_s=0.001, forgets=5))
    assert standing.drifted(0.22)
    assert not standing.lasts(NONE)
    assert not any(standing.drifted(seconds) for seconds in (0.1, 0.22, 0.1, 0.1, 0.1, 0.1, 0.1))
    assert standing.drifted(0.22)


@pytest.mark.parametrize(("worse", "expected"), [(None, [1, 2, 4, 8]), (5, [1, 2, 4, 5])])
def test_looks_at_what_is_odd_come_ever_more_rarely_but_for_what_is_odder(
    worse: int | None, expected: list[int]
) -> None:
    standing = confirmed(Policy(drift=1.25, evident=1.5, least_s=0.001))
    looks = []
    for window in range(1, 9):
        if standing.drifted(1.0 if worse and window >= worse else 0.16):
            looks.append(window)
            if standing.lasts(NONE) or window == worse:
                break
    assert looks == expected


def test_after_many_windows_with_nothing_odd_what_lasts_is_tried_as_soon_as_at_first() -> None:
    windows = []
    for quiet in (1, 7):
        standing = Standing(Policy(drift=1.25, evident=2.0, calm=2, least_s=0.001, forgets=6))
        for _ in range(2):
            standing.begin(0.1, Known.TRIALS)
            assert not any(standing.drifted(0.1) for _ in range(quiet))
            windows.append(next(n for n in range(1, 100) if standing.drifted(0.22) and standing.lasts(NONE)))
    assert windows == [4, 8, 4, 4]


def test_what_is_not_finite_says_nothing() -> None:
    standing = chosen()
    assert not any(standing.drifted(seconds) for seconds in (math.nan, math.inf))
    assert (standing.seconds, standing.known) == (0.1, Known.TRIALS)


def test_what_lasts_again_and_again_is_tried_more_and_more_rarely_until_the_network_changes() -> None:
    standing = Standing(Policy(drift=1.25, evident=2.0, calm=2, least_s=0.001))
    seconds, windows = 0.1, []
    for round_ in range(5):
        standing.begin(seconds, Known.TRIALS)
        assert not standing.drifted(seconds)
        seconds = 0.22 if seconds == 0.1 else 0.1
        windows.append(next(n for n in range(1, 100) if standing.drifted(seconds) and standing.lasts(NONE)))
        if round_ == 3:
            standing.forgive()
    assert windows == [4, 8, 16, 16, 4]


def test_after_something_else_is_sent_the_next_window_is_usual() -> None:
    standing = confirmed()
    standing.relearn()
    assert not standing.drifted(0.3)
    assert standing.drifted(0.1)


def test_where_nothing_is_known_yet_more_being_sent_says_nothing_either() -> None:
    """VAR was chosen, and with it another ratio: what STAR took is no measure of it."""
    standing = confirmed()
    standing.relearn()
    standing.scale(1.2)
    assert not standing.drifted(0.5)


def test_what_was_foretold_badly_is_tried_again_once_where_another_way_was_faster() -> None:
    for rival_s, again in ((0.5, False), (0.2, True)):
        standing = confirmed()
        standing.scale(1.2)
        assert standing.drifted(0.3)
        assert standing.lasts(rival_s) == again


def test_where_it_was_noise_once_an_odd_window_is_nothing_to_hurry_for() -> None:
    standing = confirmed()
    assert not standing.drifted(0.14)
    assert standing.odd
    assert standing.drifted(0.14)
    assert not standing.lasts(NONE)
    assert not standing.odd


@pytest.mark.parametrize(("seconds", "windows"), [(0.22, 8), (0.3, 4)])
def test_what_is_far_off_for_long_is_tried_again_sooner(seconds: float, windows: int) -> None:
    standing = confirmed()
    tried = [standing.drifted(seconds) and standing.lasts(NONE) for _ in range(windows)]
    assert tried == [False] * (windows - 1) + [True]


@pytest.mark.parametrize(("seconds", "drifted"), [(0.16, False), (0.14, False), (0.5, True), (0.06, True)])
def test_where_more_is_sent_a_window_that_takes_as_much_longer_is_no_drift_and_one_that_takes_far_longer_is(
    seconds: float, drifted: bool
) -> None:
    """A network that changes just when another ratio is chosen must not become what is usual."""
    standing = confirmed(Policy(evident=1.5, least_s=0.001))
    standing.scale(1.5)
    assert standing.seconds == pytest.approx(0.15)
    assert standing.drifted(seconds) == drifted
    assert drifted or standing.seconds == seconds


def test_alarms_that_change_nothing_make_patient_and_a_breakdown_is_seen_all_the_same() -> None:
    standing = chosen(Policy(drift=1.25, evident=1.5, broken=2.5, calm=2, least_s=0.001))

    def windows_until(seconds: float) -> int:
        assert not standing.drifted(0.1)  # what is usual
        return next(count for count in range(1, 100) if standing.drifted(seconds))

    needed = [(windows_until(0.18), standing.lasts(NONE)) for _ in range(4)]
    assert needed == [(1, False), (2, False), (4, True), (4, False)]  # no more; what lasts is tried, then more rarely
    assert not standing.drifted(0.1)
    assert windows_until(0.3) == 2
    standing.begin(0.3, Known.TRIALS)  # it was true
    assert not standing.drifted(0.3)
    assert standing.drifted(0.5)
