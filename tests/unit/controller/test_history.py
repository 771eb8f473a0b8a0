"""What a run remembers of its choices."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_compress.controller.history import KEPT, Event, History


def test_a_full_disk_ends_the_log_and_not_the_training() -> None:
    seen: list[Event] = []
    history = History(Path("/dev/full"), [seen.append])
    with pytest.warns(RuntimeWarning, match=r"log /dev/full ends here: .*No space left"):
        history.add(Event(1, "begin", 0))
    history.add(Event(2, "window", 0))
    assert list(history) == seen == [Event(1, "begin", 0), Event(2, "window", 0)]


def test_memory_does_not_grow_for_ever() -> None:
    history = History()
    for step in range(KEPT + 5):
        history.add(Event(step, "window", 0))
    assert len(history) == KEPT
    assert [event.step for event in history][-1] == KEPT + 4
