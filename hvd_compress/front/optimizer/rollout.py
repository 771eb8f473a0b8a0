"""Rollouts: some steps of training with each candidate ratio, taken back afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.session.session import Session

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


def roll_out(session: Session, asked: Rollout, restore: Callable[[], None]) -> None:
    """Train the steps of a rollout with each candidate ratio, take them back, and choose ratios by what they gained.

    Args:
        restore: brings back what a step changes outside of the session.

    Raises:
        ConfigError: ranks want different numbers of steps.
        UsageError: a step is none, or several.
    """
    assert session.policy is not None
    wanted = session.policy.rollouts
    assert wanted is not None
    wanted.begin(session.step, asked.steps)
    first, last, own = session.step, session.last_step, session.states.keep()
    for ratio in wanted.ratios:
        wanted.roll_out(ratio)
        session.follow(first)
        try:
            for taken in range(asked.steps):
                asked.step()
                if session.step != first + taken + 1:
                    raise UsageError(
                        f"a step of the rollout takes {session.step - first - taken} steps: it must be one"
                    )
        finally:
            own()
            restore()
            session.step, session.last_step = first, last
    wanted.compare(first)
    session.follow(first)
