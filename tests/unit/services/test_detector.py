"""The two-sided CUSUM: what is an alarm, and what is none."""

from __future__ import annotations

import pytest

from hvd_compress.services.detector import QUIET, REFERENCE, THRESHOLD, Detector


@pytest.mark.parametrize("factor", [2.1, 1 / 2.1])
def test_two_windows_of_twice_or_half_the_time_are_an_alarm(factor: float) -> None:
    detector = Detector(1.0, found=REFERENCE)
    assert [detector.add(factor) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("seconds", [1e-3, 1e3])
def test_one_window_alone_is_none(seconds: float) -> None:
    """Whatever it took, and though another one comes later."""
    detector = Detector(1.0, found=REFERENCE)
    assert not any(detector.add(each) for each in (seconds, *[1.0] * 10, seconds))


@pytest.mark.parametrize("factor", [1.09, 1 / 1.09])
def test_ten_per_cent_count_for_nothing(factor: float) -> None:
    detector = Detector(1.0, found=REFERENCE)
    assert not any(detector.add(factor) for _ in range(1000))


def test_a_higher_threshold_does_not_stay() -> None:
    detector = Detector(1.0, 4 * THRESHOLD)
    assert not any(detector.add(1.0) for _ in range(QUIET))
    assert detector.threshold == 2 * THRESHOLD
    assert not any(detector.add(1.0) for _ in range(4 * QUIET))
    assert detector.threshold == THRESHOLD


def test_what_a_few_steps_took_is_corrected_by_the_first_windows() -> None:
    """As of a search; what an earlier job found is not."""
    found, known = Detector(1.0), Detector(1.0, found=REFERENCE)
    assert not any(found.add(1.4) for _ in range(100))
    assert any(known.add(1.4) for _ in range(100))
    assert found.level_s == 1.4
    assert known.level_s == 1.0
