"""What ranks make of what they tell each other."""

from __future__ import annotations

import dataclasses
import math

import pytest

from hvd_compress.controller.report import Agreed, Look, Timing, Took, agree
from hvd_compress.engines.inprocess import run_ranks


def test_gains_are_the_mean_over_ranks_by_bucket() -> None:
    def body(engine):
        rank = engine.rank
        look = Look(((0.1 + rank, 0.2 + rank), (0.3,), (math.nan if rank else 0.5,)), 0.01 * rank)
        timings = [(Timing(0.1, 0.2, 0.3),) * 3] * 2
        return agree(engine, timings, step_s=1.0 + rank, look=look), engine.calls

    ranks = run_ranks(3, body)
    agreed, calls = ranks[0]
    assert agreed.gains[0] == pytest.approx((1.1, 1.2))
    assert agreed.gains[1] == pytest.approx((0.3,))
    assert math.isnan(agreed.gains[2][0])
    assert agreed.look_s == 0.02
    assert agreed.step_s == 3.0
    assert agreed.seconds == ((pytest.approx(0.6),) * 3,) * 2
    assert calls == []
    for other, _ in ranks[1:]:
        assert str(other.gains) == str(agreed.gains)
        assert other.look_s == agreed.look_s


def test_without_a_look_there_are_no_gains() -> None:
    (agreed,) = run_ranks(1, lambda engine: agree(engine, [(Timing(1.0, 1.0, 1.0),)], 1.0))
    assert agreed.gains == ()
    assert agreed.look_s == 0.0


def test_of_what_agreeing_took_the_rank_counts_that_waited_least_but_one() -> None:
    """The one that comes last finds everything there."""

    def body(engine):
        before = Took((0.001, 0.03, 0.02)[engine.rank])
        agreed = agree(engine, [(Timing(1.0, 1.0, 1.0),)], 1.0, before)
        return agreed.agree_s

    assert run_ranks(3, body) == [0.02] * 3


def test_a_collective_for_which_ranks_are_in_step_tells_what_the_network_takes() -> None:
    """To the first one a rank may come late: there the others wait for it."""

    def body(engine):
        taken = iter((3.0, 5.0))
        started = iter((7.0, 10.0))

        def note(call) -> None:
            engine.calls.append(dataclasses.replace(call, seconds=next(taken), started_s=next(started)))

        engine.note = note
        return agree(engine, [(Timing(1.0, 1.0, 1.0),)], 1.0).own

    assert run_ranks(2, body) == [Took(5.0, 10.0)] * 2


def test_an_exchange_counts_from_when_the_last_rank_came_by_one_clock() -> None:
    """Clocks are an hour apart. In turn the ranks come 0.5 s late to an exchange that takes 0.2; then kernels."""

    def body(engine):
        steps = []
        for step in range(4):
            late_s = 0.5 * (step % 2 == engine.rank)
            began_s = 3600.0 * engine.rank + 10.0 * step + late_s
            steps.append((Timing(0.01 + 0.02 * engine.rank, 0.7 - late_s, 0.05, began_s),))
        return agree(engine, steps, 1.0)

    agreed, other = run_ranks(2, body)
    assert agreed.seconds == other.seconds
    assert [seconds for (seconds,) in agreed.seconds] == pytest.approx([0.02 + 0.2 + 0.05] * 4)
    assert [seconds for (seconds,) in agreed.kernels_s] == pytest.approx([0.03 + 0.05] * 4)


def test_the_last_agreement_for_which_ranks_were_in_step_sets_the_clocks() -> None:
    """One rank is always 0.5 s late, and its clock an hour ahead: without that it would be believed half."""

    def body(engine):
        ahead_s, late_s = 3600.0 * engine.rank, 0.5 * engine.rank
        steps = [(Timing(0.0, 0.7 - late_s, 0.0, ahead_s + 10.0 * step + late_s),) for step in range(3)]
        known = [Took(), Took(0.001, ahead_s - 5.0), Took(0.001, ahead_s - 500.0)]
        return [agree(engine, steps, 1.0, took).seconds[0][0] for took in known]

    for seconds in run_ranks(2, body):
        assert seconds == pytest.approx([0.45, 0.2, 0.45])  # unknown, known, too long ago


def test_what_a_rank_compresses_that_nobody_waits_for_does_not_count() -> None:
    def body(engine):
        root = engine.rank == 1
        return agree(engine, [(Timing(0.3 if root else 0.1, 0.2, 0.0, leads=root),)], 1.0)

    for agreed in run_ranks(3, body):
        assert agreed.seconds[0] == pytest.approx((0.5,))
        assert agreed.kernels_s[0] == pytest.approx((0.3,))


def test_with_several_buckets_kernels_run_beside_collectives() -> None:
    """All but those of the first and the last one, together about one bucket's."""
    one = Agreed(((5.0,), (7.0,)), ((2.0,), (2.0,)), 10.0, 0.0, Took())
    four = Agreed(((5.0,) * 4,), ((2.0,) * 4,), 30.0, 0.0, Took())
    assert (one.span_s, four.span_s) == (6.0, 4 * 3.0 + 2.0)
