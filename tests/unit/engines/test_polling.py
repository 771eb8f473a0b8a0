"""How long a thread sleeps that waits for other hosts."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from hvd_compress.engines import polling


def waits(ends_s: float, poll_s: float, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], float]:
    """Return the pauses in which something is waited for, and when that is seen; to look takes `poll_s`."""
    now_s, pauses = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        pauses.append(seconds)

    def done() -> bool:
        nonlocal now_s
        now_s += poll_s
        return now_s >= ends_s

    monkeypatch.setattr(polling, "time", SimpleNamespace(perf_counter=lambda: now_s, sleep=sleep))
    polling.poll(done)
    return pauses, now_s


def test_what_ends_soon_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waits(polling.SPIN_S * 0.9, 1e-6, monkeypatch)[0] == []


@pytest.mark.parametrize("ends_s", [1e-4, 1e-3, 1e-2, 0.1, 1.0])
def test_pauses_grow_with_the_wait_and_cost_little_of_it(ends_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, seen_s = waits(ends_s, 1e-6, monkeypatch)
    assert pauses
    assert all(before <= after for before, after in pairwise(pauses))
    assert pauses[-1] <= polling.LONGEST_S
    assert ends_s <= seen_s <= ends_s * (1 + 1 / polling.SHARE) + 1e-5
    assert len(pauses) < 150 + ends_s / polling.LONGEST_S, "as few as that are no load for a core"
