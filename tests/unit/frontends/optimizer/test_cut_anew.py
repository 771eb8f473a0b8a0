"""Gradients that are cut anew between two steps, as buckets.cutting decides."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from time import perf_counter

import pytest
import torch

from hvd_compress import of
from hvd_compress.buckets import cutting
from hvd_compress.buckets.cutting import BUCKET_S, STEPS
from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.frontends.optimizer.reducer import ReduceOptions
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.brought import brought
from tests.harness import (
    COMPRESSORS,
    backward,
    flat_gradient,
    flat_residual,
    gradient,
    make_optimizer,
    make_parameters,
)

MANY = 1 << 30
SHAPES = {f"layer {number}": (13, 17 + number) for number in range(9)}
LONG_S = 25 * BUCKET_S
"""What is waited for, of which five buckets hide most."""


SETTINGS = Settings(cuts=True, adapt=True, check_every=1, timeout_s=120.0)
TRIED, FEWER = 4, 2
"""Buckets."""
LENGTH = 80
"""Steps, of which a search takes some twenty at most, and cuts six times six."""


def trained(
    engine: InProcessEngine, request: Request, settings: Settings, steps: int
) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Return the number of buckets behind each step, the sum of what was sent, and that of results."""
    parameters = make_parameters(SHAPES)
    optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size, settings=settings)
    counts, own, results = [], torch.zeros(()), torch.zeros(())
    for step in range(steps):
        optimizer.zero_grad()
        backward(parameters, engine.rank, step)
        own = own + torch.cat([gradient(n, p.shape, engine.rank, step).reshape(-1) for n, p in parameters.items()])
        optimizer.step()
        counts.append(len(of(optimizer).decisions))
        results = results + engine.world_size * flat_gradient(parameters)
    return counts, own - flat_residual(optimizer, parameters), results


def stepped(
    optimizer: ReducingOptimizer, parameters: Mapping[str, torch.nn.Parameter], rank: int, steps: int
) -> list[int]:
    """Take steps; return the number of buckets behind each."""
    counts = []
    for step in range(steps):
        optimizer.zero_grad()
        backward(parameters, rank, step)
        optimizer.step()
        counts.append(len(of(optimizer).decisions))
    return counts


def give_times(monkeypatch: pytest.MonkeyPatch, longer: bool) -> None:
    """Let steps with the cut that is tried take longer or less long; all figures of steps are given."""
    monkeypatch.setattr(cutting, "number_of_buckets", lambda waited_s, nbytes: TRIED)
    times = threading.local()  # a rank is a thread

    def agreed(of_ranks: Sequence[Sequence[float]]) -> tuple[float, list[float]]:
        assert len(of_ranks) == 2
        times.asked = getattr(times, "asked", 0) + 1
        return LONG_S, [1.0 if times.asked % 2 else 2.0 if longer else 0.5] * STEPS

    monkeypatch.setattr(cutting, "agreed", agreed)


@pytest.fixture(params=[False, True], ids=["shorter", "longer"])
def longer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether steps with the cut that is tried take longer."""
    give_times(monkeypatch, request.param)
    return bool(request.param)


@pytest.mark.parametrize("compressor", ["onebit", "int4", "half"])
@pytest.mark.parametrize("hosts", [(0, 1), (0, 0)], ids=["two hosts", "one host"])
def test_gradients_are_cut_anew_between_two_steps(hosts: tuple[int, ...], longer: bool, compressor: str) -> None:
    """On all ranks at the same step, once it stands how they travel, and nothing is lost; replicas are compared."""
    request = Request(COMPRESSORS[compressor])
    ranks = run_ranks(2, lambda engine: trained(engine, request, SETTINGS, LENGTH), hosts=hosts)
    (counts, own, results), (other_counts, other_own, other_results) = ranks
    assert counts == other_counts
    assert torch.equal(results, other_results)
    torch.testing.assert_close(results, own + other_own, rtol=0, atol=0.2 if compressor == "half" else 1e-3)
    runs = [(count, len(list(steps))) for count, steps in groupby(counts)]
    if hosts == (0, 0):
        assert runs == [(1, LENGTH)]
    elif longer:
        assert [count for count, _ in runs] == [1, TRIED, 1, FEWER, 1]
    else:
        assert [count for count, _ in runs] == [1, TRIED, 1, TRIED]
    assert runs[0][1] >= STEPS


@pytest.mark.parametrize(
    ("request_", "settings", "options"),
    [
        (Request(COMPRESSORS["int4"]), replace(SETTINGS, cuts=False), ReduceOptions()),
        (Request(COMPRESSORS["int4"]), replace(SETTINGS, adapt=False), ReduceOptions()),
        (Request(COMPRESSORS["int4"]), SETTINGS, ReduceOptions(groups=(tuple(SHAPES)[:2],))),
        (Compression.per_bucket(lambda _: Request(COMPRESSORS["int4"])), SETTINGS, ReduceOptions()),
        *((request, SETTINGS, ReduceOptions()) for _, request in brought("FIXED")),
    ],
    ids=["a threshold is set", "ADAPT=0", "groups", "per bucket", *dict(brought("FIXED"))],
)
def test_gradients_stay_as_somebody_else_has_cut_them(
    request_: Request, settings: Settings, options: ReduceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_times(monkeypatch, longer=False)

    def body(engine: InProcessEngine) -> list[int]:
        parameters = make_parameters(SHAPES)
        optimizer = make_optimizer(
            parameters, request_, lambda: engine, engine.rank, 2, settings=settings, options=options
        )
        return stepped(optimizer, parameters, engine.rank, LENGTH)

    counts = run_ranks(2, body, hosts=(0, 1))
    assert counts[0] == counts[1] == LENGTH * counts[0][:1]


def test_a_step_takes_from_the_end_of_the_last_one_to_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_s: list[float] = []
    monkeypatch.setattr(cutting.Cutting, "step", lambda self, waited_s, step_s: taken_s.append(step_s) or [])

    def body(engine: InProcessEngine) -> None:
        parameters = make_parameters(SHAPES)
        request = Request(COMPRESSORS["int4"])
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, 2, settings=SETTINGS)
        stepped(optimizer, parameters, engine.rank, LENGTH)

    begun_s = perf_counter()
    run_ranks(2, body, hosts=(0, 1))
    assert len(taken_s) > 2 * STEPS, "of both ranks"
    assert all(step_s > 0 for step_s in taken_s)
    assert sum(taken_s) < 2 * (perf_counter() - begun_s)


@pytest.mark.usefixtures("longer")
def test_buckets_go_on_as_was_chosen_before_they_were_cut_anew() -> None:
    def body(engine: InProcessEngine) -> list[tuple[int, set[str], str]]:
        parameters = make_parameters(SHAPES)
        optimizer = make_optimizer(parameters, Compression.auto(), lambda: engine, engine.rank, 2, settings=SETTINGS)
        seen = []
        for step in range(LENGTH):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
            decisions = of(optimizer).decisions.values()
            seen.append((len(decisions), {str(each.path) for each in decisions}, next(iter(decisions)).reason))
        return seen

    seen, other = run_ranks(2, body, hosts=(0, 1))
    assert seen == other
    place = next(number for number, (count, _, _) in enumerate(seen) if count == TRIED)
    assert seen[place][1] == seen[place - 1][1]
    chosen = f"{seen[place - 1][2]}; chosen for other buckets of these gradients"
    assert {reason for _, _, reason in seen[place:]} == {chosen}, "told once, however often they are cut"


def test_a_set_threshold_and_a_checkpoint_keep_their_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is rounded in blocks depends on the cut: a resumed job goes on with that of the checkpoint."""
    give_times(monkeypatch, longer=False)
    request = Request(COMPRESSORS["half"])

    def body(
        engine: InProcessEngine, settings: Settings, steps: int, state: dict | None = None
    ) -> tuple[list[int], dict]:
        parameters = make_parameters(SHAPES)
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, 2, settings=settings)
        if state is not None:
            optimizer.load_state_dict(state)
        return stepped(optimizer, parameters, engine.rank, steps), optimizer.state_dict()

    few = STEPS + 3
    fixed = run_ranks(2, lambda engine: body(engine, replace(SETTINGS, cuts=False), few), hosts=(0, 1))
    assert fixed[0][0] == few * [1]
    tried = run_ranks(2, lambda engine: body(engine, SETTINGS, few), hosts=(0, 1))
    assert tried[0][0][-1] == TRIED
    again = run_ranks(2, lambda engine: body(engine, SETTINGS, few, tried[engine.rank][1]), hosts=(0, 1))
    assert again[0][0][0] == again[1][0][0] == 1, "a cut that was being tried is no choice"
    settled = run_ranks(2, lambda engine: body(engine, SETTINGS, LENGTH), hosts=(0, 1))
    assert settled[0][0][-1] == TRIED

    def resumed(engine: InProcessEngine, settings: Settings) -> tuple[list[int], dict]:
        return body(engine, settings, few, settled[engine.rank][1])

    for settings in (SETTINGS, replace(SETTINGS, adapt=False)):
        again = run_ranks(2, partial(resumed, settings=settings), hosts=(0, 1))
        assert again[0][0] == again[1][0] == few * [TRIED]


def test_sparse_gradients_keep_their_results_where_others_are_cut_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are exchanged behind the buckets, whose number changes within the step; a checkpoint knows both."""
    give_times(monkeypatch, longer=False)

    def body(engine: InProcessEngine, steps: int, state: dict | None = None) -> tuple[list[int], dict]:
        parameters = make_parameters({**SHAPES, "first table": (7, 3), "second table": (5, 2)})
        request = Request(COMPRESSORS["dense"])
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, 2, settings=SETTINGS)
        if state is not None:
            optimizer.load_state_dict(state)
        counts = []
        for step in range(steps):
            optimizer.zero_grad()
            backward({name: parameters[name] for name in SHAPES}, engine.rank, step)
            for number, name in enumerate(("first table", "second table"), start=1):
                row = torch.tensor([engine.rank + number])
                torch.nn.functional.embedding(row, parameters[name], sparse=True).sum().mul(number).backward()
            optimizer.synchronize()
            for number, name in enumerate(("first table", "second table"), start=1):
                expected = torch.zeros_like(parameters[name])
                expected[number : number + 2] = number / 2
                assert torch.equal(parameters[name].grad.to_dense(), expected), f"{name}, step {step}"
            counts.append(
                sum(1 for names in of(optimizer).decisions if not set(names) & {"first table", "second table"})
            )
        return counts, optimizer.state_dict()

    first = run_ranks(2, lambda engine: body(engine, LENGTH), hosts=(0, 1))
    assert [count for count, _ in groupby(first[0][0])] == [1, TRIED, 1, TRIED]
    again = run_ranks(2, lambda engine: body(engine, 3, first[engine.rank][1]), hosts=(0, 1))
    assert again[0][0] == 3 * [TRIED]
