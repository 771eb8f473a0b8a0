"""When two times are told apart: noise is a share of what is long, and some fraction of a second of what is short."""

from __future__ import annotations


def times_apart(a_s: float, b_s: float) -> float:
    """Return how many times as long the longer of two times is."""
    return max(a_s, b_s, 1e-9) / max(min(a_s, b_s), 1e-9)


def differ(a_s: float, b_s: float, factor: float, least_s: float) -> bool:
    """Whether two times, in seconds, differ by more than a factor and by more than `least_s`; NaN differs from none."""
    return times_apart(a_s, b_s) > factor and abs(a_s - b_s) > least_s
