"""Polling that leaves the core to others: in ever longer pauses."""

from __future__ import annotations

import time
from collections.abc import Callable

SPIN_S = 50e-6
"""How long it is polled without a pause: what ends as soon would end later by a pause."""
SHARE, LONGEST_S = 16, 1e-3
"""A pause is this part of what was waited before, so that an exchange takes little longer by it; and the longest one,
in which a socket's buffer neither fills nor empties on the networks that are worth it."""


def poll(done: Callable[[], bool]) -> None:
    """Call `done` until it is true, in ever longer pauses. MPI moves bytes within these calls."""
    start_s = time.perf_counter()
    while not done():
        waited_s = time.perf_counter() - start_s
        if waited_s > SPIN_S:
            time.sleep(min(waited_s / SHARE, LONGEST_S))
