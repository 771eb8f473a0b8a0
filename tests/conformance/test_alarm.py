"""An alarm travels in the headers of payloads: all ranks hear it in the same step, or none does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import OkTopk, TopK
from hvd_compress.controller import watch
from hvd_compress.controller.network import Network
from hvd_compress.controller.report import Timing
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.feedback.states import BucketState, Residual
from hvd_compress.policies import BucketMetrics, StepMoments, adaptive
from hvd_compress.request.request import Request
from hvd_compress.schemes import AllGather, ARTopk, OkTopkAllReduce, Probe, Work
from hvd_compress.schemes.phases import PhaseSpans
from hvd_compress.settings import Settings
from tests.harness import backward, make_optimizer, make_parameters

RANKS, CHANGE, STEPS = 3, 100, 140


@pytest.mark.parametrize(
    ("scheme", "heard", "leading"),
    [
        (AllGather(TopK(0.1)), {0: 1, 1: 1, 2: 1}, {0, 1, 2}),
        (ARTopk(TopK(0.1), Path("star")), {0: 0, 1: 0, 2: 1}, {2}),  # in step 2 it is the turn of rank 2
        (ARTopk(TopK(0.1), Path("var")), {0: 1, 1: 0, 2: 0}, {0, 1, 2}),  # rank 0 holds most
        (OkTopkAllReduce(OkTopk(0.1)), {0: 1, 1: 1, 2: 1}, {0, 1, 2}),
    ],
)
def test_what_a_rank_says_is_heard_by_all_alike(
    scheme: AllGather | ARTopk | OkTopkAllReduce, heard: dict[int, int], leading: set[int]
) -> None:
    """And which ranks compress what the others wait for."""

    def body(engine: InProcessEngine, speaker: int) -> int:
        gradient = torch.arange(100.0) / (1 + engine.rank)
        layout = Layout.of(100)
        own = scheme.compressor.new_state(layout, torch.device("cpu"))
        state = BucketState(Residual(torch.zeros(100), torch.zeros(100)), dict(own))
        work = Work(gradient, layout, 2, 0, 1.0, state, probe=Probe(int(engine.rank == speaker)))
        exchange = scheme.exchange(work, engine.rank, engine.world_size)
        exchange.encode()
        exchange.communicate(engine)
        exchange.decode()
        assert exchange.report.on_critical_path == (engine.rank in leading)
        return exchange.report.flags

    for speaker, expected in heard.items():
        assert run_ranks(RANKS, lambda engine, speaker=speaker: body(engine, speaker)) == [expected] * RANKS


def train(scheme: str, slow: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch, found: float = 9.0) -> list[int]:
    """Return after which steps the network was measured, each time with factors of `found`; it has 1 at first.

    From CHANGE on exchanges take five times as long on the ranks that are `slow`.
    """
    for window in ("SHORT_WINDOW", "WINDOW"):
        monkeypatch.setattr(watch, window, 12)
    monkeypatch.setattr(watch, "WINDOW_S", 0.0)
    other = partial(Network, latency=found, transfer=found)
    monkeypatch.setattr(Network, "remeasured", lambda known, _: known if found == 1.0 else other(known.costs))
    monkeypatch.setattr(adaptive, "obtain", lambda engine, _: (Formulas(0.001, 1e-9, engine.world_size),))
    observe = adaptive.AdaptivePolicy.observe

    def played(
        self: adaptive.AdaptivePolicy, step: int, metrics: Sequence[BucketMetrics], moments: StepMoments
    ) -> None:
        seconds = 0.05 if step >= CHANGE and slow(self.rank) else 0.01
        nothing = (0.0, 0.0)
        spans = PhaseSpans(nothing, (0.0, seconds), nothing, ())
        observe(self, step, [replace(of, spans=spans) for of in metrics], moments)

    monkeypatch.setattr(adaptive.AdaptivePolicy, "observe", played)

    def body(engine: InProcessEngine) -> list[tuple[int, str]]:
        parameters = make_parameters()
        settings = Settings(10**6, 60, adapt=True, calibration_s=0.0)
        optimizer = make_optimizer(
            parameters, Request(TopK(0.1), scheme), lambda: engine, engine.rank, RANKS, settings=settings
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
        return [(event.step, event.kind) for event in optimizer.controller.history]

    ranks = run_ranks(RANKS, body)
    assert all(rank == ranks[0] for rank in ranks)
    return [step for step, kind in ranks[0] if kind in ("network", "noise")]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("scheme", ["star", "allgather"])
def test_a_change_is_looked_into_at_once(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = train(scheme, lambda rank: True, monkeypatch)
    assert CHANGE < measured[0] <= CHANGE + 4  # the second odd step, and a turn of all ranks


@pytest.mark.usefixtures("clock")
def test_one_rank_that_sees_what_others_do_not_is_answered_and_not_believed_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The network says what is true; ranks that would not stay together would never end."""
    measured = train("star", lambda rank: rank == 1, monkeypatch, found=1.0)
    assert len(measured) <= 4
    assert CHANGE < measured[0] <= CHANGE + 8  # two turns


def test_ranks_tell_when_their_exchanges_began_and_whose_compressing_others_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adaptive, "obtain", lambda engine, _: (Formulas(0.001, 1e-9, engine.world_size),))

    def body(engine: InProcessEngine) -> list[tuple[float, Timing, float]]:
        parameters, seen, told = make_parameters(), [], []
        settings = Settings(10**6, 60, adapt=True, calibration_s=0.0)
        optimizer = make_optimizer(
            parameters, Request(TopK(0.1), "star"), lambda: engine, engine.rank, RANKS, settings=settings
        )
        for step in range(2 * RANKS):
            began_s = perf_counter()
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
            if step == 0:
                controller = optimizer.controller
                monkeypatch.setattr(controller, "record", lambda timings, *_: told.extend(timings))
            else:
                seen.append((began_s, told[-1], perf_counter()))
        return seen

    for rank, seen in enumerate(run_ranks(RANKS, body)):
        assert [timing.leads for _, timing, _ in seen] == [step % RANKS == rank for step in range(1, 2 * RANKS)]
        for before_s, timing, after_s in seen:
            assert before_s < timing.began_s < timing.began_s + timing.communicate_s < after_s
