"""How the job was launched, and so over which engine its ranks meet."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.engines.mpi_environment import SIZES, launched_by_mpi, prepare
from hvd_compress.errors import CommunicationError, UsageError

_made = itertools.count()
_OF_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def start(timeout_s: float) -> tuple[Engine, Callable[[], None]]:
    """Return an engine over all ranks of the job, and what ends what was begun for it. Collective over them.

    The program's own process group, if it has made one; that of torchrun, or of whoever sets RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT; MPI under mpirun or srun, by mpi4py; or one rank alone.

    Raises:
        UsageError: a launcher has started several processes, and nothing here can make them meet.
        CommunicationError: some of them do not come within timeout_s.
    """
    if dist.is_available() and dist.is_initialized():
        return _over_torch(timeout_s), lambda: None
    if all(variable in os.environ for variable in _OF_TORCH):
        made = _process_group(timedelta(seconds=timeout_s))
        return _over_torch(timeout_s), lambda: dist.destroy_process_group() if dist.group.WORLD is made else None
    if launched_by_mpi() and find_spec("mpi4py") is not None:
        prepare()
        from hvd_compress.engines.mpi import MpiEngine, await_all

        await_all(timeout_s)
        engine: Engine = MpiEngine()
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
    try:
        store, rank, size = next(rendezvous("env://", timeout=timeout))
        store = dist.distributed_c10d.PrefixStore(f"hvd_compress/{next(_made)}", store)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    except (dist.DistError, TimeoutError) as error:
        raise CommunicationError(
            f"rank {os.environ['RANK']}: not all {os.environ['WORLD_SIZE']} ranks have called init() within "
            f"{timeout.total_seconds():g} s, at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: some have "
            "ended, have called shutdown() earlier, or take another branch"
        ) from error
    return dist.group.WORLD


def _over_torch(timeout_s: float) -> Engine:
    from hvd_compress.engines.torch_distributed import TorchEngine

    return TorchEngine(backend="gloo", timeout_s=timeout_s)
