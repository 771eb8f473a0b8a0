"""Checks of arguments and settings, one of a kind, so that all say alike what was passed and what may be."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import NoReturn, TypeGuard

from hvd_compress.errors import ConfigError, known_are

MAX_SEED = 2**63 - 1


def is_whole(value: object, low: float = -math.inf, high: float = math.inf) -> TypeGuard[int]:
    """Say whether this is an int from `low` to `high`; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: object) -> TypeGuard[float]:
    """Say whether this is a finite int or float; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_whole(name: str, value: int, low: int, high: int | None = None, *, of: str = "", hint: str = "") -> int:
    """Return a whole number from `low` to `high`, or raise ConfigError; `of` is what it counts."""
    if not is_whole(value, low, math.inf if high is None else high):
        _refuse(name, value, f"a whole number{of and f' of {of}'}, {_bounds(low, high)}", hint)
    return value


def check_number(
    name: str,
    value: float,
    low: float,
    high: float | None = None,
    *,
    above: bool = False,
    below: float = math.inf,
    hint: str = "",
) -> float:
    """Return a finite number from `low` to `high`, or above `low`, and below `below`; else raise ConfigError."""
    if not is_number(value) or value < low or (above and value == low) or (high is not None and value > high):
        bounds = f" above {low}{'' if high is None else f', {high} at most'}" if above else f", {_bounds(low, high)}"
        _refuse(name, value, f"a number{bounds}", hint)
    if value >= below:
        _refuse(name, value, f"below {below}", hint)
    return value


def check_flag(name: str, value: bool) -> None:
    """Raise ConfigError where a setting is neither True nor False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r} is neither True nor False")


def check_choice(name: str, value: object, known: Iterable[str], where: str = "") -> None:
    """Raise ConfigError where a setting is none of the known words; " here", say, is where they are known."""
    if value not in tuple(known):
        raise ConfigError(f"unknown {name} {value!r}{known_are(known, value, where)}")


def check_ratio(ratio: float) -> None:
    """Raise ConfigError where a ratio is none."""
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)):
        raise ConfigError(f"ratio must be a number, got {ratio!r}")
    if not 0 < ratio <= 1:
        raise ConfigError(f"ratio = {ratio!r} lies outside (0, 1]; it is the share that is sent: one per cent is 0.01")


def _bounds(low: float, high: float | None) -> str:
    return f"{low:,} or more" if high is None else f"{low:,} to {high:,}"


def _refuse(name: str, value: object, wanted: str, hint: str) -> NoReturn:
    raise ConfigError(f"{name} = {value!r} is not {wanted}{hint and f': {hint}'}")
