"""Gains by rollout: some steps of training with each candidate ratio, which are then taken back.

Section on "MOO Configuration Details" of Tyagi and Swany, "Flexible Communication for Optimal Distributed Learning".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hvd_compress.controller.report import Agreed, Look, Timing, agree
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError

SHARE = 0.1
"""Of all steps, how many may be taken for rollouts, after the first."""

HOW = (
    "gain='rollout' measures gains by training some steps with each ratio and taking them back. Call "
    "optimizer.rollout(step, model, data) on every rank at the end of each iteration, where step() does zero_grad(), "
    "forward, backward and optimizer.step(), and data holds what else it changes; or use gain='curve'"
)


@dataclass(frozen=True)
class Rollout:
    """What it takes to train some steps and to take them back.

    Attributes:
        step: trains one step.
        model: what it trains.
        data: what else it changes: objects with state_dict() and load_state_dict().
        steps: how many steps each ratio gets.

    Raises ConfigError for what is none of this.
    """

    step: Callable[[], object]
    model: torch.nn.Module
    data: tuple[Any, ...] = ()
    steps: int = 10

    def __post_init__(self) -> None:
        if not callable(self.step):
            raise ConfigError(f"step = {self.step!r} must be a function without arguments that trains one step")
        if not isinstance(self.model, torch.nn.Module):
            raise ConfigError(f"model is a {type(self.model).__name__}, not a torch.nn.Module")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise ConfigError(f"steps = {self.steps!r} must be a whole number, 1 or more")


@dataclass
class Trial:
    """What is measured of one ratio while a rollout runs, by step and bucket; `candidates` say how buckets travel."""

    ratio: float
    candidates: tuple[Path, ...]
    timings: list[tuple[Timing, ...]] = field(default_factory=list)
    sent: list[tuple[float, ...]] = field(default_factory=list)

    def gains(self) -> list[float]:
        """Return each bucket's mean gain, of the steps that had one."""
        return [_mean([gain for gain in column if math.isfinite(gain)]) for column in zip(*self.sent, strict=True)]


def same_steps(steps: int, engine: Engine) -> None:
    """Check that every rank rolls out as many steps. Collective, in the engine's thread.

    Raises ConfigError where they differ, on all ranks alike.
    """
    with engine.aside():
        asked = [int(part) for part in engine.control.allgather(torch.tensor([steps]), [1] * engine.world_size)]
    if len(set(asked)) > 1:
        raise ConfigError(f"rollout(steps=...) must be the same on all ranks, and is, by rank, {asked}")


def report(trials: Sequence[Trial]) -> Callable[[Engine], Agreed]:
    """Return the collective by which ranks agree on all trials: rows of steps, and by bucket a gain for each trial."""
    steps = [row for trial in trials for row in trial.timings]
    gains = tuple(zip(*(trial.gains() for trial in trials), strict=True))
    return partial(agree, steps=steps, step_s=0.0, look=Look(gains))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
