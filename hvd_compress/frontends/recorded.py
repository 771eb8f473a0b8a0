"""Of the optimizers and models of a process one is recorded, where the environment asks for it: the first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from hvd_compress.settings import Settings

_lock = threading.Lock()
_taken = False


@contextmanager
def recorded_once(settings: Settings, of_all: bool = True) -> Iterator[Settings]:
    """Yield the settings of another optimizer or model: without recordings, where an earlier one has them.

    A front end makes each within such a block. All ranks make those that are of all ranks (`of_all`) in the same order,
    so the same one is recorded; one of some ranks is not, as the others would take a later one for the first. An error
    in the block leaves the recordings to the next one.
    """
    if not settings.recordings or not of_all or not _take():
        yield replace(settings, recordings=())
        return
    try:
        yield settings
    except BaseException:
        release()
        raise


def release() -> None:
    """Another optimizer of this process may be recorded."""
    global _taken
    with _lock:
        _taken = False


def _take() -> bool:
    global _taken
    with _lock:
        free, _taken = not _taken, True
    return free
