"""Windows: how long they are, what ends them early, and after which of them soon more is to be known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_compress.controller.alarm import DEAF, RECENT, USUAL_STEPS
from hvd_compress.controller.report import Agreed
from hvd_compress.controller.watch import (
    ALARM,
    COMPARED,
    FELT,
    LONGEST_IN_THE_OPEN,
    LONGEST_WINDOW,
    OVERHEAD,
    SHORTEST_WINDOW,
    SOON,
    Watch,
)


def watch_that_knows() -> Watch:
    """It has seen some windows."""
    watch = Watch()
    for _ in range(4):
        window(watch, 1.0)
    return watch


def window(watch: Watch, agree_s: float, settled: bool = True, idle_s: float = 0.0) -> str:
    """Let a window, or a round, end in which nothing is odd; return what is said of the agreement before."""
    watch.ask([], settled)
    said = watch.take(agreed(agree_s), 0.01, idle_s)
    if settled:
        watch.answered(found=False, odd=False)
    return said


def agreed(agree_s: float, step_s: float = 0.1) -> Agreed:
    return Agreed(((0.01,),), ((0.0,),), step_s, agree_s, agree_s)


@pytest.mark.parametrize(
    ("agree_s", "steps"),
    [(0.0, SHORTEST_WINDOW), (0.1 * OVERHEAD * 4.5, 5), (1.0, LONGEST_IN_THE_OPEN)],
)
def test_ranks_agree_as_rarely_as_keeps_it_cheap(agree_s: float, steps: int) -> None:
    watch = watch_that_knows()
    watch.take(agreed(agree_s), 0.01, 0.0)
    assert watch.length == steps


def test_what_is_hidden_behind_computation_may_come_more_often() -> None:
    watch = watch_that_knows()
    for idle_s, length in ((2.0, LONGEST_WINDOW), (0.5, LONGEST_IN_THE_OPEN)):
        for _ in range(4):
            window(watch, 1.0, idle_s=idle_s)
        assert watch.length == length


def test_until_it_is_known_what_is_usual_windows_are_short() -> None:
    watch, lengths = Watch(), []
    for _ in range(5):
        lengths.append(watch.length)
        window(watch, 1.0)
    assert lengths == [SHORTEST_WINDOW] * 2 + [LONGEST_IN_THE_OPEN] * 3
    watch.restart()
    assert watch.length == SHORTEST_WINDOW


def test_what_is_odd_is_looked_at_again_soon() -> None:
    watch = watch_that_knows()
    watch.take(agreed(1.0), 0.01, 0.0)
    watch.answered(found=False, odd=False)
    assert watch.length == LONGEST_IN_THE_OPEN
    watch.answered(found=False, odd=True)
    assert watch.length == SHORTEST_WINDOW


def test_an_odd_agreement_is_followed_by_one_that_comes_soon() -> None:
    watch, said = Watch(), []
    for agree_s in (0.0, 0.005, 0.005, 0.005, 0.02):
        said.append(window(watch, agree_s))
    assert said == [""] * 5
    assert watch.length == SOON


def test_what_agreeing_took_for_no_reason_is_noise() -> None:
    watch = Watch()
    for agree_s in (0.0, 0.005, 0.005, 0.005, 0.04):
        said = window(watch, agree_s)
    assert said == "ranks took 40.00 ms to agree instead of 5.00"
    watch.was_noise()
    assert watch.take(agreed(0.04), 0.01, 0.0) == ""


def test_what_an_agreement_takes_longer_beside_computation_is_learned_as_noise() -> None:
    """Those for which all ranks wait take 1 ms, the others 20 ms: the network is measured once for that."""
    watch, said = Watch(), []
    for settled, agree_s in [(False, 0.0), (False, 0.001), (True, 0.001), *[(True, 0.020), (False, 0.001)] * 10]:
        if words := window(watch, agree_s, settled, idle_s=0.05):
            said.append(words)
            watch.was_noise()
    assert said[0] == "ranks took 20.00 ms to agree instead of 1.00"
    assert len(said) <= 2
    assert not watch._latency.odd


def test_what_nothing_hides_is_waited_for() -> None:
    watch = Watch()
    window(watch, 0.02, idle_s=0.05)
    assert watch.hides
    window(watch, 0.02, idle_s=0.01)
    assert not watch.hides


def test_where_no_alarm_is_heeded_windows_are_shorter() -> None:
    watch = watch_that_knows()
    watch.take(agreed(1.0), 0.01, 0.0)
    watch.hear(ALARM)
    watch.ask([], True)
    assert watch.length == RECENT
    watch.answered(found=False, odd=False)  # it was a false alarm: for some time none is heeded
    assert watch.length == LONGEST_WINDOW
    for _ in range(DEAF):
        watch.hear(0)
    assert watch.length == LONGEST_WINDOW  # a window stays as long as it was to be
    window(watch, 1.0)
    assert watch.length == LONGEST_IN_THE_OPEN


def test_after_a_change_alarms_are_heeded() -> None:
    watch = watch_that_knows()
    watch.hear(ALARM)
    window(watch, 1.0)
    watch.hear(ALARM)
    assert watch.length == LONGEST_WINDOW
    watch.remeasured()
    watch.hear(ALARM)
    assert watch.length == RECENT


def test_another_choice_while_ranks_compare_makes_the_next_window_short() -> None:
    watch = watch_that_knows()
    watch.ask([], True)
    watch.take(agreed(1.0), 0.01, 0.0)
    watch.restart()
    watch.answered(found=False, odd=False)
    assert watch.length == SHORTEST_WINDOW


def test_what_takes_longer_beside_a_step_does_not_go_to_and_fro() -> None:
    """1 ms where ranks wait, 20 ms beside a step, of which 10 ms are idle."""
    watch, hidden = Watch(), []
    for _ in range(20):
        hidden.append(watch.hides)
        window(watch, 0.020 if watch._beside else 0.001, idle_s=0.01)
    assert sum(hidden) <= 5


def test_an_alarm_makes_ranks_compare_the_last_steps() -> None:
    watch = watch_that_knows()
    watch.take(agreed(1.0), 0.01, 0.0)
    steps = list(range(LONGEST_IN_THE_OPEN))
    assert watch.ask(steps, True) == steps[-COMPARED:]
    watch.answered(found=False, odd=False)
    watch.hear(ALARM)
    assert watch.length == RECENT
    assert watch.ask(steps, True) == steps[-RECENT:]
    assert watch.asked
    watch.answered(found=True, odd=False)
    assert (watch.length, watch.asked) == (LONGEST_IN_THE_OPEN, False)


def test_another_choice_has_another_usual_time() -> None:
    watch = Watch()
    for seconds in [0.1] * USUAL_STEPS + [0.4] * 2:
        watch.seen(seconds)
    assert watch.note == ALARM
    watch.restart()
    assert watch.note == 0
    for seconds in [0.4] * (USUAL_STEPS + 2):
        watch.seen(seconds)
    assert watch.note == 0


def test_after_the_network_was_measured_agreements_are_learned_anew() -> None:
    watch = Watch()
    for _ in range(3):
        watch.take(agreed(0.005), 0.01, 0.0)
    watch.remeasured()
    assert [watch.take(agreed(0.5), 0.01, 0.0) for _ in range(4)] == [""] * 4


def test_a_rank_that_felt_an_odd_agreement_has_the_next_one_come_soon() -> None:
    """What it took is told in the next one: here 60 ms instead of 10, as the network is farther now."""
    watch = Watch()
    for _ in range(4):
        window(watch, 0.010)
    assert watch.note == 0
    watch.ask([], True)
    watch.take(replace(agreed(0.010), own_s=0.060), 0.01, 0.0)
    watch.answered(found=False, odd=False)
    assert watch.note == FELT
    assert watch.length > SOON
    watch.ask([], True)
    watch.hear(FELT)  # that is of the one before
    assert window(watch, 0.010) == ""
    assert watch.length > SOON
    watch.ask([], True)
    watch.take(replace(agreed(0.010), own_s=0.060), 0.01, 0.0)
    watch.answered(found=False, odd=False)
    watch.hear(watch.note)
    assert watch.length == SOON
    assert window(watch, 0.060) == "ranks took 60.00 ms to agree instead of 10.00"


def test_what_one_rank_feels_for_nothing_is_heeded_more_and_more_rarely() -> None:
    watch, heeded = Watch(), []
    for _ in range(60):
        watch.hear(FELT)
        heeded.append(watch.length == SOON)
        window(watch, 0.010)
    assert [number for number, soon in enumerate(heeded) if soon] == [0, 2, 5, 10, 19, 36, 53]
