"""A change of latency is seen in what agreeing takes."""

from __future__ import annotations

import pytest

from hvd_compress.controller.latency import LatencyWatch


def watch(*agree_s: float, exchange_s: float = 0.1) -> list[bool]:
    found = LatencyWatch()
    found.changed(agree_s[0], exchange_s)
    return [bool(found.changed(seconds, exchange_s)) for seconds in agree_s]


def test_latency_that_stays_longer_is_a_change_and_once_is_noise() -> None:
    assert watch(0.004, 0.018, 0.018) == [False, False, True]
    assert watch(0.004, 0.018, 0.005, 0.018) == [False] * 4


def test_what_is_beyond_noise_is_believed_at_once() -> None:
    assert watch(0.004, 0.030) == [False, True]


def test_latency_that_stays_shorter_is_a_change() -> None:
    assert watch(0.030, 0.008) == [False, True]  # noise makes nothing shorter


@pytest.mark.parametrize("exchange_s", [3.0, 10.0])
def test_what_is_little_beside_an_exchange_does_not_matter(exchange_s: float) -> None:
    assert not any(watch(0.004, 0.060, 0.060, 0.060, exchange_s=exchange_s))
    assert any(watch(0.004, 0.060, 0.060, exchange_s=0.5))


def test_the_noise_of_a_near_network_is_no_change() -> None:
    assert not any(watch(0.0002, 0.0009, 0.0009, 0.0009, exchange_s=0.001))
    assert not any(watch(0.0002, 0.0011, 0.0011, 0.0011, exchange_s=0.001))


def busy() -> LatencyWatch:
    """What is seen where processors are busy, sometimes."""
    found = LatencyWatch()
    for agree_s in (0.002, 0.002, 0.003):
        assert not found.changed(agree_s, 0.02)
    assert found.changed(0.018, 0.02)
    found.was_noise()  # the network is what it was
    return found


def test_noise_is_learned_and_what_is_more_is_seen_all_the_same() -> None:
    found = busy()
    for agree_s in (0.018, 0.018, 0.018, 0.003):
        assert not found.changed(agree_s, 0.02)
    assert not found.changed(0.024, 0.02)
    assert found.changed(0.024, 0.02)
    assert busy().changed(0.060, 0.02)


@pytest.mark.parametrize(("own_s", "felt"), [(0.004, True), (0.009, False), (0.019, False), (0.021, True)])
def test_a_rank_feels_what_is_half_or_twice_as_long(own_s: float, felt: bool) -> None:
    found = LatencyWatch()
    for agree_s in (0.010, 0.010):
        found.changed(agree_s, 0.01)
    assert found.felt(own_s, 0.01) == felt


def test_what_lasts_is_no_noise() -> None:
    found = busy()
    assert [bool(found.changed(0.018, 0.02)) for _ in range(4)] == [False, False, False, True]


def test_what_lasts_is_usual_where_the_network_is_what_it_was() -> None:
    """Processors got busier."""
    found = busy()
    assert [bool(found.changed(0.018, 0.02)) for _ in range(4)] == [False, False, False, True]
    found.was_noise()
    assert not any(found.changed(0.018, 0.02) for _ in range(20))


def test_noise_of_any_size_is_learned_at_last() -> None:
    found, said = LatencyWatch(), 0
    for seconds in (0.001, 0.001, *[0.100, 0.001] * 50):
        if found.changed(seconds, 0.02):
            found.was_noise()
            said += 1
    assert said == 10


def test_a_stall_does_not_make_deaf() -> None:
    found = busy()
    assert found.changed(3.0, 0.02)
    found.was_noise()
    assert not found.changed(0.044, 0.02)
    assert found.changed(0.044, 0.02)


def test_what_was_thought_usual_may_have_been_noise() -> None:
    found = LatencyWatch()
    assert [bool(found.changed(agree_s, 0.01)) for agree_s in (0.060, 0.060, 0.005)] == [False, False, True]
    found.was_noise()
    assert [bool(found.changed(agree_s, 0.01)) for agree_s in (0.005, 0.005, 0.060)] == [False, False, True]


def test_what_noise_was_is_forgotten_when_the_network_is_measured_anew() -> None:
    found = busy()
    for _ in range(3):
        found.reset()
    assert not any(found.changed(agree_s, 0.02) for agree_s in (0.002, 0.002))
    assert found.changed(0.018, 0.02)


def test_a_first_time_that_was_noise_is_not_what_is_usual() -> None:
    found = LatencyWatch()
    assert not any(found.changed(seconds, 0.01) for seconds in (0.030, 0.004, 0.004, 0.004))


def test_before_the_first_agreement_there_is_nothing_to_compare() -> None:
    assert watch(0.0, 0.060, 0.060) == [False] * 3


def test_after_a_reset_the_next_time_is_usual() -> None:
    found = LatencyWatch()
    found.changed(0.004, 0.1)
    found.reset()
    assert not any(found.changed(0.060, 0.1) for _ in range(4))
