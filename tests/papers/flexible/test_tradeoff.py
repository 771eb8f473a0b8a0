"""The ratio that is chosen of many."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from hvd_compress import native
from hvd_compress.compressors.sparsifier import kept_of
from hvd_compress.errors import ConfigError
from hvd_compress.papers.flexible.tradeoff import Point, grid, knee, nsga2, pareto_front

OPTIONS = st.lists(
    st.builds(
        Point,
        ratio=st.floats(0.001, 1.0),
        compress_s=st.floats(0.0, 1.0),
        communicate_s=st.floats(0.0, 1.0),
        gain=st.floats(0.01, 1.0),
    ),
    min_size=1,
    max_size=12,
)


def realistic(latency_s: float, per_ratio_s: float, steepness: float) -> list[Point]:
    """Communication grows with the ratio, compression a little, and the gain as gradients' do."""
    return [
        Point(c, 0.010 + 0.02 * c, latency_s + per_ratio_s * c, 1 - math.exp(-steepness * c**0.5))
        for c in grid(0.001, 0.1)
    ]


def test_a_grid_has_both_ends_and_even_steps() -> None:
    ratios = grid(0.001, 0.1)
    assert (ratios[0], ratios[-1]) == (0.001, 0.1)
    steps = [b / a for a, b in itertools.pairwise(ratios)]
    assert max(steps) == pytest.approx(min(steps))
    assert max(steps) <= 2 ** (1 / 6) + 1e-9
    assert grid(0.01, 0.01) == (0.01,)


@pytest.mark.parametrize("bounds", [(0.0, 0.1), (0.1, 0.01), (0.1, 1.5), (float("nan"), 0.1)])
def test_bounds_that_are_none(bounds: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="bounds of the ratio"):
        grid(*bounds)


@given(OPTIONS)
def test_nothing_beats_the_front_and_it_beats_all_else(options: list[Point]) -> None:
    front = pareto_front(options)

    def beats(a: Point, b: Point) -> bool:
        pairs = list(zip(a.objectives, b.objectives, strict=True))
        return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)

    assert front
    assert not any(beats(other, option) for option in front for other in options)
    assert all(any(beats(better, option) for better in front) for option in options if option not in front)
    assert knee(options) in front


@pytest.mark.parametrize("per_ratio_s", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("steepness", [2.0, 8.0, 30.0])
def test_nsga2_finds_the_same_knee_within_a_step_of_the_grid(per_ratio_s: float, steepness: float) -> None:
    options = realistic(0.002, per_ratio_s, steepness)
    exact, found = knee(options), knee(nsga2(options))
    assert abs(options.index(exact) - options.index(found)) <= 1


@pytest.fixture(scope="module")
def gradients() -> list[torch.Tensor]:
    """Of a small net on digits: of its first step, and of its last with what top-k had left of those before."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).reshape(-1, 64)
    labels = torch.tensor(digits.target)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))
    optimizer, found = torch.optim.SGD(net.parameters(), lr=0.1), []
    residual = torch.zeros(sum(parameter.numel() for parameter in net.parameters()))
    for step in range(40):
        optimizer.zero_grad()
        batch = slice(32 * step, 32 * step + 32)
        torch.nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
        optimizer.step()
        residual += torch.cat([parameter.grad.reshape(-1) for parameter in net.parameters()])
        if step in (0, 39):
            found.append(residual.clone())
        residual[residual.abs().topk(len(residual) // 100).indices] = 0
    return found


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("per_ratio_s", [0.05, 2.0])
def test_nsga2_agrees_on_real_gradients_too(which: int, per_ratio_s: float, gradients: list[torch.Tensor]) -> None:
    gradient, ratios = gradients[which], grid(0.001, 0.1)
    ks = [kept_of(ratio, gradient.numel()) for ratio in ratios]
    gains = native.gain_curve(gradient).gain(ks).tolist()
    assert gains == sorted(gains)
    options = [Point(c, 0.01 + 0.02 * c, 0.002 + per_ratio_s * c, gain) for c, gain in zip(ratios, gains, strict=True)]
    exact, found = knee(options), knee(nsga2(options))
    assert 0.001 < exact.ratio < 0.1
    assert abs(options.index(exact) - options.index(found)) <= 1


def test_nsga2_leaves_the_generators_of_the_program_alone() -> None:
    before = np.random.get_state()[1].tolist(), random.getstate()
    nsga2(realistic(0.002, 1.0, 8.0), generations=3)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before
