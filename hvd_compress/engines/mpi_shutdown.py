"""Noticing that MPI is shut down under a running collective."""

from __future__ import annotations

import os
import sys
import weakref
from functools import cache

from mpi4py import MPI

from hvd_compress.engines.base import Engine

_watched: weakref.WeakSet[Engine] = weakref.WeakSet()


def watch(engine: Engine) -> None:
    """When MPI is shut down, let later collectives of `engine` fail, and end this process if one is running.

    Horovod starts MPI in its background thread, and shuts it down there as soon as any rank has ended, such as one with
    fewer batches than the others. A collective would then crash, or never return. MPI_Finalize begins by deleting the
    attributes of MPI_COMM_SELF, so that their callbacks can act while MPI still works.
    """
    _register()
    _watched.add(engine)


@cache
def _register() -> None:
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_on_shutdown), None)


def _on_shutdown(*_: object) -> None:
    for engine in list(_watched):
        engine.lost = (
            "another rank has ended, and Horovod has shut MPI down under this collective. If that rank printed an "
            "error, it is the cause; if not, it took fewer steps than this one"
        )
        if engine.running:
            print(
                f"CommunicationError: rank {engine.rank}, {engine.pending}: {engine.lost}", file=sys.stderr, flush=True
            )
            os._exit(1)
