"""A daemon thread that does one thing after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from hvd_compress.engines.system_limits import naming_limits

T = TypeVar("T")
Task = Callable[["Future[None]"], None]
"""Takes what came of the first call in the thread."""


class Worker:
    """Runs callables in the order of submission, in one thread.

    Unlike a ThreadPoolExecutor its thread is a daemon: a collective that never returns must not keep the interpreter
    from ending.
    """

    def __init__(self, name: str, begin: Callable[[], None] = lambda: None) -> None:
        """`begin` is the first call in the thread; where it raises, so does every later one.

        Raises CommunicationError where the system starts no more threads.
        """
        self._queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=_run, args=(begin, self._queue), name=name, daemon=True)
        with naming_limits(f"the thread {name!r}"):
            self._thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run `call` after all that was submitted before; the future holds its result or its exception."""
        future: Future[T] = Future()
        stopped = self._stopped

        def task(begun: Future[None]) -> None:
            if stopped.is_set():
                future.cancel()
            elif (error := begun.exception()) is not None:
                future.set_exception(error)
            else:
                _run_into(future, call)

        self._queue.put(task)
        return future

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is this worker's."""
        return threading.current_thread() is self._thread

    def stop(self, wait_s: float = 0.0) -> None:
        """Let the thread end after what it is doing now; what waits behind it is cancelled.

        Waiting matters when the interpreter ends: it would kill the thread in the middle of a kernel, or while what the
        thread has of torch is released, and the process with it (std::terminate). A thread that may hang in a
        collective must not be waited for.
        """
        self._stopped.set()
        self._queue.put(None)
        if wait_s and not self.is_current:
            self._thread.join(wait_s)


def ran(call: Callable[[], T]) -> Future[T]:
    """Run `call` now, in the calling thread; the future holds its result or its exception."""
    future: Future[T] = Future()
    _run_into(future, call)
    return future


def done(result: T) -> Future[T]:
    """Return a future that holds it."""
    future: Future[T] = Future()
    future.set_result(result)
    return future


def _run_into(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # the waiting thread decides, whatever it is
        future.set_exception(error)


def _run(begin: Callable[[], None], tasks: queue.SimpleQueue[Task | None]) -> None:
    begun = ran(begin)
    while (task := tasks.get()) is not None:
        task(begun)
        del task  # it holds buckets and results, which must not live until the next one comes
