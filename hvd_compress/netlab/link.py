"""Latency and bandwidth of a host's line, as they are written and as they are reckoned with."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress import units
from hvd_compress.checks import check_number
from hvd_compress.errors import ConfigError

_LONGEST_LATENCY_S = 60.0
_LOWEST_BYTES_PER_S, _HIGHEST_BYTES_PER_S = 1e3 / 8, 1e12 / 8


@dataclass(frozen=True)
class Link:
    """The line between a host and the switch; `bytes_per_s` in each direction at once.

    Between two hosts the larger latency and the smaller bandwidth count; the latency is that of one way.
    """

    latency_s: float
    bytes_per_s: float

    @classmethod
    def parse(cls, latency: str, bandwidth: str) -> Link:
        """Raises ConfigError for what parse_latency() and parse_bandwidth() refuse."""
        return cls(parse_latency(latency), parse_bandwidth(bandwidth))

    def __str__(self) -> str:
        return f"{1e3 * self.latency_s:g}ms, {8e-6 * self.bytes_per_s:g}mbit"


@dataclass(frozen=True)
class Trouble:
    """What lines do beside carrying: frames arrive up to `jitter_s` later, and the share `loss` of packets never."""

    jitter_s: float
    loss: float

    @classmethod
    def parse(cls, jitter: str, loss: float) -> Trouble:
        """Raises ConfigError for what is no time and for a loss below 0 or from 1 on."""
        check_number("loss", loss, 0, below=1, hint="a share of packets, such as 0.01")
        return cls(parse_latency(jitter), loss)


def parse_latency(text: str) -> float:
    """Seconds of "4ms", "200us" or "0.05s". Raises ConfigError without a unit, below 0 and above a minute."""
    seconds = units.parse_latency(text)
    if seconds > _LONGEST_LATENCY_S:
        raise ConfigError(f"the latency {text!r} is out of range: give 0s to {_LONGEST_LATENCY_S:g}s")
    return seconds


def parse_bandwidth(text: str) -> float:
    """Bytes per second of "1gbit", "200mbit" or "1gbit/s": bits per second, in powers of 1000.

    Raises ConfigError without a unit, below 1kbit and above 1000gbit.
    """
    bytes_per_s = units.parse_bandwidth(text)
    if not _LOWEST_BYTES_PER_S <= bytes_per_s <= _HIGHEST_BYTES_PER_S:
        raise ConfigError(f"the bandwidth {text!r} is out of range: give 1kbit to 1000gbit")
    return bytes_per_s
