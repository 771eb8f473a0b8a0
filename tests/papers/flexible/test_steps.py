"""Whole steps of Compression.flexible(): ratios and paths are chosen alike on all ranks, and nothing is lost."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hvd_compress import of
from hvd_compress.collectives import Observed
from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.papers.flexible.resumed import loaded
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import backward, flat_gradient, flat_residual, gradient, make_optimizer, make_parameters, on_engine
from tests.logged import events_of
from tests.played import LANES, PlayedLanes

STEPS = 60
SHAPES = {"weight": (60, 200), "bias": (200,), "other": (90, 100)}

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def own_curves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))


@pytest.fixture(autouse=True)
def no_kernel_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is held still lets dense seem as fast as any: here it is not."""
    from hvd_compress.policies.prices import Prices

    by_path = Prices.by_path

    def dear(self: Prices, found, layout):  # type: ignore[no-untyped-def]
        collectives = list(found)
        taken = by_path(self, collectives, layout)
        sizes = {s.path: sum(stage.size for stage in s.stages(layout, self.curves.world_size)) for s in collectives}
        return {path: 1e-3 + 1e-6 * sizes[path] for path in taken}

    monkeypatch.setattr(Prices, "by_path", dear)


def prepared(engine: InProcessEngine, request: Request, **arguments: object):
    parameters = make_parameters(SHAPES)
    settings = arguments.pop("settings", Settings(50_000, 60, adapt=True, calibration_s=0.0))  # two buckets
    return parameters, make_optimizer(
        parameters, request, lambda: engine, engine.rank, engine.world_size, settings=settings, **arguments
    )


def given(parameters, rank: int, step: int) -> torch.Tensor:
    return torch.cat([gradient(name, tuple(p.shape), rank, step).reshape(-1) for name, p in parameters.items()])


def ratios(optimizer: ReducingOptimizer) -> tuple[float, ...]:
    return tuple(decision.ratio for decision in of(optimizer).decisions.values())


def test_ranks_choose_the_same_ratios_and_nothing_is_lost(tmp_path: Path) -> None:
    def body(engine: InProcessEngine):
        settings = Settings(50_000, 60, adapt=True, calibration_s=0.0, log=tmp_path / "log.jsonl")
        parameters, optimizer = prepared(engine, Compression.flexible(0.002, 0.5), settings=settings)
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
        events = [event.to_json() for event in of(optimizer).controller.history]
        optimizer._reducer.close()
        return came, total, flat_residual(optimizer, parameters), used, events

    ranks = run_ranks(3, body)
    assert all(rank[3] == ranks[0][3] and rank[4] == ranks[0][4] for rank in ranks)
    total, left = sum(rank[1] for rank in ranks) / 3, sum(rank[2] for rank in ranks) / 3
    torch.testing.assert_close(ranks[0][0] + left, total, rtol=1e-4, atol=1e-3)
    chosen = [event for event in ranks[0][4] if event["kind"] == "ratio"]
    assert {event["bucket"] for event in chosen} == {0, 1}
    assert all(0.002 <= event["ratio"] <= 0.5 and 0 < event["gain"] <= 1 for event in chosen)
    assert all("the knee: gain" in event["reason"] for event in chosen)
    assert len(set(ranks[0][3])) > 1, "it has left the ratio in the middle"
    told = [event for event in events_of(tmp_path / "log.jsonl") if event.kind not in ("window", "metrics")]
    assert [json.dumps(event.to_json()) for event in told] == [json.dumps(event) for event in ranks[0][4]]


def test_gradients_that_are_not_finite_delay_the_choice() -> None:
    """As the first steps with a loss scale that is too large: gains are known with the first that can be used."""

    def body(engine: InProcessEngine):
        parameters, optimizer = prepared(engine, Compression.flexible())
        for step in range(8):
            optimizer.zero_grad()
            if engine.rank == 1 and step < 4:
                (parameters["weight"].sum() * float("inf")).backward()
            else:
                backward(parameters, engine.rank, step)
            optimizer.synchronize()
        return [event.step for event in of(optimizer).controller.history if event.kind == "ratio"], ratios(optimizer)

    ranks = run_ranks(2, body)
    assert ranks[0] == ranks[1]
    assert set(ranks[0][0]) == {5}


@pytest.mark.parametrize("kind", LANES)
def test_on_a_device_with_streams_the_same_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The look lies between the moments for which the streams wait: else it would see poison (tests/played.py)."""

    def body(engine: InProcessEngine, **lanes: object):
        parameters, optimizer = prepared(engine, Compression.flexible(), **lanes)
        for step in range(4):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
        return [(e.ratio, e.gain) for e in of(optimizer).controller.history if e.kind == "ratio"]

    expected = run_ranks(2, body)
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path / "fresh"))  # curves of the first run may not fit the second
    assert run_ranks(2, lambda engine: body(engine, lanes=PlayedLanes(LANES[kind]))) == expected
    assert len(expected[0]) == 2


@pytest.fixture
def dense_is_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    from hvd_compress.policies.prices import Prices

    def cheap(self: Prices, found, layout):  # type: ignore[no-untyped-def]
        return {collective.path: 1.0 if collective.compressor.compresses else 1e-9 for collective in found}

    monkeypatch.setattr(Prices, "by_path", cheap)


@pytest.mark.usefixtures("dense_is_the_fastest")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_compression_gradients_travel_as_the_engine_can(dtype: torch.dtype) -> None:
    """Where it has no sums of 16 bits, by all-to-all."""

    def body(engine: InProcessEngine) -> tuple[set[str], bool]:
        engine.capabilities = replace(engine.capabilities, sum_dtypes=(torch.float32,))
        weight = torch.nn.Parameter(torch.zeros(4000, dtype=dtype))
        settings = Settings(10**6, 60, adapt=True, calibration_s=0.0)
        arguments = (Compression.flexible(), lambda: engine, engine.rank, engine.world_size)
        optimizer = make_optimizer({"w": weight}, *arguments, settings=settings)
        for step in range(8):
            optimizer.zero_grad()
            (weight * gradient("w", (4000,), engine.rank, step).to(dtype)).sum().backward()
            optimizer.step()
        decisions = of(optimizer).decisions.values()
        return {str(d.path) for d in decisions}, any(d.compressor.compresses for d in decisions)

    path = "dense" if dtype == torch.float32 else "alltoall"
    assert run_ranks(2, body) == [({path}, False)] * 2


def test_what_kernels_take_is_noted_of_what_a_step_travelled_by() -> None:
    """Times come late: by then the next ratio and path may be chosen. Arithmetic begins with STAR, with three ranks."""

    def body(engine: InProcessEngine) -> list[tuple[set[tuple[str, float]], set[tuple[str, float]]]]:
        parameters, optimizer = prepared(engine, Compression.flexible(0.002, 0.5))
        used: dict[int, list[tuple[str, float]]] = {}
        for step in range(40):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
            for number, d in enumerate(optimizer._reducer.session.buckets.every):
                used.setdefault(number, []).append((d.decision.collective, d.decision.ratio))
            if step == 0:
                first = {each.collective for each in of(optimizer).decisions.values()}
        assert first == {"star"}
        found = []
        for number, bucket in optimizer._reducer.session.policy._buckets.items():
            noted = {(path, ratio) for (_, path), known in bucket.kernels._measured.items() for ratio in known}
            found.append((noted, {("star", Compression.flexible(0.002, 0.5).policy.start), *used[number]}))
        return found

    for buckets in run_ranks(3, body):
        for noted, used in buckets:
            assert noted <= used
            assert len(noted) > 1


def test_what_is_still_looked_for_is_no_plan(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> bool:
        parameters, optimizer = prepared(engine, Compression.flexible())
        for step in range(6):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
            if step == 0:
                with pytest.raises(UsageError):
                    of(optimizer).save_plan(tmp_path / f"{engine.rank}.json")
        of(optimizer).save_plan(tmp_path / f"{engine.rank}.json")
        return True

    assert run_ranks(2, body) == [True, True]


def test_without_measurements_the_ratio_is_the_one_in_the_middle() -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, Compression.flexible(0.01, 0.09))
        backward(parameters, engine.rank, 0)
        optimizer.step()
        return ratios(optimizer), of(optimizer).controller

    for used, controller in run_ranks(2, body):
        assert used == pytest.approx((0.03,) * len(used))
        assert controller is None


def test_what_looking_takes_is_not_charged_to_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the way that is in use when gains are looked at would seem slow."""
    encode, decode = Observed.encode, Observed.decode

    def long_look(call, name: str):  # type: ignore[no-untyped-def]
        def looked(self: Observed):
            result = call(self)
            setattr(self, name, 1000.0)
            return result

        return looked

    monkeypatch.setattr(Observed, "encode", long_look(encode, "before_s"))
    monkeypatch.setattr(Observed, "decode", long_look(decode, "after_s"))

    def body(engine: InProcessEngine) -> bool:
        parameters, optimizer = prepared(engine, Compression.flexible())
        for step in range(4):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
        policy = optimizer._reducer.session.policy
        return all(
            min(k for known in b.kernels._measured.values() for k in known.values()) < -1900
            for b in policy._buckets.values()
        )

    assert all(run_ranks(2, body))


def test_who_goes_on_with_a_checkpoint_travels_as_before_and_tries_nothing() -> None:
    """But where buckets are others, or the candidates; then gains are looked at anew."""

    def body(engine: InProcessEngine) -> list[list[tuple[str, bool]]]:
        request = Compression.flexible(0.002, 0.5)
        parameters, optimizer = prepared(engine, request)
        train_on(parameters, optimizer, engine, range(40))
        state, ways = optimizer.state_dict(), [ways_of(optimizer)]
        assert json.loads(state["hvd_compress"]["choice"])["policy"] == "flexible"
        others = {"as before": request, "other candidates": Compression.flexible(0.01, 0.1)}
        for other in others.values():
            parameters, optimizer = prepared(engine, other)
            optimizer.load_state_dict(copy.deepcopy(state))
            train_on(parameters, optimizer, engine, range(40, 42))
            ways.append(ways_of(optimizer))
        return ways

    before, again, other = run_ranks(3, body)[0]
    assert [sent for sent, _ in again] == [sent for sent, _ in before]
    assert not any(is_trial for _, is_trial in again)
    assert all(is_trial for _, is_trial in other)


def train_on(parameters, optimizer: ReducingOptimizer, engine: InProcessEngine, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        backward(parameters, engine.rank, step)
        optimizer.step()


def ways_of(optimizer: ReducingOptimizer) -> list[tuple[str, bool]]:
    return [(f"{each.compressor} by {each.path}", each.is_trial) for each in of(optimizer).decisions.values()]


def test_a_checkpoint_of_another_compression_says_what_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = prepared(engine, Compression.flexible())
        train_on(parameters, optimizer, engine, range(40))
        state, fixed = optimizer.state_dict(), Settings(50_000, 60)
        for request in (Compression.powersgd(), Compression.int4()):
            parameters, optimizer = prepared(engine, request, settings=fixed)
            optimizer.load_state_dict(copy.deepcopy(state))
            train_on(parameters, optimizer, engine, range(40, 43))
            state = optimizer.state_dict()

    run_ranks(3, body)
    told = [record.getMessage() for record in caplog.records if "checkpoint" in record.getMessage()]
    assert len(told) == 2
    assert "what the checkpoint says was chosen is of another compression (flexible), and is not used" in told[0]
    assert "this one has no use for what that remembers: powersgd" in told[1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"gains": [[0, [0.5, "a"]]]}, {"gains": [[-1, [0.5]]]}, {"gains": 3}, {"step_s": 0.0}, {"plan": {}},
        {"gains": [[0, [float("inf")]]]},
    ],
)  # fmt: skip
def test_a_choice_that_is_none_is_refused(wrong: dict[str, object]) -> None:
    said = {"policy": "flexible", "plan": {"version": 1, "world_size": 2, "buckets": []}, "gains": [], "step_s": 0.1}
    with pytest.raises(ConfigError, match="the choice in this state of a compression is not valid"):
        loaded(json.dumps(said | wrong), 1)
