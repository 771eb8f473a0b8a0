"""STAR or VAR: which of the two learns faster depends on how unequal the gradients of the ranks are.

A small experiment: linear regressions, one a rank, whose mean loss is minimised with 2 % of the elements a step. Where
ranks are alike, the indices of one are as good as those of another, and STAR does without the collective that compares
them. Where one rank holds nearly all of the gradient, STAR listens to it in one step of N only.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hvd_compress.compressors import TopK
from hvd_compress.controller import watch
from hvd_compress.controller.report import Timing
from hvd_compress.cost.formulas import Formulas
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.policies import adaptive
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import make_optimizer
from tests.played import LANES, lane_maker

RANKS, NUMEL = 4, 2000

ALIKE, ONE_HOLDS_MOST = (1.0, 1.0, 1.0, 1.0), (1.0, 0.05, 0.05, 0.05)
"""How large the gradient of each rank is."""

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def no_time_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every exchange takes as long, and no window is longer for it."""
    monkeypatch.setattr(adaptive, "obtain", lambda engine, _: (Formulas(0.001, 1e-9, engine.world_size),))
    monkeypatch.setattr(watch, "WINDOW", watch.SHORT_WINDOW)
    monkeypatch.setattr(watch, "WINDOW_S", 0.0)
    monkeypatch.setattr(adaptive, "timing", lambda of: Timing(0.001, 0.001, 0.001, 0.0, of.report.on_critical_path))


def train(
    engine: InProcessEngine, scheme: str, sizes: Callable[[int], tuple[float, ...]], steps: int = 80, **lanes: object
) -> tuple[float, list[tuple[int, str, str]], list[str]]:
    """Return the mean loss at the end, what was decided of workers (step, candidate, reason), and what was used."""
    draw = torch.Generator().manual_seed(7)
    targets = torch.randn(engine.world_size, NUMEL, generator=draw) + torch.randn(NUMEL, generator=draw)
    weight = torch.nn.Parameter(torch.zeros(NUMEL))
    request = Request(TopK(0.02), scheme, "ring")
    settings = Settings(10**6, 60, adapt=True, calibration_s=0.0)
    connect = lambda: engine  # noqa: E731
    optimizer = make_optimizer(
        {"w": weight}, request, connect, engine.rank, engine.world_size, settings=settings, lr=0.1, **lanes
    )
    used = []
    for step in range(steps):
        optimizer.zero_grad()
        (0.5 * sizes(step)[engine.rank] * (weight - targets[engine.rank]).square().sum()).backward()
        optimizer.step()
        used.append(next(iter(optimizer.decisions.values())).scheme)
    losses = [0.5 * size * (weight.detach() - t).square().sum() for size, t in zip(sizes(0), targets, strict=True)]
    history = optimizer.controller.history if optimizer.controller else ()
    chosen = [(event.step, event.candidate, event.reason) for event in history if event.kind == "worker"]
    return float(sum(losses)) / engine.world_size, chosen, used


def run(scheme: str, sizes: tuple[float, ...]) -> list[tuple[float, list[tuple[int, str, str]], list[str]]]:
    return run_ranks(RANKS, lambda engine: train(engine, scheme, lambda step: sizes))


@pytest.mark.parametrize(("sizes", "better"), [(ALIKE, "star"), (ONE_HOLDS_MOST, "var")])
def test_artopk_takes_what_learns_faster(sizes: tuple[float, ...], better: str) -> None:
    worse = {"star": "var", "var": "star"}[better]
    good, bad = run(better, sizes)[0][0], run(worse, sizes)[0][0]
    ranks = run("artopk", sizes)
    assert all(rank == ranks[0] for rank in ranks)
    loss, chosen, used = ranks[0]
    assert set(used) == {"star", better}  # where ranks are alike VAR is not even tried
    assert used[-20:] == [better] * 20
    assert [(candidate, "of the squared norm" in reason) for _, candidate, reason in chosen] == [
        (f"{better}-ring", True)
    ]
    if better == "var":
        assert good < 0.95 * bad  # the experiment says something
        assert loss < (good + bad) / 2
    else:
        assert loss < 1.01 * good


def test_ranks_that_grow_unequal_are_noticed() -> None:
    """The gain of STAR hardly moves, but one rank holds more of what is unsent than it did."""
    change, small = 50, (0.01, 0.01, 0.01, 0.01)
    ranks = run_ranks(
        RANKS, lambda engine: train(engine, "artopk", lambda step: small if step < change else (1.0, *small[1:]), 120)
    )
    assert all(rank == ranks[0] for rank in ranks)
    _, chosen, used = ranks[0]
    assert used[change] == "star"
    assert used[-1] == "var"
    assert [candidate for _, candidate, _ in chosen] == ["star-ring", "var-ring"]


@pytest.mark.parametrize("kind", LANES)
def test_on_a_device_with_streams_the_same_is_seen(kind: str) -> None:
    """What was sent and what is left is read when it is there: else it would be poison (tests/played.py)."""

    def body(engine: InProcessEngine, **lanes: object) -> list[tuple[int, str, str]]:
        return train(engine, "artopk", lambda step: ONE_HOLDS_MOST[:2], 50, **lanes)[1]

    expected = run_ranks(2, body)
    assert run_ranks(2, lambda engine: body(engine, make_lane=lane_maker(LANES[kind]))) == expected
    assert expected[0]


@pytest.mark.parametrize("scheme", ["star", "var"])
def test_what_is_pinned_stays(scheme: str) -> None:
    _, chosen, used = run(scheme, ONE_HOLDS_MOST)[0]
    assert set(used) == {scheme}
    assert chosen == []
