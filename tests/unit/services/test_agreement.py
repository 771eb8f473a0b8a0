"""What ranks make of the times that they tell each other."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from hvd_compress.collectives import ProbeReport
from hvd_compress.collectives.phases import PhaseSpans
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.feedback.states import BucketState
from hvd_compress.services.agreement import LONGEST, WINDOW, Agreed, Agreement, kernels_s, phases, window
from hvd_compress.services.base import BucketMetrics, StepMoments

AHEAD_S = (0.0, 100.0, -7.0)
"""How far the clock of each rank is ahead."""


def metrics(clock_s: float, began_s: float, ended_s: float, compress_s: float = 0.1, leads: bool = True):
    spans = PhaseSpans((0.0, compress_s), (clock_s + began_s, clock_s + ended_s), (0.0, 0.2), ())
    return BucketMetrics(spans, ProbeReport(on_critical_path=leads), BucketState())


def moments(clock_s: float, whole_s: float, exchanging_s: float, waited_s: float) -> StepMoments:
    ended_s = clock_s + 50.0
    return StepMoments(ended_s - whole_s, ended_s - exchanging_s, ended_s - waited_s, ended_s)


def compared(record: Callable[[Agreement, int, float], object], ranks: int = 3, told: bool = False) -> list[Agreed]:
    def body(engine: InProcessEngine) -> Agreed:
        agreement = Agreement()
        record(agreement, engine.rank, AHEAD_S[engine.rank])

        def launch(call: Callable[[Engine], object], label: str, measuring_s: float = 0.0) -> Callable[[], object]:
            assert label == "step 5, comparing times"
            found = call(engine)
            return lambda: found

        agreement.begin(launch, 5, [float(engine.rank)] if told else ())  # type: ignore[arg-type]
        assert agreement.under_way
        assert not agreement.ready(5)
        assert agreement.ready(6)
        assert agreement.recorded == 0
        return agreement.take()

    return run_ranks(ranks, body)


def test_a_step_is_the_mean_and_exchanges_are_of_the_rank_that_waited_for_nobody() -> None:
    first, *others = compared(
        lambda agreement, rank, clock: agreement.record(moments(clock, 1.0 + rank, 0.5 + rank, 0.2 + rank), [])
    )
    assert others == [first, first]
    (times,) = first.steps
    assert (times.whole_s, times.exchanging_s, times.waited_s) == pytest.approx((2.0, 0.5, 0.2))


def test_what_exchanges_take_is_that_of_the_rank_which_waited_for_nobody() -> None:
    """Rank 0 comes 2 s late in one, rank 1 in another; each takes 0.25 s from then on."""

    def record(agreement: Agreement, rank: int, clock: float) -> None:
        for late in (0, 1, 2):
            began = 20.0 + 10.0 * late + (2.0 if rank == late else 0.0)
            agreement.record(moments(clock, 1.0, 0.5, 0.2), [metrics(clock, began, 22.25 + 10.0 * late)])

    first, *others = compared(record)
    assert others == [first, first]
    assert [times.summed_s for times in first.steps] == pytest.approx([0.3 + 0.25] * 3)


def test_compression_that_nobody_waits_for_does_not_count() -> None:
    """As that of all ranks but the root, with STAR."""
    assert phases(metrics(7.0, 1.0, 1.25)) == (0.1, 8.0, 8.25, 0.2)
    waited_by_none = metrics(7.0, 1.0, 1.25, compress_s=3.0, leads=False)
    assert math.isnan(phases(waited_by_none)[0])
    assert kernels_s(waited_by_none) == 0.2
    own = compared(lambda agreement, rank, clock: agreement.record(moments(0.0, 1.0, 0.5, 0.2), [waited_by_none]))
    assert [times.summed_s for times in own[0].steps] == pytest.approx([0.2 + 0.25])


def test_policies_tell_what_they_like() -> None:
    for agreed in compared(lambda agreement, rank, clock: None, told=True):
        assert agreed == Agreed((), ((0.0,), (1.0,), (2.0,)))


def test_what_was_recorded_can_be_forgotten() -> None:
    agreement = Agreement()
    agreement.record(moments(0.0, 1.0, 0.5, 0.2), [])
    agreement.drop()
    assert agreement.recorded == 0


def test_short_steps_are_compared_less_often() -> None:
    assert window(1.0) == WINDOW
    assert window(0.05) == 10
    assert window(0.0) == LONGEST
