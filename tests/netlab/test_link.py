"""Latencies and bandwidths as they are written."""

from __future__ import annotations

import pytest

from hvd_compress.errors import ConfigError
from hvd_compress.netlab import Link
from hvd_compress.netlab.link import parse_bandwidth, parse_latency


@pytest.mark.parametrize(
    ("text", "seconds"), [("4ms", 0.004), ("200 us", 0.0002), ("0.05S", 0.05), ("0s", 0), ("1e3ns", 1e-6)]
)
def test_latency(text: str, seconds: float) -> None:
    assert parse_latency(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "bits_per_s"), [("1gbit", 1e9), ("200Mbit", 2e8), ("2.5gbit/s", 2.5e9), ("1000kbit", 1e6)]
)
def test_bandwidth(text: str, bits_per_s: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(bits_per_s / 8)


@pytest.mark.parametrize("text", ["4", "", "ms", "4 m", "4msec", "four ms", "4ms 5ms", "-1ms", "61s", "nan ms", "infs"])
def test_what_is_no_latency(text: str) -> None:
    with pytest.raises(ConfigError, match="latency"):
        parse_latency(text)


@pytest.mark.parametrize("text", ["1", "1GB", "1mb", "-1gbit", "0gbit", "1e9gbit", "gbit", "1gbit/h"])
def test_what_is_no_bandwidth(text: str) -> None:
    with pytest.raises(ConfigError, match="bandwidth"):
        parse_bandwidth(text)


def test_a_link_says_what_it_is() -> None:
    assert str(Link.parse("4ms", "1gbit")) == "4ms, 1000mbit"
