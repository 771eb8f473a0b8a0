"""Paths of top-k, by times that were measured in the lab of every one of them, on 12 networks.

benchmarks/results/controller-grid.json holds, for each network, size and ratio, what every path took, what curves said
of it, and what the controller of that time had chosen, by up to 64 trials.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from statistics import mean, median

import pytest

from benchmarks.auto.grid import read_grid
from hvd_compress.policies.auto.arms import MOST
from hvd_compress.policies.auto.search import Search
from hvd_compress.services.agreement import StepTimes

NOISE, SEEDS = 0.05, 5
"""Of the logarithm of what a step takes."""
STEPS = 18
"""One more waits for what ranks agree on."""


def searched(measured: Mapping[str, float], predicted: Mapping[str, float], noise: random.Random) -> tuple[str, int]:
    """Return the path that a search finds, and its steps: dense, and the paths that take the least by the curves."""
    cheap = sorted((path for path in measured if path != "dense" and path in predicted), key=lambda p: predicted[p])
    arms = [*(["dense"] if "dense" in measured else []), *cheap][:MOST]
    search, steps = Search([1.0] * len(arms), [predicted[arm] for arm in arms]), 0
    while search.choice is None:
        arm = search.next()
        taken_s = measured[arms[arm]] * math.exp(noise.gauss(0, NOISE))
        search.record(arm, StepTimes(taken_s, taken_s, taken_s))  # these steps do nothing but exchange
        steps += 1
    return arms[search.choice], steps


@pytest.fixture
def cells() -> list[dict]:
    return read_grid()


def test_it_loses_no_more_than_the_controller_of_before(cells: list[dict]) -> None:
    """In the mean and in the worst cell, by a third of its trials."""
    before = [cell["measured"][cell["chosen"]] / min(cell["measured"].values()) - 1 for cell in cells]
    means, worst = [], []
    for seed in range(SEEDS):
        noise, lost = random.Random(seed), []
        for cell in cells:
            path, steps = searched(cell["measured"], cell["predicted"], noise)
            assert steps <= STEPS
            lost.append(cell["measured"][path] / min(cell["measured"].values()) - 1)
        means.append(mean(lost))
        worst.append(max(lost))
    assert len(cells) == 108
    assert mean(means) <= mean(before)
    assert median(worst) <= max(before)
