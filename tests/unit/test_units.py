import pytest

from hvd_compress.errors import ConfigError
from hvd_compress.units import parse_bandwidth, parse_latency


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1ms", 1e-3), ("0.2 ms", 2e-4), ("20MS", 0.02), ("3us", 3e-6), ("3µs", 3e-6), ("5e2ns", 5e-7), ("0s", 0.0)],
)
def test_latency(text: str, seconds: float) -> None:
    assert parse_latency(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("1gbit", 125e6), ("5 Gbit/s", 625e6), ("50Mbps", 6.25e6), ("8bit", 1.0), ("1.5kbit", 187.5), (".8bit", 0.1)],
)
def test_bandwidth(text: str, bytes_per_s: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1", "no unit"),
        ("-1ms", "not negative"),
        ("nanms", "finite"),
        ("inf s", "finite"),
        ("1e999s", "finite"),
        ("1e308s", "out of range: give 0s to 1e\\+09s"),
        ("1gbit", "unknown unit"),
        ("ms", "not a number"),
        ("", "not a number"),
        ("1ms2", "not a number"),
    ],
)
def test_bad_latency(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_latency(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1000", "no unit"),
        ("-5gbit", "not negative"),
        ("0mbit", "more than zero"),
        ("5e-324bit", "more than zero"),
        ("nangbit", "finite"),
        ("1e300tbit", "out of range: give 0.001bit to 1e\\+18bit"),
        ("1e-300bit", "out of range"),
        ("1ms", "unknown unit"),
        ("1MBps", "unknown unit 'MBps': known are bit, .*tbps; bits a second, not bytes"),
        ("1GB/s", "unknown unit"),
        ("fast", "not a number"),
    ],
)
def test_bad_bandwidth(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_bandwidth(text)
