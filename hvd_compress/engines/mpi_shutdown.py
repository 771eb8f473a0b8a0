"""Noticing that MPI is shut down under a running collective."""

from __future__ import annotations

import os
import sys
import time
import weakref
from functools import cache

from hvd_compress.engines.base import Engine
from hvd_compress.engines.mpi_library import MPI

GRACE_S = 2.0
"""A rank that has ended has done its part of all that ran before: what the others are still in ends within this."""
_QUIET_S, _LOOK_S = 0.05, 0.005
"""Between two collectives of an exchange less time passes; and how often to look."""

_watched: weakref.WeakSet[Engine] = weakref.WeakSet()


def watch(engine: Engine) -> None:
    """When MPI is shut down, let what runs on `engine` end, fail later collectives, and end this process if one hangs.

    Horovod starts MPI in its background thread, and shuts it down there as soon as any rank has ended: one that was
    quicker in the last collective, or one with fewer batches than the others. A collective would then crash, or never
    return. MPI_Finalize begins by deleting the attributes of MPI_COMM_SELF, so that their callbacks can act while MPI
    still works.
    """
    _register()
    _watched.add(engine)


@cache
def _register() -> None:
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_on_shutdown), None)


def _on_shutdown(*_: object) -> None:
    engines = list(_watched)
    _let_end(engines)
    for engine in engines:
        engine.lost = (
            "another rank has ended, and Horovod has shut MPI down under this collective. If that rank printed an "
            "error, it is the cause; if not, it took fewer steps than this one, or left out what "
            "all ranks call at the end, such as finish() of local steps"
        )
        if engine.running:
            place = engine.place or f"rank {engine.job_rank}"
            print(f"CommunicationError: {place}, {engine.pending}: {engine.lost}", file=sys.stderr, flush=True)
            os._exit(1)


def _let_end(engines: list[Engine]) -> None:
    """Wait until no collective has run for a moment, but not for ever: between two of an exchange none runs either."""
    now = quiet_since = time.monotonic()
    deadline = now + GRACE_S
    while now < deadline and now - quiet_since < _QUIET_S:
        time.sleep(_LOOK_S)
        now = time.monotonic()
        if any(engine.running for engine in engines):
            quiet_since = now
