"""Threads that Horovod has started give way, and no other; a thread of this process plays Horovod's."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from hvd_compress.frontends.horovod import background


@pytest.fixture
def thread() -> Iterator[int]:
    """The number of a thread that waits to be ended: what it has become nice to ends with it."""
    over = threading.Event()
    waiting = threading.Thread(target=over.wait)
    waiting.start()
    assert waiting.native_id is not None
    yield waiting.native_id
    over.set()
    waiting.join()


def niceness(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def test_threads_that_horovod_started_give_way_and_no_other(thread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_of_horovod", {thread, 2**22 + 1})  # and one that has ended
    own = niceness(0)
    background.give_way(own + 3)
    assert (niceness(thread), niceness(0)) == (own + 3, own)
    background.give_way(own + 1)
    assert niceness(thread) == own + 3, "it never takes back what it gave"


def test_what_init_starts_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    started = threading.Thread(target=over.wait)
    monkeypatch.setattr(background, "RUNTIME", "horovod")
    monkeypatch.setattr(background, "_inits", started.start)
    monkeypatch.setattr(background, "_of_horovod", set())
    background.init()
    assert background._of_horovod == {started.native_id}
    over.set()
    started.join()
