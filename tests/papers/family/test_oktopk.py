"""What Ok-Topk selects on one rank, and what it remembers; its exchange has tests of its own (collectives)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Input
from hvd_compress.errors import ConfigError
from hvd_compress.feedback.states import States
from hvd_compress.papers.family.oktopk import DENSITY, GLOBAL, LOCAL, OkTopk

NUMEL = 2000
LAYOUT = Layout(("weight", "bias"), ((NUMEL // 2, 1), (NUMEL // 2,)))
COMPRESSOR = OkTopk(0.05, threshold_steps=8)
K = 100


def run(factors: list[float], compressor: OkTopk = COMPRESSOR) -> list[tuple[int, float]]:
    """Select in the same gradient times each factor, without a residual: how many, and the threshold afterwards."""
    x = torch.randn(NUMEL, generator=torch.Generator().manual_seed(2))
    states, found = States(), []
    state = states.bind(LAYOUT, own=compressor.new_state(LAYOUT, torch.device("cpu")))
    for step, factor in enumerate(factors):
        indices, values = compressor.select_local(Input(factor * x, LAYOUT, step, 0, 1.0, state))
        assert torch.equal(values, (factor * x)[indices.long()])
        state.current.update(state.pending)
        found.append((indices.numel(), float(state.current[LOCAL, "weight"])))
    return found


def test_a_threshold_is_used_while_it_fits() -> None:
    """A little more or less passes; where too many or too few do, the k largest are taken, and their threshold."""
    (first, tau), (more, same), (fewer, again), (many, higher), (few, lower) = run([1.0, 1.05, 0.95, 2.0, 0.5])
    assert first == K
    assert same == again == tau
    assert K < more <= 4 / 3 * K
    assert 2 / 3 * K <= fewer < K
    assert many == few == K
    assert higher == pytest.approx(2.0 * tau, rel=1e-6)
    assert lower == pytest.approx(0.5 * tau, rel=1e-6)


def test_a_threshold_is_found_again_after_some_steps() -> None:
    found = run([1.0, *[1.05] * 8])
    assert [count == K for count, _ in found] == [True, *[False] * 7, True]
    assert found[8][1] == pytest.approx(1.05 * found[0][1], rel=1e-6)


def test_zeros_leave_no_threshold() -> None:
    assert run([0.0, 1.0]) == [(K, 0.0), run([1.0])[0]]


@pytest.mark.parametrize(
    ("count", "used", "expected"),
    [(K, 7.0, 7.0), (66, 7.0, 0.8 * 7.0), (134, 7.0, 35.0), (50, 0.0, 1.0), (0, 0.0, 0.0), (0, 5.0, 4.0)],
)
def test_the_global_threshold_follows_how_many_sums_reached_it(count: int, used: float, expected: float) -> None:
    """Sums of 1 to `count`: of 134 the 100 largest are those from 35 on."""
    states = States()
    state = states.bind(LAYOUT, own=COMPRESSOR.new_state(LAYOUT, torch.device("cpu")))
    work = Input(torch.zeros(NUMEL), LAYOUT, 1, 0, 1.0, state)
    COMPRESSOR.set_global_threshold(work, used, -torch.arange(1.0, count + 1.0))
    assert float(state.pending[GLOBAL, "weight"]) == pytest.approx(expected, rel=1e-6)


def test_the_thresholds_follow_a_loss_scale_and_a_checkpoint() -> None:
    states = States()
    state = states.bind(LAYOUT, own=COMPRESSOR.new_state(LAYOUT, torch.device("cpu")))
    state.current.update({(LOCAL, "weight"): torch.tensor(0.5), (GLOBAL, "weight"): torch.tensor(2.0)})
    density = state.current[DENSITY, "weight"].clone()
    states.scale(4.0)
    saved = states.own_state_dict()
    assert (float(saved[LOCAL]["weight"]), float(saved[GLOBAL]["weight"])) == (2.0, 8.0)
    assert torch.equal(saved[DENSITY]["weight"], density)
    other = States()
    other.load_state_dict({}, {"weight": NUMEL // 2, "bias": NUMEL // 2}, saved)
    loaded = other.bind(LAYOUT, own=COMPRESSOR.new_state(LAYOUT, torch.device("cpu")))
    assert {key: tensor.tolist() for key, tensor in loaded.current.items()} == {
        (kind, name): tensor.tolist() for kind, own in saved.items() for name, tensor in own.items()
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ratio": 0.0}, "ratio = 0.0 lies outside"),
        ({"ratio": True}, "ratio must be a number"),
        ({"threshold_steps": 0}, "threshold_steps = 0 is not a whole number, 1 or more"),
        ({"region_steps": 1.5}, "region_steps = 1.5 is not a whole number"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        OkTopk(**settings)


def test_wire_is_the_most() -> None:
    (round_,) = COMPRESSOR.wire(LAYOUT)
    assert (round_.nbytes, round_.fixed) == (8 * 133, False)
