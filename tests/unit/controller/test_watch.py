"""Windows: how long they are, after which of them more is to be known soon, and whose alarms are heeded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_compress.controller.alarm import DEAF, USUAL_STEPS
from hvd_compress.controller.policy import Policy
from hvd_compress.controller.report import Agreed, Took
from hvd_compress.controller.watch import (
    COMPARED,
    EXCHANGED,
    FELT,
    SHORT_WINDOW,
    WINDOW,
    Watch,
)


def watch_that_knows() -> Watch:
    """It has seen some windows."""
    watch = Watch()
    for _ in range(4):
        window(watch, 1.0)
    return watch


def window(watch: Watch, agree_s: float, settled: bool = True) -> str:
    """Let a window, or a round, end in which nothing is odd; return what is said of the agreement before."""
    watch.ask([], settled)
    said = watch.take(agreed(agree_s), 0.01)
    if settled:
        watch.looked_at(odd=False)
    return said


def agreed(agree_s: float, step_s: float = 0.1) -> Agreed:
    return Agreed(((0.01,),), ((0.0,),), step_s, agree_s, Took(agree_s))


@pytest.mark.parametrize(("step_s", "steps"), [(1.0, WINDOW), (0.1, WINDOW), (0.01, 50), (0.0, WINDOW)])
def test_where_steps_are_short_windows_are_of_half_a_second(step_s: float, steps: int) -> None:
    watch = watch_that_knows()
    watch.take(agreed(1.0, step_s), 0.01)
    assert watch.length == steps


def test_a_window_and_a_round_leave_a_change_that_only_agreements_tell_within_thirty_steps() -> None:
    agreeing = 2  # launched behind the exchanges of a step, taken after the next
    turn = 4  # of STAR's roots, until one of them tells what it felt beside a step
    assert WINDOW + agreeing + turn + Policy().later.steps <= 30


def test_until_it_is_known_what_is_usual_windows_are_short() -> None:
    watch, lengths = Watch(), []
    for _ in range(5):
        lengths.append(watch.length)
        window(watch, 1.0)
    assert lengths == [SHORT_WINDOW] * 2 + [WINDOW] * 3
    watch.restart()
    assert watch.length == SHORT_WINDOW


def test_what_is_odd_is_looked_at_again_soon() -> None:
    watch = watch_that_knows()
    watch.take(agreed(1.0), 0.01)
    watch.looked_at(odd=False)
    assert watch.length == WINDOW
    watch.looked_at(odd=True)
    assert watch.length == SHORT_WINDOW


def test_an_odd_agreement_is_followed_by_one_that_comes_soon() -> None:
    watch, said = Watch(), []
    for agree_s in (0.0, 0.005, 0.005, 0.005, 0.02):
        said.append(window(watch, agree_s))
    assert said == [""] * 5
    assert watch.length == SHORT_WINDOW


def test_what_agreeing_took_for_no_reason_is_noise() -> None:
    watch = Watch()
    for agree_s in (0.0, 0.005, 0.005, 0.005, 0.04):
        said = window(watch, agree_s)
    assert said == "ranks took 40.00 ms to agree instead of 5.00"
    watch.was_noise(agreeing=True)
    assert watch.take(agreed(0.04), 0.01) == ""


def test_what_agreements_take_now_and_then_is_learned_as_noise() -> None:
    """Some take 1 ms, some 20 ms: the network is measured at most twice for that."""
    watch, said = Watch(), []
    for settled, agree_s in [(False, 0.0), (False, 0.001), (True, 0.001), *[(True, 0.020), (False, 0.001)] * 10]:
        if words := window(watch, agree_s, settled):
            said.append(words)
            watch.was_noise(agreeing=True)
    assert said[0] == "ranks took 20.00 ms to agree instead of 1.00"
    assert len(said) <= 2
    assert not watch._latency.odd


def test_for_some_steps_after_a_false_alarm_none_is_heeded() -> None:
    watch = watch_that_knows()
    watch.hear(EXCHANGED)
    assert watch.heard == "a rank's exchanges took another time"
    watch.was_noise(agreeing=False)
    for _ in range(DEAF):
        assert watch.heard == ""
        watch.hear(EXCHANGED)
    assert watch.heard != ""


def test_after_a_change_alarms_are_heeded() -> None:
    watch = watch_that_knows()
    watch.hear(EXCHANGED)
    watch.was_noise(agreeing=False)
    watch.hear(EXCHANGED)
    assert watch.heard == ""
    watch.found_another()
    watch.hear(EXCHANGED)
    assert watch.heard != ""


def test_a_false_alarm_of_one_kind_leaves_ears_open_for_the_other() -> None:
    watch = watch_that_knows()
    watch.hear(EXCHANGED)
    watch.was_noise(agreeing=False)
    watch.hear(EXCHANGED | FELT)
    assert watch.heard == "a rank took another time to agree"


def test_another_choice_while_ranks_compare_makes_the_next_window_short() -> None:
    watch = watch_that_knows()
    watch.ask([], True)
    watch.take(agreed(1.0), 0.01)
    watch.restart()
    watch.looked_at(odd=False)
    assert watch.length == SHORT_WINDOW


def test_ranks_compare_the_last_steps_of_a_window_and_all_of_a_round() -> None:
    watch, steps = Watch(), list(range(WINDOW))
    assert watch.ask(steps, True) == steps[-COMPARED:]
    assert watch.ask(steps, False) == steps


def test_another_choice_has_another_usual_time() -> None:
    watch = Watch()
    for seconds in [0.1] * USUAL_STEPS + [0.4] * 2:
        watch.seen(seconds)
    assert watch.note == EXCHANGED
    watch.restart()
    assert watch.note == 0
    for seconds in [0.4] * (USUAL_STEPS + 2):
        watch.seen(seconds)
    assert watch.note == 0


def test_after_the_network_was_measured_agreements_are_learned_anew() -> None:
    watch = Watch()
    for _ in range(3):
        watch.take(agreed(0.005), 0.01)
    watch.found_another()
    assert [watch.take(agreed(0.5), 0.01) for _ in range(4)] == [""] * 4


def felt(own_s: float) -> Watch:
    """A rank for which the last agreement took as long, instead of 10 ms."""
    watch = Watch()
    for _ in range(4):
        window(watch, 0.010)
    assert watch.note == 0
    watch.ask([], True)
    watch.take(replace(agreed(0.010), own=Took(own_s)), 0.01)
    watch.looked_at(odd=False)
    return watch


@pytest.mark.parametrize(("own_s", "note"), [(0.030, 0), (0.060, FELT), (0.009, 0), (0.001, FELT)])
def test_where_no_such_alarm_is_heeded_what_is_far_odder_makes_ranks_compare_soon(own_s: float, note: int) -> None:
    watch = felt(0.030)
    watch.hear(FELT)
    watch.was_noise(agreeing=False)
    watch.hear(FELT)
    assert watch.heard == ""
    for _ in range(2):
        window(watch, 0.010)
    watch.ask([], True)
    watch.take(replace(agreed(0.010), own=Took(own_s)), 0.01)
    watch.looked_at(odd=False)
    assert (watch.note, watch.length) == (note, WINDOW)
    watch.hear(watch.note)
    assert (watch.heard, watch.length) == ("", SHORT_WINDOW if note else WINDOW)


@pytest.mark.parametrize("own_s", [0.060, 0.001])
def test_a_rank_that_felt_an_odd_agreement_has_the_network_measured(own_s: float) -> None:
    """All would know what it took only after the next one."""
    watch = felt(own_s)
    assert watch.note == FELT
    watch.hear(watch.note)
    assert watch.heard == "a rank took another time to agree"


def test_what_was_felt_and_denied_is_no_news_when_all_know_of_it() -> None:
    watch = felt(0.060)
    watch.hear(FELT)
    watch.was_noise(agreeing=False)
    assert (watch.note, watch.heard) == (0, "")
    assert window(watch, 0.060) == ""
    assert window(watch, 0.060) == ""  # now it is known to be noise
    watch = felt(0.060)
    assert window(watch, 0.060) == "ranks took 60.00 ms to agree instead of 10.00"


def test_what_was_felt_and_is_told_in_the_same_step_is_no_reason_to_doubt_the_next_one() -> None:
    watch = felt(0.060)
    watch.hear(FELT)
    assert window(watch, 0.060) == "ranks took 60.00 ms to agree instead of 10.00"
    assert watch.heard == ""
    watch.was_noise(agreeing=True)
    assert window(watch, 0.300) == "ranks took 300.00 ms to agree instead of 10.00"


def test_a_rank_whose_alarm_was_noise_learns_anew_what_is_usual() -> None:
    watch = Watch()
    for seconds in [0.1] * USUAL_STEPS + [0.2] * 2:
        watch.seen(seconds)
    assert watch.note == EXCHANGED
    watch.hear(EXCHANGED)
    watch.was_noise(agreeing=False)
    for seconds in [0.2] * (USUAL_STEPS + 2):
        assert watch.note == 0
        watch.seen(seconds)
