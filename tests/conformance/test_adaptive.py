"""Whole steps under the controller: what it may change, and what it must not."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from hvd_compress.compressors import Cast, TopK
from hvd_compress.controller import watch
from hvd_compress.controller.controller import Suspicion
from hvd_compress.controller.policy import Policy, Round
from hvd_compress.controller.report import Agreed
from hvd_compress.cost import paths
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.policies import adaptive
from hvd_compress.request.request import Request
from hvd_compress.schemes import parse
from hvd_compress.settings import Settings
from tests.harness import backward, flat_gradient, flat_residual, gradient, make_optimizer, on_engine

AUTO = Request(TopK(0.05))
STEPS = 80

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def own_curves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))


def settings(log: Path | None = None) -> Settings:
    return Settings(600, 60, adapt=True, calibration_s=0.0, log=log)


def test_ranks_choose_alike_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways are tried, dense among them: what was given equals what came back and what is left, in sum."""
    monkeypatch.setattr(adaptive, "Policy", partial(Policy, Round(margin=1e6, most=16, steps=16)))

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, AUTO, settings=settings(tmp_path / "log.jsonl"))
        came, used, bits = torch.zeros_like(_given(parameters, engine.rank, 0)), [], []
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            came += flat_gradient(parameters)
            bits.append(flat_gradient(parameters))
            used.append([str(d.path) for d in optimizer.decisions.values()])
            with optimizer.skip_synchronize():
                optimizer.step()
        given = sum(_given(parameters, engine.rank, step) for step in range(STEPS))
        kinds = {event.kind for event in optimizer.controller.history}
        return came, given, flat_residual(optimizer, parameters), used, torch.stack(bits), kinds

    ranks = run_ranks(3, body)
    assert all(rank[3] == ranks[0][3] for rank in ranks)
    assert all(torch.equal(rank[4], ranks[0][4]) for rank in ranks)
    given, left = sum(rank[1] for rank in ranks) / 3, sum(rank[2] for rank in ranks) / 3
    torch.testing.assert_close(ranks[0][0] + left, given, rtol=1e-4, atol=1e-3)
    tried = {way for step in ranks[0][3] for way in step}
    assert {"allgather", "star", "dense"} == {parse(way).scheme for way in tried}
    assert {"begin", "choice", "window"} <= ranks[0][5]
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) > 3


def test_times_are_the_same_in_every_run_on_the_clock_that_tests_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what the controller chooses in these tests would follow from how busy the machine is."""

    def body(engine: InProcessEngine) -> list[dict[str, object]]:
        parameters, optimizer = on_engine(engine, AUTO, settings=settings())
        for step in range(20):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
        return [event.to_json() for event in optimizer.controller.history]

    first = run_ranks(3, body)
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path / "fresh"))
    assert run_ranks(3, body) == first
    assert any(event["kind"] == "choice" and event["measured_s"] > 0 for event in first[0])


def test_while_a_choice_stands_ways_are_asked_for_once_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after each step: it costs the same where nothing has changed. And ranks compare beside a step."""
    monkeypatch.setattr(watch, "WINDOW_S", 0.0)

    def body(engine: InProcessEngine) -> tuple[int, int, bool, bool]:
        asked, beside = 0, False
        parameters, optimizer = on_engine(engine, Request(TopK(0.05), "star"), settings=settings())

        def train(steps: int) -> None:
            nonlocal beside
            for step in range(steps):
                optimizer.zero_grad()
                backward(parameters, engine.rank, step)
                optimizer.step()
                beside = beside or optimizer._reducer.session.policy._agreeing is not None

        train(2)
        while not optimizer.controller.settled:
            train(1)
        reasons, known = optimizer.controller.reasons, len(optimizer.controller.history)

        def counted() -> tuple[str, ...]:
            nonlocal asked
            asked += 1
            return reasons()

        monkeypatch.setattr(optimizer.controller, "reasons", counted)
        policy, take, apart = optimizer._reducer.session.policy, optimizer.controller.take, set()

        def taken(step: int, agreed: Agreed) -> Suspicion | None:
            apart.add(step - policy._since)
            return take(step, agreed)

        monkeypatch.setattr(optimizer.controller, "take", taken)
        train(60)
        windows = {event.step for event in list(optimizer.controller.history)[known:]}
        assert apart == {1}  # taken a step after the one behind whose exchanges it was launched
        return asked, len(windows), optimizer.controller.settled, beside

    for asked, windows, settled, beside in run_ranks(2, body):
        assert settled
        assert beside
        assert windows > 1
        assert asked <= windows + 1


def _given(parameters, rank: int, step: int) -> torch.Tensor:
    return torch.cat([gradient(name, tuple(p.shape), rank, step).reshape(-1) for name, p in parameters.items()])


def test_what_was_left_is_sent_when_a_bucket_goes_without_compression() -> None:
    """After one compressed step the residual travels with a dense one, in fp32 to the last bit."""

    def body(engine: InProcessEngine):
        from hvd_compress.policies.adaptive import along

        parameters, optimizer = on_engine(engine, Request(TopK(0.05), "allgather"))
        session = optimizer._reducer.session
        for step in range(2):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            first = flat_gradient(parameters) if step == 0 else first  # noqa: F821
            with optimizer.skip_synchronize():
                optimizer.step()
            for bucket in session._exchanges:
                bucket.decide(along(bucket.decision, TopK(0.05), paths.Path("dense"), "a test"))
        given = [_given(parameters, engine.rank, step) for step in range(2)]
        return first + flat_gradient(parameters), sum(given), flat_residual(optimizer, parameters)

    ranks = run_ranks(2, body)
    torch.testing.assert_close(ranks[0][0], (ranks[0][1] + ranks[1][1]) / 2)
    assert not any(rank[2].any() for rank in ranks)


FIXED = (Request(TopK(0.05), "star", "ring"), Request(TopK(0.05), "allgather", "bruck"), Request(Cast()))


@pytest.mark.parametrize("request_", FIXED, ids=("star-ring", "allgather-bruck", "dense"))
def test_nothing_is_controlled_where_the_request_leaves_nothing_open(request_: Request) -> None:
    """And nothing is launched but what the scheme takes: no calibration, no agreement."""

    def body(engine: InProcessEngine, adapt: bool):
        chosen = Settings(600, 60, adapt=adapt, calibration_s=0.0)
        parameters, optimizer = on_engine(engine, request_, settings=chosen)
        for step in range(12):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
        return optimizer.controller, engine.sent_messages

    found = run_ranks(2, lambda engine: body(engine, adapt=True))
    assert [controller for controller, _ in found] == [None, None]
    assert found == run_ranks(2, lambda engine: body(engine, adapt=False))


OPEN = (
    (Request(TopK(0.05), "star"), {"star"}),
    (Request(TopK(0.05), "var"), {"var"}),
    (Request(TopK(0.05), "allgather"), {"allgather"}),
    (Request(TopK(0.05), algorithm="ring"), {"dense", "allgather", "star", "var"}),
    (Request(TopK(0.05), "artopk", "ring"), {"star", "var"}),
)


@pytest.mark.parametrize(("request_", "schemes"), OPEN)
def test_what_is_named_stays_and_the_rest_is_chosen(request_: Request, schemes: set[str]) -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, request_, settings=settings())
        used, step = [], 0
        while step < 60 or not optimizer.controller.settled:  # buckets wait for each other between their trials
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
            used += [(d.scheme, d.algorithm) for d in optimizer.decisions.values()]
            step += 1
            assert step < 300
        return used, [str(choice.candidate) for choice in optimizer.controller.choices()]

    ranks = run_ranks(2, body)
    assert ranks[0] == ranks[1]
    used, choices = ranks[0]
    assert len(choices) == 3
    assert {scheme for scheme, _ in used} <= schemes
    assert request_.algorithm != "auto" or len(set(used)) > 1
    if request_.algorithm != "auto":
        assert {algorithm for scheme, algorithm in used if scheme != "allgather"} <= {"ring"}


def test_an_empty_bucket_travels_as_it_is() -> None:
    """Nothing is exchanged for it, so that its times would say that ranks' clocks differ."""

    def body(engine: InProcessEngine):
        parameters = {"weight": torch.nn.Parameter(torch.zeros(500)), "none": torch.nn.Parameter(torch.zeros(0))}
        whole = Settings(fusion_threshold_bytes=0, timeout_s=60, adapt=True, calibration_s=0.0)
        optimizer = make_optimizer(parameters, AUTO, lambda: engine, engine.rank, engine.world_size, settings=whole)
        for step in range(5):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
        return len(optimizer.decisions), len(optimizer.controller.candidates())

    assert run_ranks(2, body) == [(2, 1)] * 2


def test_one_rank_has_nothing_to_choose() -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, AUTO, settings=settings())
        backward(parameters, engine.rank, 0)
        optimizer.step()
        return optimizer.controller

    assert run_ranks(1, body) == [None]


def test_ranks_that_do_not_all_adapt_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, AUTO, settings=Settings(600, 60, adapt=engine.rank == 0))
        backward(parameters, engine.rank, 0)
        with pytest.raises(Exception, match="HVD_COMPRESS_ADAPT"):
            optimizer.step()
        return True

    assert all(run_ranks(2, body))
