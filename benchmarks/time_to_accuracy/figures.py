"""What both halves amount to: steps to a loss, seconds a step, and their product."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from statistics import fmean
from typing import Any

from benchmarks.time_to_accuracy.methods import BASELINE, METHODS, REFERENCE
from hvd_compress.measuring import median_with_interval

STEPS, EVERY = 240, 20
"""The last step whose dense loss is to be reached, and how often the loss is measured."""
SHOWN = (60, 120, 180, STEPS)
GOALS = (120, STEPS)
"""Steps of dense whose loss is to be reached."""
DRAWS = 1000

Losses = Sequence[tuple[int, float]]
"""Steps taken, and the validation loss after them."""


def with_all_rounds(seconds: Any) -> Any:
    """Return seconds with None for each round in which a method took no part: in the file -n stands for n of those."""
    if isinstance(seconds, dict):
        return {key: with_all_rounds(value) for key, value in seconds.items()}
    return [each for value in seconds for each in ([None] * -value if value is not None and value < 0 else [value])]


def without_gaps(seconds: Any) -> Any:
    """Return seconds as the file has them."""
    if isinstance(seconds, dict):
        return {key: without_gaps(value) for key, value in seconds.items()}
    runs = [(value, list(group)) for value, group in groupby(seconds, key=lambda value: value is None)]
    return [each for is_gap, group in runs for each in ([-len(group)] if is_gap else group)]


def smoothed(losses: Losses) -> Losses:
    """Return the mean of each loss and its two neighbours; the first and the last have none."""
    threes = zip(losses, losses[1:], losses[2:], strict=False)
    return [(middle[0], fmean(loss for _, loss in (before, middle, after))) for before, middle, after in threes]


def loss_at(losses: Losses, steps: int) -> float:
    """Return the smoothed loss after so many steps. Raises KeyError where it was not measured."""
    return dict(smoothed(losses))[steps]


def steps_to(losses: Losses, target: float) -> float | None:
    """Return after how many steps the smoothed loss is `target` for the first time, between two of them on a line.

    None where it never is.
    """
    found = smoothed(losses)
    if found[0][1] <= target:
        return float(found[0][0])
    for (before, above), (after, below) in pairwise(found):
        if below <= target:
            return before + (after - before) * (above - target) / (above - below)
    return None


@dataclass(frozen=True)
class Steps:
    """What a method takes to a loss of dense: of each seed, with that of dense of the same seed.

    `reached` is False where a seed did not come to the loss; then it counts with the last step that was looked at.
    """

    by_seed: tuple[float, ...]
    reached: bool

    @property
    def mean(self) -> float:
        return fmean(self.by_seed)


@dataclass(frozen=True)
class Ratio:
    """To the reference, with the bounds of its 95 % interval by bootstrap."""

    value: float
    low: float
    high: float


class Figures:
    """The figures of benchmarks/results/time-to-accuracy.json, and what follows from them.

    Args:
        kept: `losses` by task, curve and seed, one every EVERY steps; `seconds` by task, network and method, one a
            round, None where it took no part; `long` as `losses`, one every LONG_EVERY steps; `searches` and
            `trainings` by task, network and method.
    """

    def __init__(self, kept: dict[str, Any]) -> None:
        self.kept = {**kept, "seconds": with_all_rounds(kept["seconds"])}

    @property
    def tasks(self) -> list[str]:
        return list(self.kept["losses"])

    def networks(self, task: str) -> list[str]:
        return list(self.kept["seconds"].get(task, {}))

    def timed(self, task: str, network: str) -> list[str]:
        """Return the methods whose steps were measured on a network, in the order of methods.py."""
        return [name for name in METHODS if name in self.kept["seconds"].get(task, {}).get(network, {})]

    def methods(self, task: str, network: str) -> list[str]:
        """Return those whose losses are known, too."""
        curves = self.kept["losses"][task]
        return [name for name in self.timed(task, network) if self.curve(name, network) in curves]

    def curves(self, task: str) -> list[str]:
        return list(self.kept["losses"][task])

    @staticmethod
    def curve(method: str, network: str) -> str:
        """Return the name of the losses that count for a method on a network."""
        found = METHODS[method]
        return f"{method}-{network}" if found.searches else found.trained_as

    def losses(self, task: str, curve: str) -> dict[str, Losses]:
        """Return the losses of each seed."""
        by_seed = self.kept["losses"][task][curve]
        return {
            seed: [(EVERY * number, loss) for number, loss in enumerate(losses, start=1)]
            for seed, losses in by_seed.items()
        }

    def steps(self, task: str, curve: str, goal: int) -> Steps:
        """Return the steps to dense's loss after `goal` steps."""
        dense, found, reached = self.losses(task, BASELINE), [], True
        for seed, losses in self.losses(task, curve).items():
            taken = float(goal) if curve == BASELINE else steps_to(losses, loss_at(dense[seed], goal))
            reached = reached and taken is not None
            found.append(taken if taken is not None else float(smoothed(losses)[-1][0]))
        return Steps(tuple(found), reached)

    def ratios(self, task: str, network: str, method: str, rival: str = REFERENCE) -> list[float]:
        """Return the seconds of a step, divided by those of a rival in the same round, of each round with both."""
        timed = self.kept["seconds"][task][network]
        pairs = zip(timed[method], timed[rival], strict=True)
        return [own / other for own, other in pairs if own is not None and other is not None]

    def step_ratio(self, task: str, network: str, method: str) -> Ratio:
        return Ratio(*median_with_interval(self.ratios(task, network, method)))

    def step_s(self, task: str, network: str, method: str) -> float:
        """Return the reference's median seconds times the ratio: methods of different jobs compare so."""
        reference_s = statistics.median(self.kept["seconds"][task][network][REFERENCE])
        return reference_s * statistics.median(self.ratios(task, network, method))

    def seconds_to(self, task: str, network: str, method: str, goal: int) -> float:
        """Return the product of both halves; the least that it can be, where the loss was not reached."""
        return self.steps(task, self.curve(method, network), goal).mean * self.step_s(task, network, method)

    def time_ratio(self, task: str, network: str, method: str, goal: int, rival: str = REFERENCE) -> Ratio:
        """Return seconds to a loss, divided by those of a rival that takes dense's steps; draws rounds and seeds."""
        ratios = self.ratios(task, network, method, rival)
        steps = self.steps(task, self.curve(method, network), goal).by_seed
        draw = random.Random(1)
        drawn = sorted(_again(draw, statistics.median, ratios) * _again(draw, fmean, steps) for _ in range(DRAWS))
        value = statistics.median(ratios) * fmean(steps)
        return Ratio(*(each / goal for each in (value, drawn[DRAWS // 40], drawn[-1 - DRAWS // 40])))

    @cached_property
    def seeds(self) -> dict[str, int]:
        """The number of seeds of each task."""
        return {task: max(len(curve) for curve in self.kept["losses"][task].values()) for task in self.tasks}


def _again(draw: random.Random, mean: Callable[[list[float]], float], values: Sequence[float]) -> float:
    return mean(draw.choices(values, k=len(values)))
