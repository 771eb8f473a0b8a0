"""Gains by rollout: some steps of training with each candidate ratio, which are then taken back.

Section on "MOO Configuration Details" of Tyagi and Swany, "Flexible Communication for Optimal Distributed Learning".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from hvd_compress.controller.report import Agreed, Look, Timing, agree
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError

SHARE = 0.1
"""Of all steps, how many may be taken for rollouts, after the first."""


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
