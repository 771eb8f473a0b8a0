"""A runtime: whoever submits a tensor by name gets its result when all members of its process set have done so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

from hvd_compress.engines.base import Engine
from hvd_compress.errors import CommunicationError, ConfigError, RanksDifferError, UsageError
from hvd_compress.runtime.executor import Entry, Executor
from hvd_compress.runtime.negotiator import Negotiator
from hvd_compress.runtime.request import ADD_SET, JOIN, LEAVE, REMOVE_SET, Request, Response

_PATIENCE_S = 1.0
"""How long close() waits for a running collective after a rank was lost."""


class Runtime:
    """Matches tensors by name as Horovod does, and moves them over an engine.

    Two threads: one receives what other ranks ask for, one moves tensors. Both sleep when there is nothing to do. The
    constructor is collective over the engine, which nobody else uses from now on.

    Args:
        fusion_bytes: small allreduces are moved as one up to this size, in bytes.
        timeout_s: how long a tensor waits for ranks that do not submit it, and how long it may then move.

    Raises CommunicationError where ranks do not come.
    """

    def __init__(self, engine: Engine, fusion_bytes: int, timeout_s: float) -> None:
        self._lock = threading.Lock()
        self._calling: int | None = None  # the thread that holds it to submit something
        self._entries: dict[tuple[int, str], Entry] = {}
        self._executing: tuple[Entry, ...] = ()
        self._joining: Entry | None = None
        self._lost_reason: str | None = None
        self._rank, self._timeout_s = engine.rank, timeout_s
        self._current: tuple[Request, float] | None = (
            None  # the request that is carried out, the first if fused, and since when
        )
        self._silent = False  # a rank timed out without leaving, and nothing has moved among all since
        self._executor = Executor(engine, fusion_bytes)
        self._responses: SimpleQueue[Response | None] = SimpleQueue()
        self._negotiator = Negotiator(engine, fusion_bytes, timeout_s, self._responses.put, self.lose, self._watch)
        self._thread = threading.Thread(target=self._move_all, name="hvd-compress-runtime", daemon=True)
        self._thread.start()

    def submit(self, entries: Sequence[Entry]) -> None:
        """Ask for tensors, in this order. Any thread may.

        Raises:
            ConfigError: a name is in flight already: nothing of them is submitted.
            CommunicationError: a rank is gone.
            UsageError: after close().
        """
        with self._call():
            self._require_open(entries[0])
            keys = [(entry.request.process_set_id, entry.request.name) for entry in entries]
            for number, key in enumerate(keys):
                if key in self._entries or key in keys[:number]:
                    raise ConfigError(
                        f"a tensor called {key[1]!r} is in flight already: wait for it, or give this one another name"
                    )
            self._entries.update(zip(keys, entries, strict=True))
            try:
                self._negotiator.submit([entry.request for entry in entries])
            except BaseException:  # Ctrl-C, too
                for key in keys:
                    del self._entries[key]
                raise

    def wait(self, entry: Entry) -> object:
        """Return the result of what was submitted.

        Raises:
            RanksDifferError: ranks want different things; names both.
            CommunicationError: a rank did not come, has left or is gone.
        """
        entry.done.wait()
        if entry.error is not None:
            raise entry.error
        return entry.result

    def join(self) -> int:
        """Take part with zeros until all ranks have joined; return the one that came last. Others go on meanwhile."""
        with self._call():
            entry = Entry(Request(JOIN, JOIN))
            self._require_open(entry)
            if self._joining is not None:
                raise UsageError("this rank has joined already, and waits for the others")
            self._joining = entry
            try:
                self._negotiator.join()
            except BaseException:
                self._joining = None
                raise
        last = self.wait(entry)
        assert isinstance(last, int)
        return last

    def add_set(self, ranks: Sequence[int]) -> int:
        """Make a process set; return its number. Collective over all ranks, which name the same."""
        entry = Entry(Request(ADD_SET, f"{ADD_SET} {list(ranks)}", shape=tuple(ranks)))
        self.submit([entry])
        number = self.wait(entry)
        assert isinstance(number, int)
        return number

    def remove_set(self, number: int) -> None:
        """Forget a process set. Collective over all ranks."""
        entry = Entry(Request(REMOVE_SET, f"{REMOVE_SET} {number}", shape=(number,)))
        self.submit([entry])
        self.wait(entry)

    def require_closable(self) -> None:
        """Raise UsageError in a signal's handler that interrupts submit() or join(): close() would wait for them."""
        if self._calling == threading.get_ident():
            raise UsageError(
                "shutdown() in a signal's handler, while this thread submits a tensor: have the handler raise an "
                "exception, such as SystemExit, or set a flag, and call shutdown() after it"
            )

    def close(self) -> None:
        """Leave. What is in flight ends with an error; so does what other ranks ask of this one later."""
        self._negotiator.close()
        self._responses.put(None)
        self._thread.join(self._timeout_s if self._lost_reason is None else _PATIENCE_S)
        if self._thread.is_alive() and self._lost_reason is None:  # what is stuck may never end
            self.lose(f"rank {self._rank}: what moved did not end within {self._timeout_s:g} s of shutdown()")
            self._thread.join(_PATIENCE_S)
        self._fail(UsageError, "this rank has shut down")
        if self._silent:  # the end of the process would wait for a rank that is stopped
            self._executor.abandon()
        self._executor.close()

    def lose(self, why: str) -> None:
        """Nothing can be exchanged any more: say so to all who wait, and to all who come."""
        self._lost_reason = self._lost_reason or why
        self._fail(CommunicationError, why)  # first: what is aborted fails in words of its own
        self._executor.abort(why)

    def forget(self) -> None:
        """In a process that was forked, which is no rank: its threads are gone, and a lock may be held."""
        self._lock = threading.Lock()
        self._negotiator.forget()

    @contextmanager
    def _call(self) -> Iterator[None]:
        with self._lock:
            self._calling = threading.get_ident()
            try:
                yield
            finally:
                self._calling = None

    def _require_open(self, entry: Entry) -> None:
        if self._lost_reason is not None:
            raise _named(CommunicationError, entry, self._lost_reason)
        if not self._thread.is_alive():
            raise _named(UsageError, entry, "this rank has shut down: call init() first")

    def _move_all(self) -> None:
        while (response := self._responses.get()) is not None:
            self._carry_out(response)
            self._current, self._executing = None, ()
            self._negotiator.finished()

    def _carry_out(self, response: Response) -> None:
        if response.requests[0].verb == JOIN:
            self._end_join(response)
            return
        if response.requests[0].verb == LEAVE:
            self._lost_reason = self._lost_reason or response.error  # nothing moves, so nothing is aborted
            self._fail(CommunicationError, response.error)
            return
        with self._lock:
            keys = [(request.process_set_id, request.name) for request in response.requests]
            found = {key[1]: self._entries.pop(key) for key in keys if self._is_addressed(key, response)}
            self._executing = tuple(found.values())
            self._current = response.requests[0], time.monotonic()
        if response.error:
            self._silent = self._silent or (response.silent and bool(found))
            for entry in found.values():
                entry.end(_error_of(response))
        elif self._lost_reason is not None:  # what others would get without this rank's part is wrong
            for entry in found.values():
                entry.end(_named(CommunicationError, entry, self._lost_reason))
        elif self._executor.takes_part(response):
            error: Exception | None = None
            try:
                self._executor.run(response, found)
                self._silent = self._silent and response.requests[0].process_set_id != 0
            except Exception as raised:
                error = CommunicationError(f"{response.requests[0].describe()} {list(found)} failed: {raised}")
                error.__cause__ = raised
                self._negotiator.report_lost(str(error))
                self.lose(str(error))
            for entry in found.values():
                entry.end(error)

    def _is_addressed(self, key: tuple[int, str], response: Response) -> bool:
        is_for = not response.to or self._rank in response.to
        return key in self._entries and is_for and self._rank not in response.absent

    def _end_join(self, response: Response) -> None:
        if response.to and self._rank not in response.to:
            return
        with self._lock:
            entry, self._joining = self._joining, None
        if entry is not None:
            self._silent = self._silent or response.silent
            entry.result = response.last
            entry.end(_error_of(response) if response.error else None)

    def _watch(self, now: float) -> None:
        current = self._current
        if current is not None and self._lost_reason is None and now - current[1] > self._timeout_s:
            why = (
                f"rank {self._rank} has waited {self._timeout_s:g} s for {current[0].verb} of {current[0].name!r} to "
                "end: a rank is stopped, or gone"
            )
            self._negotiator.report_lost(why)
            self.lose(why)

    def _fail(self, kind: type[Exception], why: str) -> None:
        with self._lock:
            entries, self._entries = [*self._executing, *self._entries.values()], {}
            joining, self._joining = self._joining, None
        for entry in entries if joining is None else [*entries, joining]:
            entry.end(_named(kind, entry, why))


def _named(kind: type[Exception], entry: Entry, why: str) -> Exception:
    verb, name = entry.request[:2]
    return kind(f"{verb}: {why}" if verb == name else f"{verb} of {name!r}: {why}")  # join has no name


def _error_of(response: Response) -> Exception:
    return CommunicationError(response.error) if response.missing else RanksDifferError(response.error)
