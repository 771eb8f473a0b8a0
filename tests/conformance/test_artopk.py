"""STAR or VAR: whose indices collective="artopk" uses.

A small experiment, linear regressions, one a rank, whose mean loss is minimised with 2 % of the elements a step. Where
ranks are alike, the indices of one are as good as those of another. Where one rank holds nearly all of the gradient,
STAR listens to it in one step of N only.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hvd_compress import of
from hvd_compress.compressors import TopK
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.policies.prices import Prices
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import make_optimizer
from tests.played import LANES, PlayedLanes

RANKS, NUMEL = 4, 2000
ALIKE, ONE_HOLDS_MOST = (1.0, 1.0, 1.0, 1.0), (1.0, 0.05, 0.05, 0.05)
"""How large the gradient of each rank is."""

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def own_curves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))


def made(engine: InProcessEngine, collective: str, algorithm: str = "ring", **more: object) -> ReducingOptimizer:
    """Return an optimizer of one weight, by `collective`."""
    weight = torch.nn.Parameter(torch.zeros(NUMEL))
    settings = Settings(10**6, 60, adapt=True, calibration_s=0.0)
    request = Request(TopK(0.02), collective, algorithm)
    arguments = (request, lambda: engine, engine.rank, engine.world_size)
    return make_optimizer({"w": weight}, *arguments, settings=settings, lr=0.1, **more)


def learn(
    engine: InProcessEngine,
    collective: str,
    sizes: Callable[[int], tuple[float, ...]],
    steps: int = 80,
    algorithm: str = "ring",
    **lanes: object,
) -> tuple[float, list[tuple[int, str, str]], list[str]]:
    """Return the mean loss at the end, what was decided of workers (step, candidate, reason), and what was used."""
    optimizer = made(engine, collective, algorithm, **lanes)
    used = train(engine, optimizer, sizes, range(steps))
    (weight,) = optimizer.param_groups[0]["params"]
    targets = drawn(engine.world_size)
    losses = [0.5 * size * (weight.detach() - t).square().sum() for size, t in zip(sizes(0), targets, strict=True)]
    history = of(optimizer).controller.history if of(optimizer).controller else ()
    chosen = [(event.step, event.candidate, event.reason) for event in history if event.kind == "root"]
    return float(sum(losses)) / engine.world_size, chosen, used


def drawn(ranks: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(7)
    return torch.randn(ranks, NUMEL, generator=draw) + torch.randn(NUMEL, generator=draw)


def train(
    engine: InProcessEngine, optimizer: ReducingOptimizer, sizes: Callable[[int], tuple[float, ...]], steps: range
) -> list[str]:
    """Return by which collective the bucket travels after each step."""
    (weight,), target, used = optimizer.param_groups[0]["params"], drawn(engine.world_size)[engine.rank], []
    for step in steps:
        optimizer.zero_grad()
        (0.5 * sizes(step)[engine.rank] * (weight - target).square().sum()).backward()
        optimizer.step()
        used.append(next(iter(of(optimizer).decisions.values())).collective)
    return used


def run(collective: str, sizes: tuple[float, ...]) -> list[tuple[float, list[tuple[int, str, str]], list[str]]]:
    return run_ranks(RANKS, lambda engine: learn(engine, collective, lambda step: sizes))


@pytest.mark.parametrize(("sizes", "better"), [(ALIKE, "star"), (ONE_HOLDS_MOST, "var")])
def test_artopk_takes_what_learns_faster(sizes: tuple[float, ...], better: str) -> None:
    worse = {"star": "var", "var": "star"}[better]
    good, bad = run(better, sizes)[0][0], run(worse, sizes)[0][0]
    ranks = run("artopk", sizes)
    assert all(rank == ranks[0] for rank in ranks)
    loss, chosen, used = ranks[0]
    assert set(used) == {"star", better}  # where ranks are alike VAR is not even tried
    assert used[-20:] == [better] * 20
    if better == "var":
        assert [(candidate, "of the squared norm" in reason) for _, candidate, reason in chosen] == [("var", True)]
        assert good < 0.95 * bad  # the experiment says something
        assert loss < (good + bad) / 2
    else:
        assert chosen == []
        assert loss < 1.01 * good


def test_ranks_that_grow_unequal_are_noticed() -> None:
    """The gain of STAR hardly moves, but one rank holds more of what is unsent than it did."""
    change, small = 50, (0.01, 0.01, 0.01, 0.01)
    ranks = run_ranks(
        RANKS, lambda engine: learn(engine, "artopk", lambda step: small if step < change else (1.0, *small[1:]), 160)
    )
    assert all(rank == ranks[0] for rank in ranks)
    _, chosen, used = ranks[0]
    assert used[change] == "star"
    assert used[-1] == "var"
    assert [candidate for _, candidate, _ in chosen] == ["var"]


@pytest.mark.parametrize("kind", LANES)
def test_on_a_device_with_streams_the_same_workers_are_seen(kind: str) -> None:
    """What was sent and what is left is read when it is there: else it would be poison (tests/played.py)."""

    def body(engine: InProcessEngine, **lanes: object) -> list[tuple[int, str, str]]:
        return learn(engine, "artopk", lambda step: ONE_HOLDS_MOST[:2], 80, **lanes)[1]

    expected = run_ranks(2, body)
    assert run_ranks(2, lambda engine: body(engine, lanes=PlayedLanes(LANES[kind]))) == expected
    assert expected[0]


@pytest.mark.parametrize("collective", ["star", "var"])
def test_what_is_pinned_stays(collective: str) -> None:
    _, chosen, used = run(collective, ONE_HOLDS_MOST)[0]
    assert set(used) == {collective}
    assert chosen == []


def test_with_algorithms_left_open_both_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """First algorithms, of real steps by STAR; whatever dense takes, it is not among what was asked for."""

    def cheap(self: Prices, found, layout):  # type: ignore[no-untyped-def]
        return {collective.path: 1.0 if collective.compressor.compresses else 1e-9 for collective in found}

    monkeypatch.setattr(Prices, "by_path", cheap)

    def body(engine: InProcessEngine) -> tuple[list[str], list[str], list[str]]:
        optimizer = made(engine, "artopk", "auto")
        used = train(engine, optimizer, lambda step: ONE_HOLDS_MOST, range(80))
        events = list(of(optimizer).controller.history)
        kinds = [event.kind for event in events]
        (decision,) = of(optimizer).decisions.values()
        return used, kinds, [str(decision.path), decision.reason]

    ranks = run_ranks(RANKS, body)
    assert ranks == [ranks[0]] * RANKS
    used, kinds, (path, reason) = ranks[0]
    assert set(used) == {"star", "var"}
    assert kinds == ["choice", "root"]
    assert path.startswith("var")
    assert "a step not hidden" in reason
    assert "VAR would send" in reason


def test_who_goes_on_with_a_checkpoint_tries_no_algorithm_again() -> None:
    """But with what the controller of ratios had chosen, which decided of these, too, it looks anew."""

    def body(engine: InProcessEngine) -> list[tuple[str, bool]]:
        optimizer = made(engine, "artopk", "auto")
        train(engine, optimizer, lambda step: ALIKE, range(40))
        state, paths = optimizer.state_dict(), [path_of(optimizer)]
        own = state["hvd_compress"]["choice"]
        before = {"policy": "flexible", "plan": json.loads(own)["plan"], "gains": [[0, [0.5]]], "step_s": 0.1}
        for choice in (own, json.dumps(before)):
            optimizer = made(engine, "artopk", "auto")
            optimizer.load_state_dict(
                copy.deepcopy(state) | {"hvd_compress": state["hvd_compress"] | {"choice": choice}}
            )
            train(engine, optimizer, lambda step: ALIKE, range(40, 42))
            paths.append(path_of(optimizer))
        return paths

    chosen, again, other = run_ranks(2, body)[0]
    assert again == chosen
    assert not again[1]
    assert other[1]


def path_of(optimizer: ReducingOptimizer) -> tuple[str, bool]:
    """Return by which path the bucket travels, and whether it is one that is tried."""
    (decision,) = of(optimizer).decisions.values()
    return str(decision.path), decision.is_trial
