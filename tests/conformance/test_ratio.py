"""Whole steps in which the ratio is left to the controller, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hvd_compress.compressors import TopK
from hvd_compress.controller.controller import Controller
from hvd_compress.controller.goal import AutoRatio
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.front.optimizer.optimizer import ReducingOptimizer
from hvd_compress.request.request import Request
from hvd_compress.schemes import Observed
from hvd_compress.settings import Settings
from tests.harness import backward, flat_gradient, flat_residual, gradient, make_optimizer, make_parameters, on_engine
from tests.played import LANES, lane_maker

STEPS = 40
SHAPES = {"weight": (60, 200), "bias": (200,), "other": (90, 100)}
SETTINGS = Settings(fusion_threshold_bytes=50_000, timeout_s=60, adapt=True, calibration_s=0.0)  # two buckets

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def own_curves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))


def request(goal: AutoRatio) -> Request:
    return Request(TopK(goal.start), ratio=goal)


def prepared(engine: InProcessEngine, goal: AutoRatio, **arguments: object):
    parameters = make_parameters(SHAPES)
    settings = arguments.pop("settings", SETTINGS)
    return parameters, make_optimizer(
        parameters, request(goal), lambda: engine, engine.rank, engine.world_size, settings=settings, **arguments
    )


def given(parameters, rank: int, step: int) -> torch.Tensor:
    return torch.cat([gradient(name, tuple(p.shape), rank, step).reshape(-1) for name, p in parameters.items()])


def ratios(optimizer: ReducingOptimizer) -> tuple[float, ...]:
    return tuple(decision.ratio for decision in optimizer.decisions.values())


def test_ranks_choose_the_same_ratios_and_nothing_is_lost(tmp_path: Path) -> None:
    """A wish for much gain moves the ratio away from where it began; what was not sent is still there."""
    goal = AutoRatio(0.6, low=0.002, high=0.9)

    def body(engine: InProcessEngine):
        settings = Settings(50_000, 60, adapt=True, calibration_s=0.0, log=tmp_path / "log.jsonl")
        parameters, optimizer = prepared(engine, goal, settings=settings)
        came, used = torch.zeros_like(given(parameters, engine.rank, 0)), []
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            came += flat_gradient(parameters)
            used.append(ratios(optimizer))
            with optimizer.skip_synchronize():
                optimizer.step()
        total = sum(given(parameters, engine.rank, step) for step in range(STEPS))
        events = [event.to_json() for event in optimizer.controller.history]
        return came, total, flat_residual(optimizer, parameters), used, events

    ranks = run_ranks(3, body)
    assert all(rank[3] == ranks[0][3] and rank[4] == ranks[0][4] for rank in ranks)
    total, left = sum(rank[1] for rank in ranks) / 3, sum(rank[2] for rank in ranks) / 3
    torch.testing.assert_close(ranks[0][0] + left, total, rtol=1e-4, atol=1e-3)
    compressed = {ratio for step in ranks[0][3] for ratio in step if ratio < 1}
    assert compressed
    assert min(compressed) > goal.start
    chosen = [event for event in ranks[0][4] if event["kind"] == "ratio"]
    assert chosen
    assert all(event["gain"] >= 0.6 and event["reason"] for event in chosen)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert log == ranks[0][4]


def test_gradients_that_are_not_finite_delay_the_choice() -> None:
    """As the first steps with a loss scale that is too large: gains are known with the first that can be used."""

    def body(engine: InProcessEngine):
        parameters, optimizer = prepared(engine, AutoRatio())
        for step in range(4):
            optimizer.zero_grad()
            if engine.rank == 1 and step < 2:
                (parameters["weight"].sum() * float("inf")).backward()
            else:
                backward(parameters, engine.rank, step)
            optimizer.synchronize()
        return [event.step for event in optimizer.controller.history if event.kind == "ratio"], ratios(optimizer)

    ranks = run_ranks(2, body)
    assert ranks[0] == ranks[1]
    assert set(ranks[0][0]) == {2}


@pytest.mark.parametrize("kind", LANES)
def test_on_a_device_with_streams_the_same_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The look lies between the moments for which the streams wait: else it would see poison (tests/played.py)."""

    def body(engine: InProcessEngine, **lanes: object):
        parameters, optimizer = prepared(engine, AutoRatio(0.5), **lanes)
        backward(parameters, engine.rank, 0)
        optimizer.synchronize()
        return [(e.ratio, e.gain) for e in optimizer.controller.history if e.kind == "ratio"]

    expected = run_ranks(2, body)
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path / "fresh"))  # curves of the first run may not fit the second
    assert run_ranks(2, lambda engine: body(engine, make_lane=lane_maker(LANES[kind]))) == expected
    assert len(expected[0]) == 2


def test_one_rank_sends_nothing_and_so_compresses_nothing() -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = prepared(engine, AutoRatio())
        backward(parameters, 0, 0)
        optimizer.synchronize()
        return flat_gradient(parameters), given(parameters, 0, 0), ratios(optimizer), optimizer.controller

    ((came, gave, used, controller),) = run_ranks(1, body)
    torch.testing.assert_close(came, gave, rtol=0, atol=0)
    assert set(used) == {1.0}
    assert controller is None


def test_a_fixed_choice_takes_the_ratio_in_the_middle() -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, request(AutoRatio(low=0.01, high=0.09)))
        backward(parameters, engine.rank, 0)
        optimizer.step()
        return ratios(optimizer), optimizer.controller

    for used, controller in run_ranks(2, body):
        assert used == pytest.approx((0.03,) * len(used))
        assert controller is None


def test_what_looking_takes_is_not_charged_to_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the way that is in use when gains are looked at would seem slow."""
    encode, decode, record, seen = Observed.encode, Observed.decode, Controller.record, []

    def long_look(call, name: str):
        def looked(self: Observed):
            result = call(self)
            setattr(self, name, 1000.0)
            return result

        return looked

    monkeypatch.setattr(Observed, "encode", long_look(encode, "before_s"))
    monkeypatch.setattr(Observed, "decode", long_look(decode, "after_s"))
    monkeypatch.setattr(
        Controller,
        "record",
        lambda self, timings, *more: (seen.append((timings, more[-1])), record(self, timings, *more)),
    )

    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = prepared(engine, AutoRatio())
        for step in range(2):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()

    run_ranks(2, body)
    looked_at = [(timing, look) for timings, look in seen if look is not None for timing in timings]
    assert looked_at
    for timing, look in looked_at:
        assert timing.compress_s < -900
        assert timing.decompress_s < -900
        assert look.seconds > 3000  # two buckets
