"""Which optimizer exchanges the gradients of a parameter: the one that was wrapped last, and no other."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from hvd_compress.errors import UsageError


class Watcher(Protocol):
    """A distributed optimizer: hooks on its parameters show it every gradient."""

    @property
    def is_retired(self) -> bool:
        """Whether another one exchanges the gradients of its parameters now."""

    def require_idle(self) -> None:
        """Raise UsageError while gradients are being exchanged."""

    def retire(self) -> None:
        """Exchange nothing more, and refuse to step."""


_live: weakref.WeakKeyDictionary[Watcher, frozenset[int]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()  # ranks may be threads


def register(watcher: Watcher, parameters: Iterable[torch.Tensor]) -> None:
    """A new optimizer watches these parameters, which live as long as it does."""
    with _lock:
        _live[watcher] = frozenset(map(id, parameters))


def watching() -> list[Watcher]:
    """Return those that exchange gradients now."""
    with _lock:
        return [watcher for watcher in _live if not watcher.is_retired]


@contextmanager
def taking_over(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """In the block another optimizer is wrapped over these parameters; if it succeeds, those that watch them retire.

    One that nobody uses any more may be alive, as a learning-rate scheduler or a cycle refers to it, and both
    would exchange the same gradients. Nothing is sent, as it may be alive on some ranks only.

    Raises:
        UsageError: before the block, where one of them is exchanging gradients.
    """
    taken = set(map(id, parameters))
    with _lock:
        earlier = [watcher for watcher, watched in _live.items() if watched & taken]
    for watcher in earlier:
        watcher.require_idle()
    yield
    for watcher in earlier:
        watcher.retire()


def replaced(call: str) -> UsageError:
    """Return what a call of a retired optimizer raises."""
    return UsageError(
        f"{call} of an optimizer that was replaced: another one was wrapped over its parameters later; use that one, "
        "make learning-rate schedulers anew over it, and load the old schedulers' state_dict() into them"
    )
