"""Settings of compressors, checked when they are made."""

from __future__ import annotations

import math
import sys

from hvd_compress.errors import ConfigError, known_are

MAX_SEED = 2**63 - 1


def check_whole(name: str, value: int, low: int, high: int | None = None) -> None:
    """Raise ConfigError where a setting is no whole number from `low` to `high`."""
    found = not isinstance(value, bool) and isinstance(value, int)
    if not found or value < low or (high is not None and value > high):
        bounds = f"{low} or more" if high is None else f"{low} to {high}"
        raise ConfigError(f"{name} = {value!r} is not a whole number, {bounds}")


def check_number(name: str, value: float, low: float, *, above: bool = False, below: float = math.inf) -> None:
    """Raise ConfigError where a setting is no finite number from `low` on, or above it, and below `below`."""
    found = not isinstance(value, bool) and isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
    if not found or value < low or (above and value == low):
        raise ConfigError(f"{name} = {value!r} is not a number{f' above {low}' if above else f', {low} or more'}")
    if value >= below:
        raise ConfigError(f"{name} = {value!r} is not below {below}")


def check_flag(name: str, value: bool) -> None:
    """Raise ConfigError where a setting is neither True nor False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r} is neither True nor False")


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise ConfigError where a setting is none of the known words."""
    if value not in known:
        raise ConfigError(f"unknown {name} {value!r}{known_are(known, value)}")


def check_ratio(ratio: float) -> None:
    """Raise ConfigError where a ratio is none."""
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)):
        raise ConfigError(f"ratio must be a number, got {ratio!r}")
    if not 0 < ratio <= 1:
        raise ConfigError(f"ratio = {ratio!r} lies outside (0, 1]; it is the share that is sent: one per cent is 0.01")
