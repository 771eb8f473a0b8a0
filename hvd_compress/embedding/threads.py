"""The threads of a Lookahead, one for each of its engines, and how the program waits for them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TypeVar

from hvd_compress.embedding.group import Engines
from hvd_compress.embedding.journal import AgreedJournalError
from hvd_compress.engines.base import Engine
from hvd_compress.engines.leave import at_end
from hvd_compress.errors import CommunicationError, ConfigError, UsageError, located
from hvd_compress.session.worker import Worker

T = TypeVar("T")
_END_S, _STOP_S = 10.0, 1.0
"""How long what is under way may take at the end, and a thread that has nothing more to do."""
_THREADS = ("control", "critical", "later")


class Threads:
    """Runs calls in the order in which they are handed over, those for each engine in a thread of its own."""

    def __init__(self, engines: Engines, timeout_s: float | None) -> None:
        """`timeout_s`: how long a call may wait for other ranks; None: for ever, as a server does."""
        self.engines, self._timeout_s = engines, timeout_s
        self._workers = {name: Worker(f"hvd_compress embedding {name}") for name in _THREADS}
        self._end = at_end(self, _stop, tuple(self._workers.values()))

    def submit(self, name: str, call: Callable[[], T]) -> Future[T]:
        """Run a call in the thread `name`, an attribute of Engines."""
        return self._workers[name].submit(partial(_run, getattr(self.engines, name), call))

    def wait(self, future: Future[T], step: int, patient: bool = False) -> T:
        """Return a call's result. `patient`: other ranks may have much to read or write, and are waited for.

        Raises what it has raised, with rank and step; CommunicationError where other ranks do not answer in time.
        """
        rank = self.engines.control.rank
        with located(f"rank {rank}, step {step}, embedding rows"):
            try:
                return future.result(None if patient else self._timeout_s)
            except FutureTimeoutError:
                pending = [each.pending for each in self.engines if each.running]
                self.abandon(f"no answer from other ranks within {self._timeout_s:g} s")
                raise CommunicationError(
                    f"no answer from other ranks within {self._timeout_s:g} s (HVD_COMPRESS_TIMEOUT_S), in "
                    f"{', '.join(pending) or 'no collective'}: all ranks iterate over a Lookahead together, also to "
                    "evaluate, and save together"
                ) from None

    def abandon(self, why: str) -> None:
        """Nothing more is exchanged."""
        for engine in self.engines:
            if engine.lost is None:
                engine.lost = why
                engine.abandon()

    def drain(self) -> None:
        """Wait until the threads have done what was handed over, however it has ended.

        Raises CommunicationError where a collective does not end.
        """
        for name, worker in self._workers.items():
            try:
                worker.submit(lambda: None).result(self._timeout_s)
            except FutureTimeoutError:
                pending = getattr(self.engines, name).pending
                raise CommunicationError(f"an exchange of embedding rows does not end, in {pending}") from None

    def stop(self) -> None:
        """End the threads, behind what they are doing."""
        self._end()


def _stop(workers: tuple[Worker, ...]) -> None:
    """What was handed over is done first, as other ranks take part in it; all get the same time for that."""
    if not any(worker.is_current for worker in workers):
        wait([worker.submit(lambda: None) for worker in workers], _END_S)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.stop(_STOP_S)


def _run(engine: Engine, call: Callable[[], T]) -> T:
    """What all ranks refuse alike leaves the engine as it is; anything else may have left a collective unfinished."""
    if engine.lost is not None:
        raise CommunicationError(engine.lost)
    try:
        return call()
    except (ConfigError, UsageError, AgreedJournalError):
        raise
    except Exception as error:
        engine.lost = engine.lost or f"an earlier exchange of embedding rows failed: {error}"
        engine.abandon()
        raise
