"""How the job was launched, and so over which engine its ranks meet."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.engines.mpi_environment import SIZES, launched_by_mpi, prepare
from hvd_compress.engines.sockets import SocketEngine
from hvd_compress.errors import CommunicationError, UsageError
from hvd_compress.membership.member import member

_made = 0
"""Groups, which have a name each: all ranks have made as many."""
_stores: dict[str, Any] = {}
"""By address: that of rank 0 ends with its store, to which other ranks may come once more."""
_OF_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def start(timeout_s: float) -> tuple[Engine, Callable[[], None]]:
    """Return an engine over all ranks of the job, and what ends what was begun for it. Collective over them.

    Those that meet where ranks come and go; the program's own process group, if it has made one; that of torchrun, or
    of whoever sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; MPI under mpirun or srun, by mpi4py; or one rank
    alone.

    Raises:
        UsageError: a launcher has started several processes, and nothing here can make them meet.
        CommunicationError: some of them do not come within timeout_s.
        JobEndedError: as Member.meet().
    """
    if (own := member(timeout_s)) is not None:
        among = SocketEngine(own.meet(), timeout_s)
        return among, among.close
    if dist.is_available() and dist.is_initialized():
        return _over_torch(timeout_s), lambda: None
    if all(variable in os.environ for variable in _OF_TORCH):
        made = _process_group(timedelta(seconds=timeout_s))
        try:
            engine = _over_torch(timeout_s)
            if "TORCHELASTIC_RUN_ID" not in os.environ:
                _require_all(engine.world_size)
            return engine, lambda: dist.destroy_process_group() if dist.group.WORLD is made else None
        except BaseException:
            dist.destroy_process_group()
            raise
    if launched_by_mpi() and find_spec("mpi4py") is not None:
        prepare()
        from hvd_compress.engines.mpi import MpiEngine, await_all

        await_all(timeout_s)
        engine = MpiEngine()
        _require_all(engine.world_size)
        return engine, lambda: None
    _require_all(1)
    return InProcessWorld(1).engine(0), lambda: None


def _require_all(seen: int) -> None:
    """Else each process would train by itself."""
    started = next((os.environ[variable] for variable in SIZES if variable in os.environ), "1")
    if seen == 1 and started not in ("", "0", "1"):
        raise UsageError(
            f"a launcher has started {started} processes, and this one sees no other: launch with `hvd-compress run "
            f"-np {started}` or torchrun. By mpirun and srun ranks meet over mpi4py, which must be built for the MPI "
            "that starts them: pip install 'hvd_compress[mpi]', and srun --mpi=pmix"
        )


def _process_group(timeout: timedelta) -> dist.ProcessGroup | None:
    """Return a group of all ranks over gloo, under names that earlier ones of this process did not have."""
    global _made
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        if address not in _stores:
            _stores[address], _, _ = next(rendezvous("env://", timeout=timeout))
        store = dist.distributed_c10d.PrefixStore(f"hvd_compress/{_made}", _stores[address])
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
        _made += 1
    except (RuntimeError, TimeoutError) as error:  # of the store, or of gloo
        raise CommunicationError(
            f"rank {rank}: not all {size} ranks have called init() within {timeout.total_seconds():g} s, at {address}: "
            f"some have ended, have called shutdown() earlier, or take another branch ({error})"
        ) from error
    return dist.group.WORLD


def _over_torch(timeout_s: float) -> Engine:
    from hvd_compress.engines.torch_distributed import TorchEngine

    return TorchEngine(backend="gloo", timeout_s=timeout_s)
