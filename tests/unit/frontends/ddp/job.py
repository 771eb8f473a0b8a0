"""Ranks as processes over gloo. They are forked from a server that has imported torch, so a job starts at once; or from
a child of it that has imported more, which takes seconds and is done once for several jobs.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext, ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LIMIT_S = 180.0
"""Only what hangs takes so long."""
_OURS = ["hvd_compress.ddp", "tests.unit.frontends.ddp.job", "tests.harness"]
_IMPORTED = ["torch.nn.parallel", "torch._dynamo", "pytest", *_OURS]


@dataclass(frozen=True)
class Ended:
    """How a rank ended: with what its body returned, or with an error, or, where it has died, with neither.

    `unmet` says that it could not be connected to the others, so that its body was not called.
    """

    value: Any = None
    error: str | None = None
    died: bool = False
    unmet: bool = False


@dataclass(frozen=True)
class Job:
    """Ranks that each call body(rank, *arguments), with `variables` in their environment."""

    body: Callable[..., Any]
    arguments: Sequence[Any] = ()
    ranks: int = 3
    variables: Mapping[str, str] = field(default_factory=dict)


def run_ranks(
    body: Callable[..., Any], *arguments: Any, ranks: int = 3, imports: Sequence[str] = (), **variables: str
) -> list[Any]:
    """Return what body(rank, *arguments) returned in each of some processes, which are one job of torch.distributed.

    `variables` are set in their environment; modules in `imports` are imported once for all ranks. Raises
    AssertionError with what a rank has raised.
    """
    return values_of(end_of_ranks(body, *arguments, ranks=ranks, imports=imports, **variables))


def end_of_ranks(
    body: Callable[..., Any], *arguments: Any, ranks: int = 3, imports: Sequence[str] = (), **variables: str
) -> list[Ended]:
    """Return how each rank of a job has ended. Raises AssertionError where one does not."""
    job = Job(body, arguments, ranks, variables)
    if imports:
        return end_of_jobs([job], imports)[0]
    store = _store(job)
    return _started(_server(), job, store.port)


def end_of_jobs(jobs: Sequence[Job], imports: Sequence[str]) -> list[list[Ended]]:
    """Return how the ranks of jobs have ended, one job after the other, whose ranks are forked with modules imported.

    Raises AssertionError where a module cannot be imported, or a job does not end.
    """
    stores = [_store(job) for job in jobs]
    receiver, sender = multiprocessing.Pipe(duplex=False)
    ports = [store.port for store in stores]
    parent = _server().Process(target=_run, args=(sender, imports, jobs, ports))
    parent.start()
    sender.close()
    try:
        (found,) = values_of(_collect([receiver], LIMIT_S * (1 + len(jobs))))
    finally:
        parent.terminate()
        parent.join()
    return found


def values_of(ended: Sequence[Ended]) -> list[Any]:
    """Return what ranks have returned. Raises AssertionError with what they have raised."""
    errors = [f"rank {rank}: {end.error or 'died'}" for rank, end in enumerate(ended) if end.error or end.died]
    assert not errors, "\n".join(errors)
    return [end.value for end in ended]


def _store(job: Job) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, job.ranks, is_master=True, wait_for_workers=False)


def _run(pipe: Connection, imports: Sequence[str], jobs: Sequence[Job], ports: Sequence[int]) -> None:
    """Import what all ranks need, and be their parent, who ends them when it is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        for name in imports:
            import_module(name)
        gc.freeze()  # what was imported is passed over, however often ranks have garbage collected
        context = multiprocessing.get_context("fork")  # this process has one thread
        ended = Ended([_started(context, job, port) for job, port in zip(jobs, ports, strict=True)])
    except Exception:
        ended = Ended(error=traceback.format_exc())
    pipe.send_bytes(pickle.dumps(ended))


def _started(context: BaseContext, job: Job, port: int) -> list[Ended]:
    """Return how each rank of a job has ended, whose store listens at a port.

    Once in some thousand jobs gloo drops a connection that it has accepted, with no error on that rank, which waits
    forever: it passes over a listener's failed read (torch 2.15). Then ranks start a second time.
    """
    ended = _attempt(context, job, port, "first")
    return _attempt(context, job, port, "second") if any(end.unmet for end in ended) else ended


def _attempt(context: BaseContext, job: Job, port: int, name: str) -> list[Ended]:
    pipes = [context.Pipe(duplex=False) for _ in range(job.ranks)]
    processes = [
        context.Process(target=_rank, args=(rank, job, port, name, pipe), daemon=True)  # type: ignore[attr-defined]
        for rank, (_, pipe) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, pipe in pipes:
        pipe.close()  # else its end would not be seen
    try:
        return _collect([pipe for pipe, _ in pipes], LIMIT_S)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _collect(pipes: Sequence[Connection], limit_s: float) -> list[Ended]:
    ended: dict[Connection, Ended] = {}
    while len(ended) < len(pipes):
        ready = wait([pipe for pipe in pipes if pipe not in ended], limit_s)
        late = [rank for rank, pipe in enumerate(pipes) if pipe not in ended]
        assert ready, f"ranks {late} have not ended within {limit_s:g} s; the others: {list(ended.values())}"
        for pipe in ready:
            assert isinstance(pipe, Connection)
            try:
                ended[pipe] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                ended[pipe] = Ended(died=True)
            if ended[pipe].unmet:  # the others may wait for it forever
                return list(ended.values())
    return [ended[pipe] for pipe in pipes]


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
    os.environ.update(PYTHONPATH=str(Path(__file__).parents[4]), OMP_NUM_THREADS="1")
    try:
        ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    return context


def _rank(rank: int, job: Job, port: int, attempt: str, pipe: Connection) -> None:
    os.environ.update({"HVD_COMPRESS_ADAPT": "0", "HVD_COMPRESS_TIMEOUT_S": "30", **job.variables})
    torch.set_num_threads(1)
    met = False
    try:
        store = dist.PrefixStore(attempt, dist.TCPStore("127.0.0.1", port))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=job.ranks)
        met = True
        ended = Ended(job.body(rank, *job.arguments))
    except BaseException:
        ended = Ended(error=traceback.format_exc(), unmet=not met)
    pipe.send_bytes(pickle.dumps(ended))
    wait([pipe], LIMIT_S)  # until the test has seen all: rank 0 may not take its connections away from the others
