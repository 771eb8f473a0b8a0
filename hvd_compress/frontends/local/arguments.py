"""What local steps refuse, before anything is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch

from hvd_compress.checks import check_number, check_whole
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.asked import check_request
from hvd_compress.frontends.local.outer import Outer
from hvd_compress.request.request import Request

Every = int | Callable[[int], int] | Literal["auto"]
"""Steps in a round: a number; a function of the steps so far, which is asked when a round begins; or "auto"."""
Deadline = float | Literal["auto"] | None
"""Seconds of training in a round; "auto" for those of the median rank; None for as long as it takes."""
ALL_AT_ONCE = 30
"""Steps of all gradients that auto() takes to choose, and about as many as it needs."""


def check_optimizer(optimizer: Any) -> None:
    """Raise what is wrong with an optimizer that is to take local steps."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"LocalSteps takes an optimizer of torch, then a model, and this is a {_kind(optimizer)}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedError("LBFGS evaluates its closure several times in a step: take another optimizer")
    if hasattr(optimizer, "skip_synchronize"):
        raise UsageError(
            "this optimizer is distributed, and exchanges gradients in each step, which local steps are to save: pass "
            "the torch optimizer that it was made from, and leave DistributedOptimizer() out"
        )


def checked(request: Any) -> Request:
    """Return the compression of rounds. Raises ConfigError for what is none, UnsupportedError for what none carries."""
    check_request(request)
    assert isinstance(request, Request)
    if request.policy is not None and not request.policy.takes_shards:
        raise UnsupportedError(
            f"{_kind(request.policy)} decides by steps that exchange all gradients, and a round exchanges a fragment "
            "at a time: take auto(), or a compression without a policy, such as int4()"
        )
    return request if request.policy is None else replace(request, policy=request.policy.in_rounds())


def check_auto(request: Request, start_after: int, fragments: int) -> None:
    """Raise ConfigError where auto() would never see all gradients travel, by which it compares."""
    if request.policy is not None and fragments > 1 and start_after < ALL_AT_ONCE:
        raise ConfigError(
            f"auto() compares steps that exchange all buckets, and with fragments={fragments} only the first "
            f"start_after={start_after} do: take {ALL_AT_ONCE} or more, or fragments=1, or name a compression"
        )


def check_outer(outer: Any) -> None:
    """Raise ConfigError for what makes no optimizer."""
    is_class = isinstance(outer, type) and issubclass(outer, torch.optim.Optimizer | Outer)
    if is_class or not callable(outer):
        raise ConfigError(
            f"outer={outer!r} is no function that makes an optimizer: pass averaging, diloco or muloco of "
            "hvd_compress.local, or such as lambda anchors: torch.optim.SGD(anchors, lr=0.7, momentum=0.9)"
        )


def check_rounds(every: Any, start_after: int, fragments: int, delay: int, mix: float | None) -> None:
    """Raise ConfigError for numbers that do not fit."""
    check_whole("start_after", start_after, 0)
    check_whole("fragments", fragments, 1)
    check_whole("delay", delay, 0)
    if mix is not None:
        check_number("mix", mix, 0, below=1)
        if not delay:
            raise ConfigError(f"mix = {mix:g} is of what lands after a delay, and delay = 0: leave mix out")
    if every == "auto" or callable(every):
        return
    if isinstance(every, str):
        raise ConfigError(f'every={every!r} is no number of steps, no function of the steps, and not "auto"')
    check_whole("every", every, 1)
    apart = every // fragments
    if delay > apart:
        raise ConfigError(
            f"delay = {delay} steps, and with every={every} and {fragments} fragments the next exchange begins after "
            f"{apart}: one is on its way at a time, so take a delay of at most {apart}"
        )


def check_membership(every: Every, come_and_go: bool) -> None:
    """Raise UnsupportedError where steps may become synchronous again in a job whose ranks come and go."""
    if come_and_go and not isinstance(every, int):
        raise UnsupportedError(
            f"every={every if isinstance(every, str) else 'a function'} in a job whose ranks come and go: take a number"
        )


def check_deadline(deadline_s: Any, shard: str) -> None:
    """Raise ConfigError for what is no time, UnsupportedError where ranks share a replica and take its steps together.

    Args:
        shard: the name of this rank's shard; empty where it has a whole replica.
    """
    if deadline_s is None:
        return
    if deadline_s != "auto":
        if isinstance(deadline_s, str):
            raise ConfigError(f'deadline_s={deadline_s!r} is no number of seconds, and not "auto"')
        check_number("deadline_s", deadline_s, 0, above=True)
    if shard:
        raise UnsupportedError(
            "deadline_s is for ranks that have a whole replica, and those of this model share one: leave it out"
        )


def _kind(given: Any) -> str:
    return type(given).__name__
