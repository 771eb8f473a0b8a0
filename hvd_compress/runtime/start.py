"""How the job was launched, and so over which engine its ranks meet."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec

import torch
import torch.distributed as dist

from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessWorld
from hvd_compress.engines.mpi_environment import launched_by_mpi, prepare
from hvd_compress.errors import UsageError

_OF_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def start(timeout_s: float) -> tuple[Engine, Callable[[], None]]:
    """Return an engine over all ranks of the job, and what ends what was begun for it. Collective over them.

    The program's own process group, if it has made one; that of torchrun, or of whoever sets RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT; MPI under mpirun or srun, by mpi4py; or one rank alone.

    Raises:
        UsageError: a launcher has started several processes, and nothing here can make them meet.
    """
    if dist.is_available() and dist.is_initialized():
        return _over_torch(timeout_s), lambda: None
    if all(variable in os.environ for variable in _OF_TORCH):
        backends = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backends, timeout=timedelta(seconds=timeout_s))
        return _over_torch(timeout_s), dist.destroy_process_group
    if launched_by_mpi() and find_spec("mpi4py") is not None:
        prepare()
        from hvd_compress.engines.mpi import MpiEngine

        return MpiEngine(), lambda: None
    started = next((os.environ[variable] for variable in _SIZES if variable in os.environ), "1")
    if started != "1":
        raise UsageError(
            f"a launcher has started {started} processes, which cannot meet: pip install mpi4py, or launch with "
            "torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each"
        )
    return InProcessWorld(1).engine(0), lambda: None


def _over_torch(timeout_s: float) -> Engine:
    from hvd_compress.engines.torch_distributed import TorchEngine

    return TorchEngine(backend="gloo", timeout_s=timeout_s)
