"""Whole steps of requests that leave something open: what a policy may change, and what it must not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hvd_compress import of
from hvd_compress.compression import Compression
from hvd_compress.compressors import Cast, TopK
from hvd_compress.cost import paths
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.brought import brought
from tests.harness import backward, flat_gradient, flat_residual, gradient, make_optimizer, on_engine

AUTO = Request(TopK(0.05))
STEPS = 40

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def own_curves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))


def settings(log: Path | None = None, adapt: bool = True) -> Settings:
    return Settings(600, 60, adapt=adapt, calibration_s=0.0, log=log)


OPEN = {"topk": AUTO, "artopk": Request(TopK(0.05), "artopk"), "auto": Compression.auto()}
MORE = {**OPEN, "int4": Compression.int4(), **dict(brought("ADAPTIVE"))}


def train(engine: InProcessEngine, request: Request, steps: int, **more: object) -> list[dict[str, object]]:
    parameters, optimizer = on_engine(engine, request, settings=settings(**more))  # type: ignore[arg-type]
    for step in range(steps):
        optimizer.zero_grad()
        backward(parameters, engine.rank, step)
        optimizer.step()
    return [event.to_json() for event in of(optimizer).controller.history]


@pytest.mark.parametrize("name", OPEN)
def test_ranks_say_the_same_and_so_do_two_runs_where_time_is_held(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is chosen in tests would follow from how busy the machine is."""
    first = run_ranks(3, lambda engine: train(engine, OPEN[name], STEPS))
    assert first[0]
    assert first == [first[0]] * 3
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path / "fresh"))
    assert run_ranks(3, lambda engine: train(engine, OPEN[name], STEPS)) == first


@pytest.mark.parametrize("name", MORE)
def test_two_runs_that_do_not_adapt_send_the_same(name: str) -> None:
    """HVD_COMPRESS_ADAPT=0, by a clock that goes on."""

    def body(engine: InProcessEngine) -> tuple[int, list[str], torch.Tensor]:
        parameters, optimizer = on_engine(engine, MORE[name], settings=settings(adapt=False))
        used = []
        for step in range(8):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
            used += [str(decision) for decision in of(optimizer).decisions.values()]
        assert of(optimizer).controller is None
        return engine.sent_bytes, used, torch.cat([p.detach().reshape(-1) for p in parameters.values()])

    for (sent, used, values), (again, same, alike) in zip(run_ranks(3, body), run_ranks(3, body), strict=True):
        assert (sent, used) == (again, same)
        assert torch.equal(values, alike)


def test_ranks_compare_beside_a_step_and_take_it_behind_the_next() -> None:
    """So none of them waits for another."""

    def body(engine: InProcessEngine) -> tuple[list[int], int]:
        parameters, optimizer = on_engine(engine, Compression.auto(), settings=settings())
        begun, apart = {}, []
        for step in range(150):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
            policy = optimizer._reducer.session.policy
            agreement = policy._watch._agreement
            if policy.settled and agreement.under_way:
                begun.setdefault(agreement._since, step)
            elif begun and agreement._since not in dict(apart):
                apart.append((agreement._since, step - agreement._since))
        return [gap for _, gap in apart], len(begun)

    for apart, compared in run_ranks(2, body):
        assert compared > 1
        assert set(apart) == {1}


def test_what_was_left_is_sent_when_a_bucket_goes_without_compression() -> None:
    """After one compressed step the residual travels with a dense one, in fp32 to the last bit."""

    def given(parameters, rank: int, step: int) -> torch.Tensor:
        return torch.cat([gradient(name, tuple(p.shape), rank, step).reshape(-1) for name, p in parameters.items()])

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, Request(TopK(0.05), "allgather"))
        first = torch.empty(0)
        for step in range(2):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            first = flat_gradient(parameters) if step == 0 else first
            with optimizer.skip_synchronize():
                optimizer.step()
            for bucket in optimizer._reducer.session.buckets.every:
                bucket.decide(Decision(Cast(), paths.Path("dense")))
        gave = sum(given(parameters, engine.rank, step) for step in range(2))
        return first + flat_gradient(parameters), gave, flat_residual(optimizer, parameters)

    ranks = run_ranks(2, body)
    torch.testing.assert_close(ranks[0][0], (ranks[0][1] + ranks[1][1]) / 2)
    assert not any(rank[2].any() for rank in ranks)


FIXED = (Request(TopK(0.05), "star", "ring"), Request(TopK(0.05), "allgather", "bruck"), Request(Cast()))


@pytest.mark.parametrize("request_", FIXED, ids=("star-ring", "allgather-bruck", "dense"))
def test_nothing_is_chosen_where_the_request_leaves_nothing_open(request_: Request) -> None:
    """And nothing is launched but what the collective takes: no measurement, no agreement."""

    def body(engine: InProcessEngine, adapt: bool):
        parameters, optimizer = on_engine(engine, request_, settings=settings(adapt=adapt))
        for step in range(12):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
        return of(optimizer).controller, engine.sent_messages

    found = run_ranks(2, lambda engine: body(engine, adapt=True))
    assert [controller for controller, _ in found] == [None, None]
    assert found == run_ranks(2, lambda engine: body(engine, adapt=False))


@pytest.mark.parametrize("request_", MORE.values(), ids=MORE)
def test_an_empty_bucket_is_no_matter(request_: Request) -> None:
    def body(engine: InProcessEngine) -> int:
        parameters = {"weight": torch.nn.Parameter(torch.zeros(500)), "none": torch.nn.Parameter(torch.zeros(0))}
        whole = Settings(fusion_threshold_bytes=0, timeout_s=60, adapt=True, calibration_s=0.0)
        optimizer = make_optimizer(parameters, request_, lambda: engine, engine.rank, engine.world_size, settings=whole)
        for step in range(25):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
        return len(of(optimizer).decisions)

    assert run_ranks(2, body) == [2] * 2


@pytest.mark.parametrize("request_", MORE.values(), ids=MORE)
def test_one_rank_has_nothing_to_choose(request_: Request) -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, request_, settings=settings())
        backward(parameters, engine.rank, 0)
        optimizer.step()
        return of(optimizer).controller

    assert run_ranks(1, body) == [None]


def test_ranks_that_do_not_all_adapt_are_told() -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, AUTO, settings=settings(adapt=engine.rank == 0))
        backward(parameters, engine.rank, 0)
        with pytest.raises(Exception, match="HVD_COMPRESS_ADAPT"):
            optimizer.step()
        return True

    assert all(run_ranks(2, body))
