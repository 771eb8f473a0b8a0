"""Where runs and figures are kept."""

from __future__ import annotations

from benchmarks.frame import store

BUILD = store.BUILD / "time_to_accuracy"
RESULT = store.RESULTS / "time-to-accuracy"
"""Without its suffix: the page, the picture and the figures."""
BEFORE = BUILD / "before.json"
"""The figures as they were before the first run in this checkout: what other machines have measured counts, too."""


def begin() -> None:
    """Keep the figures of earlier machines, before the first run in this checkout."""
    figures = RESULT.with_suffix(".json")
    if not BEFORE.exists() and figures.exists():
        store.write(BEFORE, store.read(figures))
