"""Latencies and bandwidths as people write them: `1ms`, `5gbit`.

Inside, alpha is in seconds and beta in seconds per byte.
"""

from __future__ import annotations

import math
import re

from hvd_compress.errors import ConfigError

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BITS_PER_S = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_LONGEST_S, _LEAST_BITS_PER_S, _MOST_BITS_PER_S = 1e9, 1e-3, 1e18
"""Beyond anything that there is, and within what can be reckoned with: 30 years, and a billion gbit."""
_BITS_PER_S |= {"bps": 1.0, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9, "tbps": 1e12}
_QUANTITY = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?nan|[-+]?inf)\s*([a-zµ/]*)", re.IGNORECASE)


def parse_latency(text: str, what: str = "latency", example: str = "4ms") -> float:
    """Return the seconds that `text` stands for: a number and s, ms, us (or µs) or ns, such as "4ms"; zero is allowed.

    `what` it is and an `example` of it are for messages.

    Raises ConfigError where the unit is missing or unknown, and where the number is negative, not finite or absurd.
    """
    seconds = _parse(text, what, {**_SECONDS, "µs": 1e-6}, example)
    if seconds > _LONGEST_S:
        raise ConfigError(f"{what} {text!r} is out of range: give 0s to {_LONGEST_S:g}s")
    return seconds


def parse_bandwidth(text: str) -> float:
    """Return the bytes per second that `text` stands for: a number and bit, kbit, mbit, gbit or tbit, such as "5gbit".

    Prefixes are decimal: 1gbit is 10^9 bits, or 125,000,000 bytes, a second. "mbps", "Mbit/s" and the like say the
    same, in any case: bits in every spelling, so that "MBps" is refused rather than guessed. beta, the seconds
    per byte, is 1 over the result.

    Raises ConfigError where the unit is missing or unknown, and where the number is not positive, not finite or absurd.
    """
    found = _parse(text, "bandwidth", _BITS_PER_S, example="5gbit", suffix="/s")
    if found / 8 == 0:
        raise ConfigError(f"bandwidth {text!r} must be more than zero")
    if not _LEAST_BITS_PER_S <= found <= _MOST_BITS_PER_S:
        raise ConfigError(
            f"bandwidth {text!r} is out of range: give {_LEAST_BITS_PER_S:g}bit to {_MOST_BITS_PER_S:g}bit"
        )
    return found / 8


def _parse(text: str, what: str, units: dict[str, float], example: str, suffix: str = "") -> float:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{what} {text!r} is not a number with a unit, such as {example}")
    number, written = float(match[1]), match[2]
    if not written:
        raise ConfigError(
            f"{what} {text!r} has no unit: write it as {text.strip()}{next(iter(re.findall('[a-z]+$', example)), '')}"
        )
    unit = written.lower().removesuffix(suffix)
    if unit not in units or "B" in written:
        bits = "; bits a second, not bytes" if units is _BITS_PER_S else ""
        raise ConfigError(f"{what} {text!r} has an unknown unit {written!r}: known are {', '.join(units)}{bits}")
    if not math.isfinite(number) or number < 0:
        raise ConfigError(f"{what} {text!r} must be a finite number that is not negative")
    return number * units[unit]
