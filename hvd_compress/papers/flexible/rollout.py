"""Rollouts: some steps of training with each candidate ratio, taken back afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hvd_compress.checks import check_whole
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.papers.flexible.snapshot import Restore, keep
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
        check_whole("steps", self.steps, 1)


class Trying(Protocol):
    """What chooses among ratios.

    Attributes:
        ratios: of which each is to be trained with.
    """

    ratios: Sequence[float]

    def begin(self, step: int, steps: int) -> None:
        """Before steps that are taken back: check that every rank takes as many.

        Raises ConfigError where they differ, on every rank alike.
        """

    def try_ratio(self, ratio: float) -> None:
        """The steps that come send this ratio, and will be taken back."""

    def compare(self, step: int) -> None:
        """All ratios were rolled out: let ranks agree on what they gained, and do what follows."""


def roll_out(trying: Trying, session: Session, optimizer: torch.optim.Optimizer, asked: Rollout) -> None:
    """Train the steps of a rollout with each candidate ratio, take them back, and choose ratios by what they gained.

    Raises:
        ConfigError: ranks want different numbers of steps, or something in `asked.data` cannot be taken back.
        UsageError: a step is none, or several.
    """
    try:
        restore = keep(asked.model, optimizer, asked.data)
    except ConfigError:  # what is asked for cannot be had, on any rank, and nothing has begun
        raise
    except BaseException as error:
        session.fail(error)
        raise
    try:
        _roll_out(trying, session, asked, restore)
    except BaseException as error:
        session.fail(error)  # other ranks may wait for this one: it must be able to end
        raise


def _roll_out(trying: Trying, session: Session, asked: Rollout, restore: Restore) -> None:
    trying.begin(session.step, asked.steps)
    first, last, own, scale = session.step, session.last_step, session.states.keep(), session.loss_scale.scale
    for ratio in trying.ratios:
        trying.try_ratio(ratio)
        session.steering.follow(first)
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
            session.step, session.last_step, session.loss_scale.scale = first, last, scale
    trying.compare(first)
    session.steering.follow(first)
