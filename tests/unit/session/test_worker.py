"""A worker's thread, from its first call on."""

from __future__ import annotations

import threading

import pytest

from hvd_compress.errors import CommunicationError
from hvd_compress.session.worker import Worker


def test_the_first_call_runs_in_the_thread_before_all_others() -> None:
    calls: list[tuple[str, str]] = []

    def note(what: str) -> None:
        calls.append((what, threading.current_thread().name))

    worker = Worker("worker", lambda: note("begin"))
    worker.submit(lambda: note("first")).result(10)
    worker.submit(lambda: note("second")).result(10)
    worker.stop(10)
    assert calls == [(what, "worker") for what in ("begin", "first", "second")]


def test_where_it_fails_later_ones_fail_alike() -> None:
    """A GPU that refuses a thread must not leave those who wait for it without an answer."""
    worker = Worker("worker", lambda: int("no GPU"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no GPU"):
            worker.submit(lambda: 1).result(10)
    worker.stop(10)


def test_where_the_system_starts_no_more_threads_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(
        CommunicationError, match=r"'worker' cannot be made: the system starts no more threads .*ulimit -u"
    ):
        Worker("worker")
