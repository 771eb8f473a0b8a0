"""A clock that tests hold: time passes only where in-process ranks communicate.

Each thread has a time of its own. Who waits for another thread, or for its message, goes on no earlier than that was
done. So what is measured follows from what is sent alone: the same in every run, however busy the machine is.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from hvd_compress.engines import inprocess
from hvd_compress.session import worker

LAUNCH_S, LATENCY_S, S_PER_BYTE = 2e-5, 2e-4, 8e-9
"""A collective takes 20 us on each rank, a message between two of them 200 us at 1 Gbit/s; computing takes no time."""
VERBS = ("allreduce", "allgather", "broadcast", "alltoall", "reduce_scatter", "gather")


PRICE = "seconds_a_byte"


def slowed(engine: inprocess.InProcessEngine, seconds_a_byte: Callable[[], float]) -> None:
    """Let what this rank sends take so long on a clock that is held, instead of S_PER_BYTE."""
    setattr(engine, PRICE, seconds_a_byte)


class Clock:
    """Takes the place of time.perf_counter().

    Attributes:
        s_per_byte: what the calling thread sends takes, in seconds.
    """

    def __init__(self) -> None:
        self._thread = threading.local()

    @property
    def s_per_byte(self) -> float:
        return getattr(self._thread, "s_per_byte", S_PER_BYTE)

    @s_per_byte.setter
    def s_per_byte(self, seconds: float) -> None:
        self._thread.s_per_byte = seconds

    def __call__(self) -> float:
        """Return the time of the calling thread, in seconds."""
        return getattr(self._thread, "now_s", 0.0)

    def reach(self, moment_s: float) -> None:
        """The calling thread has waited for what was done at this time."""
        self._thread.now_s = max(self(), moment_s)


def hold(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock of the package, and let the collectives of in-process ranks take time on it."""
    clock, real, submit = Clock(), time.perf_counter, worker.Worker.submit
    for name, module in list(sys.modules.items()):
        if name.startswith("hvd_compress") and vars(module).get("perf_counter") is real:
            monkeypatch.setattr(module, "perf_counter", clock)
    monkeypatch.setattr(time, "perf_counter", clock)

    class Messages:
        """Those under way from one rank to another."""

        def __init__(self) -> None:
            self._queue: SimpleQueue[tuple[float, float, torch.Tensor | None]] = SimpleQueue()

        def put(self, message: torch.Tensor | None) -> None:
            self._queue.put((clock(), clock.s_per_byte, message))

        def get(self, timeout: float) -> torch.Tensor | None:
            sent_s, s_per_byte, message = self._queue.get(timeout=timeout)
            if message is not None:
                clock.reach(sent_s + LATENCY_S + s_per_byte * message.numel() * message.element_size())
            return message

    class Answer(Future[Any]):
        """Of a worker's thread."""

        given_s = 0.0

        def set_result(self, result: object) -> None:
            self.given_s = clock()
            super().set_result(result)

        def result(self, timeout: float | None = None) -> Any:
            found = super().result(timeout)
            clock.reach(self.given_s)
            return found

    def submit_now(self: worker.Worker, call: Callable[[], Any]) -> Future[Any]:
        asked_s = clock()

        def begin() -> Any:
            clock.reach(asked_s)
            return call()

        return submit(self, begin)

    def launched(collective: Callable[..., Any]) -> Callable[..., Any]:
        def call(engine: inprocess.InProcessEngine, *arguments: object) -> Any:
            clock.s_per_byte = getattr(engine, PRICE, lambda: S_PER_BYTE)()
            clock.reach(clock() + LAUNCH_S)
            return collective(engine, *arguments)

        return call

    for verb in VERBS:
        own = getattr(inprocess.InProcessEngine, f"_{verb}")
        monkeypatch.setattr(inprocess.InProcessEngine, f"_{verb}", launched(own))
    monkeypatch.setattr(inprocess, "SimpleQueue", Messages)
    monkeypatch.setattr(worker, "Future", Answer)
    monkeypatch.setattr(worker.Worker, "submit", submit_now)
    return clock
