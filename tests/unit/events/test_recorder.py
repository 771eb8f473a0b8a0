"""What is written down of every request: how buckets travel, and what that takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hvd_compress import of
from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Slot
from hvd_compress.collectives.phases import PhaseSpans
from hvd_compress.compressors import BlockQuantizer, Cast, EFSign, PowerSGD, TopK
from hvd_compress.cost.paths import Path as Travels
from hvd_compress.engines.calls import Call
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.events.history import Event, History
from hvd_compress.events.recorder import LONGEST, EventRecorder
from hvd_compress.policies import PlanFile
from hvd_compress.policies.plan_schema import Plan, Treatment
from hvd_compress.policies.plan_settings import settings_of
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.session.session import Session
from hvd_compress.settings import Settings
from tests.brought import brought
from tests.harness import REQUESTS, backward, make_optimizer, make_parameters, on_engine
from tests.logged import events_of

PLAN = Plan(version=1, default=Treatment(compressor=settings_of(PowerSGD(2)), collective="allgather"))
FIXED = {
    "int4": Request(BlockQuantizer(4)),
    "efsign": Request(EFSign()),
    "topk": Request(TopK(0.05)),  # HVD_COMPRESS_ADAPT=0
    "dense": Request(Cast()),
    "plan": Request(Cast(), policy=PlanFile("digest", PLAN)),
    "momentum": REQUESTS["momentum-warmup"],
    **dict(brought("FIXED")),
}
STEPS = 12
"""Two windows."""


def logged(folder: Path, request: Request, ranks: int, **more: object) -> list[Event]:
    """The log of a training."""

    def body(engine: InProcessEngine) -> None:
        settings = Settings(600, 60, log=folder / "log.jsonl", **more)  # type: ignore[arg-type]
        parameters, optimizer = on_engine(engine, request, settings=settings)
        for step in range(STEPS):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        assert of(optimizer).controller is None
        optimizer._reducer.close()

    run_ranks(ranks, body)
    return events_of(folder / "log.jsonl")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", FIXED)
def test_it_holds_how_each_bucket_travels_why_and_what_that_takes(name: str, ranks: int, tmp_path: Path) -> None:
    events = logged(tmp_path, FIXED[name], ranks)
    assert {event.kind for event in events} == {"choice", "window", "metrics"}
    told = [event for event in events if event.kind == "metrics"]
    assert [(event.step, event.figures["step"]) for event in told] == [(3, 3), (11, 11)], "at the end of each window"
    assert all(event.figures["ratio"] > 0 for event in told if ranks > 1)
    loses = name != "dense"
    assert all(("relative_error" in event.figures) == loses for event in told), "it is measured where it is told"
    for number in range(3):
        own = [event for event in events if event.bucket == number]
        chosen = [event for event in own if event.kind == "choice"]
        assert chosen[0].step == 0
        assert all(event.candidate and event.compressor and event.reason for event in chosen)
        windows = [event for event in own if event.kind == "window"]
        assert [event.step for event in windows] == [3, 11]
        assert {event.candidate for event in windows} <= {event.candidate for event in chosen}
        assert all(event.measured_s > 0 for event in windows)
        assert all((event.wire_ratio > 0) == (ranks > 1) for event in windows)


def test_bytes_are_those_of_the_step(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> float:
        settings = Settings(1 << 20, 60, log=tmp_path / "log.jsonl")  # one bucket
        parameters, optimizer = on_engine(engine, FIXED["int4"], settings=settings)
        for step in range(4):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        return of(optimizer).last_step.sent_bytes / of(optimizer).last_step.dense_bytes

    sent = run_ranks(2, body)[0]
    assert [event.wire_ratio for event in events_of(tmp_path / "log.jsonl") if event.kind == "window"] == [sent]


def test_decisions_that_take_turns_are_told_once() -> None:
    """The bucket is sent in every second step, and its window says so."""
    history, layout = History(), Layout.of(10)
    recorder, turns = (
        EventRecorder([history.add], 2),
        [Decision(Cast(), Travels(name)) for name in ("dense", "alltoall")],
    )
    spans = PhaseSpans((0.0, 1.0), (1.0, 3.0), (3.0, 3.5), (Call("allreduce", "auto", layout.nbytes, 2.0),))
    for step in range(4):
        recorder.decided(step, [(layout, turns[step % 2])], ())
        recorder.exchanged(step, [turns[step % 2]], [spans if step % 2 == 0 else replace(spans, calls=())])
    told = [(event.kind, event.candidate) for event in history]
    assert told == [("choice", "dense"), ("choice", "alltoall"), ("window", "dense")]
    assert [event.wire_ratio for event in history if event.kind == "window"] == [0.5]


def test_a_decision_that_ends_a_warm_up_is_told_when_it_holds(tmp_path: Path) -> None:
    events = [event for event in logged(tmp_path, FIXED["momentum"], 2) if event.kind == "choice" and not event.bucket]
    assert [event.step for event in events] == [0, 1]
    assert events[0].reason == "warm-up of 2 steps"
    assert events[0].compressor.startswith("DenseMomentum")
    assert events[1].compressor.startswith("CompressedMomentum")


def test_scalars_are_written_as_well(tmp_path: Path) -> None:
    logged(tmp_path, FIXED["int4"], 2, tensorboard=tmp_path / "runs")
    from tests.unit.events.test_tensorboard import scalars

    found = scalars(tmp_path / "runs")
    for number in range(3):
        assert [step for step, _ in found[f"bucket {number}/measured_s"]] == [3, 11]
        assert len(found[f"bucket {number}/wire_ratio"]) == 2


def test_beside_a_controller_the_buckets_that_it_leaves_alone_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of float64 come first here, and are no business of the controller's."""
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))
    settings = Settings(600, 60, adapt=True, calibration_s=0.0, log=tmp_path / "log.jsonl")

    def body(engine: InProcessEngine) -> set[int]:
        made = make_parameters().items()
        mixed = {n: torch.nn.Parameter(p.detach().double() if n.startswith("second") else p.detach()) for n, p in made}
        optimizer = make_optimizer(mixed, Request(TopK(0.05)), lambda: engine, engine.rank, 2, settings=settings)
        for step in range(30):
            backward(mixed, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        optimizer._reducer.close()
        return {number for number, way in enumerate(of(optimizer).decisions.values()) if "float64" in way.reason}

    alone = run_ranks(2, body)[0]
    events = events_of(tmp_path / "log.jsonl")
    assert alone
    told = [event for event in events if event.kind == "choice"]
    assert {event.bucket for event in told if event.reason == "float64 gradients are not compressed"} == alone
    assert {event.bucket for event in events if event.kind == "window"} == {0, 1, 2}


def test_buckets_that_are_cut_anew_are_told_anew(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        settings = Settings(600, 60, log=tmp_path / "log.jsonl")
        slots = {name: Slot((8,), torch.float32) for name in "abc"}
        session = Session(slots, Request(EFSign()), settings, lambda: engine)
        session.open(list("abc"))
        for names in ("ab", "c"), ("ab", "c"), ("a", "bc"):
            layouts = [Layout(tuple(group), ((8,),) * len(group)) for group in names]
            session.set_buckets(layouts, {"cpu": torch.device("cpu")})
            for number, layout in enumerate(layouts):
                session.submit(number, torch.ones(layout.numel))
            session.end_step()
        session.close()

    run_ranks(2, body)
    told = [(event.step, event.bucket) for event in events_of(tmp_path / "log.jsonl") if event.kind == "choice"]
    assert told == [(0, 0), (0, 1), (2, 0), (2, 1)]


def test_windows_grow_longer_up_to_a_bound() -> None:
    history = History()
    recorder, decision = EventRecorder([history.add], 2), Decision(Cast(), Travels("dense"))
    recorder.decided(0, [(Layout.of(10), decision)], ())
    spans = PhaseSpans((0.0, 1.0), (1.0, 3.0), (3.0, 3.5), (Call("allreduce", "auto", 20, 2.0),))
    for step in range(400):
        recorder.exchanged(step, [decision], [spans])
        wanted = recorder.end_step(step, lambda: {})
        assert wanted == (step + 2 in (4, 12, 28, 60, 124, 188, 252, 316, 380)), "for the last step of a window"
    windows = [event for event in history if event.kind == "window"]
    ends = [event.step + 1 for event in windows]
    lengths = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    assert lengths == [4, 8, 16, 32, 64, 64, 64, 64, 64]
    assert max(lengths) == LONGEST
    assert {(event.measured_s, event.wire_ratio) for event in windows} == {(3.5, 0.5)}


def test_where_nothing_is_written_nothing_is_recorded() -> None:
    def body(engine: InProcessEngine) -> object:
        parameters, optimizer = on_engine(engine, FIXED["int4"])
        backward(parameters, engine.rank, 0)
        optimizer.step()
        return optimizer._reducer.session.reporting._observers._recorder

    assert run_ranks(2, body) == [None, None]
