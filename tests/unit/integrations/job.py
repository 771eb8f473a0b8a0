"""Jobs whose ranks are forked from a process that has imported a library: it takes seconds, and is done once."""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

import torch.distributed as dist

from tests.unit.front.ddp.job import Ended, _server, started

LIMIT_S = 600.0
"""Only what hangs takes so long."""


def run_jobs(module: str, bodies: Mapping[str, int]) -> dict[str, list[Ended]]:
    """Return how each rank of each job has ended, by its body: a function of a module that imports the library.

    `bodies`: how many ranks call each.

    The module is imported once, in a process of its own; each rank calls body(rank).
    """
    stores = [dist.TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False) for ranks in bodies.values()]
    receiver, sender = multiprocessing.Pipe(duplex=False)
    jobs = [(store.port, *body) for store, body in zip(stores, bodies.items(), strict=True)]
    process = _server().Process(target=_run, args=(sender, module, jobs))
    process.start()
    sender.close()
    try:
        assert receiver.poll(LIMIT_S), f"jobs have not ended within {LIMIT_S:g} s"
        return dict(zip(bodies, pickle.loads(receiver.recv_bytes()), strict=True))
    finally:
        process.kill()
        process.join()


def _run(pipe: Connection, name: str, jobs: Sequence[tuple[int, str, int]]) -> None:
    module = importlib.import_module(name)
    context = multiprocessing.get_context("fork")  # this process has one thread
    ended = [started(context, port, ranks, {}, getattr(module, body)) for port, body, ranks in jobs]
    pipe.send_bytes(pickle.dumps(ended))
