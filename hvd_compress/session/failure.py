"""What ends all exchanges: the first failure, in words, and how the process still comes to its end."""

from __future__ import annotations

import threading

from hvd_compress.engines.base import Engine
from hvd_compress.errors import CommunicationError


class Failure:
    """After the first one nothing is launched any more: ranks would disagree on which collective comes next.

    Attributes:
        words: what it was; None where nothing has failed. The exception itself would keep alive, by its traceback,
            whoever was called, the optimizer included.
        may_hang: whether a collective may be unfinished that others have not joined.
        engine: what is abandoned then; None before there is one.
    """

    def __init__(self) -> None:
        self.words: str | None = None
        self.may_hang = False
        self.engine: Engine | None = None
        self._lock = threading.Lock()

    def fail(self, error: BaseException) -> None:
        """Launch nothing more, and let the process end although collectives may be unfinished."""
        with self._lock:
            first = self.words is None
            if first:
                self.words, self.may_hang = _words(error), True
        if first and self.engine is not None:
            self.engine.abandon()

    def refuse(self, error: BaseException) -> None:
        """Launch nothing more, as no rank does: no collective is unfinished, and all ranks get to say what is wrong."""
        with self._lock:
            if self.words is None:
                self.words = _words(error)

    def require_none(self) -> None:
        """Raise CommunicationError, with the words of the first failure, where there was one."""
        if self.words is not None:
            raise CommunicationError(f"nothing is exchanged any more, since an earlier exchange failed: {self.words}")


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__  # an interrupt has no words
